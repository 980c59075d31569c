// Continues a text with a model split over nodes, and shows how the layers would be shared out over a small cluster.
//
//   example_generate MODEL PROMPT [NODES]
#include <butterfly/generator.h>
#include <butterfly/load_balancer.h>
#include <butterfly/model.h>
#include <butterfly/node.h>
#include <butterfly/node_registry.h>
#include <butterfly/partition.h>
#include <butterfly/version.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

int fail(const butterfly::Error& error) {
  std::fprintf(stderr, "%s: %s\n", butterfly::to_string(error.code), error.message.c_str());
  return 2;
}

/// Three nodes of different speed: which layers would each get, and which serves the next request?
int show_cluster(const butterfly::ModelInfo& model) {
  butterfly::NodeRegistry registry;
  for (const double speed : {10.0, 20.0, 40.0}) {
    butterfly::Node node{.id = "node-" + std::to_string(static_cast<int>(speed))};
    node.capability = {.compute_gflops = 10.0 * speed, .memory_gb = 8.0, .memory_bandwidth_gb_per_s = speed};
    if (const auto registered = registry.register_node(node); !registered) return fail(registered.error());
  }
  const butterfly::PartitionManager manager({.strategy = "balanced"});
  const auto partition = manager.partition(model, registry.healthy());
  if (!partition) return fail(partition.error());
  std::fprintf(stderr, "%sload_balance_factor %.2f\n", partition->table.c_str(),
               partition->quality.load_balance_factor);

  butterfly::LoadBalancer balancer(registry, butterfly::BalancePolicy::kWeighted);
  const auto ticket = balancer.acquire();
  if (!ticket) return fail(ticket.error());
  std::fprintf(stderr, "the next request goes to %s\n", ticket->node().id.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "butterfly %s\nusage: %s MODEL PROMPT [NODES]\n", butterfly::kVersion, argv[0]);
    return 2;
  }
  const auto model = butterfly::ModelInfo::open(argv[1]);
  if (!model) return fail(model.error());
  if (const int status = show_cluster(*model); status != 0) return status;

  auto generator = butterfly::Generator::load(argv[1], {.nodes = argc > 3 ? std::atoi(argv[3]) : 1});
  if (!generator) return fail(generator.error());
  std::fprintf(stderr, "%s", generator->describe().c_str());
  const auto text = generator->generate(argv[2], {.tokens_max = 32}, [](std::string_view piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  if (!text) return fail(text.error());
  std::printf("\n");
  std::fprintf(stderr, "%zu tokens, ended by %s\n", text->tokens.size(), text->finish.c_str());
  return 0;
}
