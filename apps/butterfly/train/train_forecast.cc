#include "butterfly/machine/node.h"
#include "butterfly/plan/cost/training_cost.h"
#include "train/train.h"

namespace butterfly::app {
namespace {

TrainStrategy planned_as(ParallelStrategy strategy) {
  switch (strategy) {
    case ParallelStrategy::kDdp:
      return TrainStrategy::kDdp;
    case ParallelStrategy::kZero1:
      return TrainStrategy::kZero1;
    case ParallelStrategy::kZero2:
      return TrainStrategy::kShardGradOp;
    case ParallelStrategy::kZero3:
    case ParallelStrategy::kHybrid:
      break;
  }
  return TrainStrategy::kFullShard;
}

}  // namespace

std::optional<double> predicted_step_s(const RunConfig& config, double peak_gflops) {
  if (!config.parallel.workers.empty()) return std::nullopt;  // their rates are their own: plan --train --workers
  const int ranks = config.parallel.ranks;
  const auto shape = shape_of_run(config);
  const auto node = measure_node({.threads = threads_of_run(config) * ranks});
  if (!shape || !node || peak_gflops <= 0.0) return std::nullopt;
  NodeDescriptor rank = *node;
  rank.memory_read_gb_per_s /= ranks;
  PlanCluster cluster = cluster_of(std::vector(static_cast<std::size_t>(ranks), rank));
  cluster.default_link = memory_link(rank.memory_read_gb_per_s);
  const auto prediction = predict_training(*shape, cluster,
                                           {.strategy = planned_as(config.parallel.strategy),
                                            .batch = config.global_batch,
                                            .micro_batch = config.micro_batch,
                                            .seq = config.seq,
                                            .matmuls_gflops = peak_gflops});
  if (!prediction) return std::nullopt;
  return prediction->step_s;
}

}  // namespace butterfly::app
