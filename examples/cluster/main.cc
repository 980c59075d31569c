// Continues a text over worker processes (`butterfly worker`), and says what becomes of them meanwhile. A worker that
// dies is named and the text goes on over the others, the same text.
//
//   example_cluster MODEL PROMPT TOKENS CREDENTIALS HOST:PORT [HOST:PORT...]
//
// CREDENTIALS is the coordinator's folder (`butterfly cluster init`); "" for workers on this machine without any.
#include <butterfly/generator.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

int fail(const butterfly::Error& error) {
  std::fprintf(stderr, "%s: %s\n", butterfly::to_string(error.code), error.message.c_str());
  return 2;
}

void print(const butterfly::GeneratorEvent& event) {
  std::fprintf(stderr, "%s", butterfly::to_string(event.kind));
  if (!event.node.empty()) std::fprintf(stderr, " %s", event.node.c_str());
  if (event.kind == butterfly::GeneratorEvent::Kind::kEpoch) {
    std::fprintf(stderr, " %u over %d workers", event.epoch, event.workers);
  }
  std::fprintf(stderr, "%s%s\n", event.message.empty() ? "" : ": ", event.message.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: %s MODEL PROMPT TOKENS CREDENTIALS HOST:PORT [HOST:PORT...]\n", argv[0]);
    return 2;
  }
  butterfly::GeneratorOptions options{.workers = std::vector<std::string>(argv + 5, argv + argc)};
  options.credentials = argv[4];
  options.event = print;
  auto generator = butterfly::Generator::load(argv[1], options);
  if (!generator) return fail(generator.error());
  std::fprintf(stderr, "%s", generator->describe().c_str());

  const butterfly::TextOptions text_options{.tokens_max = std::atoi(argv[3]), .ignore_end = true};
  const auto text = generator->generate(argv[2], text_options, [](std::string_view piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  if (!text) return fail(text.error());

  std::printf("\n");
  for (const butterfly::Node& node : generator->nodes().list()) {
    const bool healthy = generator->nodes().is_healthy(node.id);
    std::fprintf(stderr, "%s: %s, %.1f GFLOP/s, %.1f GB/s of memory\n", node.id.c_str(), healthy ? "healthy" : "lost",
                 node.capability.compute_gflops, node.capability.memory_bandwidth_gb_per_s);
  }
  const butterfly::BalanceReport balance = generator->balance();
  for (const butterfly::NodeShare& share : balance.shares) {
    std::fprintf(stderr, "%s has layers %d-%d, %.3f ms a step\n", share.node_id.c_str(), share.first_layer,
                 share.last_layer - 1, 1e3 * share.step_s);
  }
  std::fprintf(stderr, "load balance factor %.2f\n", balance.load_balance_factor);
  return 0;
}
