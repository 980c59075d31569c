#include <algorithm>
#include <cstdio>

#include "butterfly/machine/node.h"
#include "butterfly/plan/cost/training_choice.h"
#include "butterfly/plan/cost/training_cost.h"
#include "butterfly/train/fit/fit_search.h"
#include "shared/asked_cluster.h"
#include "train/train.h"

namespace butterfly::app {

TrainOptions planned_step(const RunConfig& config, TrainStrategy strategy) {
  return {.strategy = strategy,
          .batch = config.global_batch,
          .micro_batch = config.micro_batch,
          .seq = config.seq,
          .recompute = config.recompute};
}

namespace {

/// The first one is as fast as was measured. 0 GFLOP/s: not measured in training.
Result<PlanCluster> ranks_like_this_machine(const RunConfig& config, double training_gflops) {
  const int here = ranks_here(config.parallel);
  BF_ASSIGN_OR_RETURN(NodeDescriptor rank, measure_node({.threads = threads_of_run(config) * here}));
  rank.memory_read_gb_per_s /= here;
  rank.memory_bytes /= static_cast<std::uint64_t>(here);
  rank.training_gflops = training_gflops;
  std::vector<NodeDescriptor> ranks(static_cast<std::size_t>(ranks_of(config.parallel)), rank);
  const std::vector<double>& speeds = config.parallel.speeds;
  for (std::size_t i = 1; i < std::min(ranks.size(), speeds.size()); ++i) {
    ranks[i] = scaled(std::move(ranks[i]), speeds[i] / speeds.front());
  }
  PlanCluster cluster = cluster_of(ranks);
  if (here > 1) cluster.default_link = memory_link(rank.memory_read_gb_per_s);
  return cluster;
}

}  // namespace

Result<PlanCluster> nodes_of_ranks(const RunConfig& config, const NodeAccess& access) {
  const std::vector<std::string>& workers = config.parallel.workers;
  if (workers.empty()) return ranks_like_this_machine(config, 0.0);
  if (config.log != LogLevel::kSilent) {
    std::fprintf(stderr, "asking %zu worker%s for speed and links ...\n", workers.size(),
                 workers.size() == 1 ? "" : "s");
  }
  BF_ASSIGN_OR_RETURN(const PlanCluster others, ask_cluster(workers, access));
  BF_ASSIGN_OR_RETURN(const NodeDescriptor here, measure_node({.threads = threads_of_run(config)}));
  return with_coordinator(others, here);
}

std::optional<double> predicted_step_s(const RunConfig& config, const std::optional<PlanCluster>& workers,
                                       double peak_gflops) {
  const bool here = ranks_here(config.parallel) == ranks_of(config.parallel);
  if (peak_gflops <= 0.0 || (!here && !workers)) return std::nullopt;
  const auto shape = shape_of_run(config);
  const auto cluster = here ? ranks_like_this_machine(config, peak_gflops) : *workers;
  if (!shape || !cluster) return std::nullopt;
  const TrainOptions step = planned_step(config, planned_as(config.parallel.strategy));
  const auto prediction = predict_training(*shape, *cluster, step);
  if (!prediction) return std::nullopt;
  return prediction->step_s;
}

Result<std::string> choose_strategy(RunConfig& config, const PlanCluster& cluster) {
  BF_ASSIGN_OR_RETURN(const ModelConfig shape, shape_of_run(config));
  std::vector<TrainCandidate> candidates;
  for (const TrainStrategy strategy : strategies_for(shape, cluster.size())) {
    BF_ASSIGN_OR_RETURN(const TrainPrediction prediction,
                        predict_training(shape, cluster, planned_step(config, strategy)));
    candidates.push_back(candidate(strategy, prediction, cluster));
  }
  const TrainChoice choice = choose_training(candidates);
  if (!choice.fits) return make_error(ErrorCode::kNoMemory, "no strategy fits: {}", choice.reason);
  config.parallel.strategy = run_as(choice.strategy);
  const bool known = !config.parallel.workers.empty() || ranks_here(config.parallel) == ranks_of(config.parallel);
  return fmt::format("{}: {}{}", to_string(choice.strategy), choice.reason,
                     known ? "" : "; other machines are taken to be like this one");
}

}  // namespace butterfly::app
