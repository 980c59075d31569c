// butterfly inspect --machine: what this node brings to a cluster.
#include <cstdio>

#include "butterfly/base/json.h"
#include "butterfly/kernel/rates/matmul_choice.h"
#include "butterfly/kernel/rates/matmul_rates.h"
#include "butterfly/machine/isa.h"
#include "butterfly/machine/node.h"
#include "butterfly/machine/peaks.h"
#include "butterfly/machine/topology.h"
#include "commands.h"

namespace butterfly::app {
namespace {

nlohmann::ordered_json to_json(const Rates& rates) {
  return {{"memory_read_gb_per_s", rates.memory_read_gb_per_s},
          {"fp32_gflops", rates.fp32_gflops},
          {"int8_gops", rates.int8_gops}};
}

void print_rates(const char* label, const Rates& rates) {
  std::printf("  %-12s memory read %.1f GB/s, fp32 %.0f GFLOP/s", label, rates.memory_read_gb_per_s, rates.fp32_gflops);
  if (rates.int8_gops > 0) std::printf(", int8 %.0f GOP/s", rates.int8_gops);
  std::printf("\n");
}

/// The rates of the instruction set in use; measured even where nothing can be remembered.
Result<std::vector<MatmulRate>> matmuls_of(Isa isa, const Topology& topology) {
  auto rates = remembered_matmuls(isa, topology.usable_threads, topology.cpu_name);
  if (!rates.empty()) return rates;
  return measure_matmuls({.isa = isa, .threads = topology.usable_threads});
}

std::string_view rows_text(RowClass rows) {
  return rows == RowClass::kFew ? "2 to 15 rows" : "16 rows and more";
}

void print_choices(const MachineChoices& choices, Isa isa) {
  if (choices.prefetch.prefetch != Prefetch::kTwoSteps) {
    std::printf("one row asks for its weights in %s, which is %.2f times as fast here (BUTTERFLY_TUNE=off: in %s)\n",
                std::string(to_string(choices.prefetch.prefetch)).c_str(), choices.prefetch.gain,
                std::string(to_string(Prefetch::kTwoSteps)).c_str());
  }
  if (choices.matmuls.empty()) {
    std::printf("no other instruction set multiplies faster with any type (BUTTERFLY_TUNE=off does not look)\n");
    return;
  }
  std::printf(
      "matmuls that another instruction set does faster, and which it therefore does (BUTTERFLY_TUNE=off: %s):\n",
      std::string(to_string(isa)).c_str());
  for (const MatmulChoice& choice : choices.matmuls) {
    std::printf("  %-12s %s: %s, %.2f times as fast\n", std::string(to_string(choice.type)).c_str(),
                std::string(rows_text(choice.rows)).c_str(), std::string(to_string(choice.isa)).c_str(), choice.gain);
  }
}

Result<int> run(const InspectOptions& options) {
  BF_ASSIGN_OR_RETURN(const Isa chosen, choose_isa());
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  std::vector<Peaks> peaks;
  for (const Isa isa : supported_isas()) {
    BF_ASSIGN_OR_RETURN(const Peaks measured,
                        cached_peaks({.isa = isa, .threads = topology.usable_threads}, topology.cpu_name));
    peaks.push_back(measured);
  }
  BF_ASSIGN_OR_RETURN(const std::vector<MatmulRate> matmuls, matmuls_of(chosen, topology));
  const MachineChoices choices = remembered_choices(chosen);
  if (options.json) {
    nlohmann::ordered_json j;
    j["cpu"] = topology.cpu_name;
    j["cores"] = topology.cores;
    j["usable_threads"] = topology.usable_threads;
    j["numa_nodes"] = topology.numa_nodes;
    j["memory_bytes"] = topology.memory_bytes;
    j["available_memory_bytes"] = topology.available_memory_bytes;
    j["isa"] = to_string(chosen);
    for (const Peaks& p : peaks) {
      j["peaks"].push_back({{"isa", to_string(p.isa)},
                            {"threads", p.threads},
                            {"one_thread", to_json(p.one_thread)},
                            {"team", to_json(p.team)}});
    }
    for (const MatmulRate& rate : matmuls) {
      j["matmuls"].push_back({{"type", rate.type},
                              {"decode_gb_per_s", rate.decode_gb_per_s},
                              {"prefill_gflops", rate.prefill_gflops},
                              {"cached_gb_per_s", rate.cached_gb_per_s}});
    }
    j["choices"] = nlohmann::ordered_json::array();
    for (const MatmulChoice& choice : choices.matmuls) {
      j["choices"].push_back({{"type", to_string(choice.type)},
                              {"rows", choice.rows == RowClass::kFew ? "few" : "many"},
                              {"isa", to_string(choice.isa)},
                              {"gain", choice.gain}});
    }
    j["prefetch"] = {{"way", to_string(choices.prefetch.prefetch)}, {"gain", choices.prefetch.gain}};
    std::printf("%s\n", dump_json(j, {.indent = 2}).c_str());
    return kExitOk;
  }
  std::printf("%s\n", describe(topology).c_str());
  std::printf("instruction sets with kernels (BUTTERFLY_ISA chooses), measured once and cached:\n");
  for (const Peaks& p : peaks) {
    std::printf("%s%s\n", std::string(to_string(p.isa)).c_str(), p.isa == chosen ? "  <- in use" : "");
    print_rates("1 thread", p.one_thread);
    if (p.threads > 1) print_rates(fmt::format("{} threads", p.threads).c_str(), p.team);
  }
  std::printf(
      "matmuls with %s, %d threads, one row over weights beyond and within the caches, and 128 rows at once; "
      "attention:\n",
      std::string(to_string(chosen)).c_str(), topology.usable_threads);
  for (const MatmulRate& rate : matmuls) {
    std::printf("  %-12s decode %.1f GB/s of weights, from caches %.1f, prefill %.0f GFLOP/s\n", rate.type.c_str(),
                rate.decode_gb_per_s, rate.cached_gb_per_s, rate.prefill_gflops);
  }
  print_choices(choices, chosen);
  return kExitOk;
}

}  // namespace

int inspect_machine(const InspectOptions& options) {
  const Result<int> code = run(options);
  return code ? *code : fail(code.error());
}

}  // namespace butterfly::app
