// How long planning takes: 126 layers (Llama-3.1-405B) over mixed nodes, by strategy.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <random>

#include "butterfly/plan/partition/plan.h"
#include "butterfly/plan/partition/strategy.h"

namespace butterfly {
namespace {

PlanCluster mixed_cluster(int nodes) {
  std::mt19937 random(3);
  PlanCluster cluster;
  for (int i = 0; i < nodes; ++i) {
    const double speed = 10.0 * static_cast<double>(1 + random() % 8);
    cluster.nodes.push_back({.name = fmt::format("n{}", i),
                             .memory_bytes = std::uint64_t{32 + random() % 96} << 30,
                             .memory_read_gb_per_s = speed,
                             .fp32_gflops = 20.0 * speed});
    cluster.host_of_node.push_back(i / 4);
  }
  for (int a = 0; a < nodes; ++a) {
    for (int b = 0; b < nodes; ++b) {
      const bool near = a / 4 == b / 4;
      cluster.links.push_back(
          {.latency_us = near ? 5.0 : 50.0 + static_cast<double>(random() % 100), .gb_per_s = near ? 8.0 : 1.0});
    }
  }
  return cluster;
}

void plan(benchmark::State& state, const std::string& strategy, PlanGoal goal) {
  ModelConfig config = *named_config("llama-3.1-405b");
  config.weight_type = DType::kQ4_0;
  const PlanCluster cluster = mixed_cluster(static_cast<int>(state.range(0)));
  const PlanOptions options{.strategy = strategy, .context = 2048, .sequences = 16, .goal = goal};
  for (auto _ : state) {
    const Result<Plan> made = make_plan(config, cluster, options);
    if (!made) return state.SkipWithError(made.error().message.c_str());
    state.counters["token_ms"] = made->prediction.token_s * 1e3;
    state.counters["tokens_per_s"] = made->prediction.tokens_per_s;
  }
}

const bool kRegistered = [] {
  for (const Strategy& strategy : strategies()) {
    if (strategy.needs_custom) continue;
    for (const PlanGoal goal : {PlanGoal::kLatency, PlanGoal::kThroughput, PlanGoal::kMemory}) {
      const std::string name = fmt::format("{}/{}", strategy.name, to_string(goal));
      benchmark::RegisterBenchmark(name.c_str(), plan, std::string(strategy.name), goal)
          ->Arg(100)
          ->Arg(1000)
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace butterfly
