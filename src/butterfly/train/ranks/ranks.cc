#include "butterfly/train/ranks/ranks.h"

#include <thread>
#include <vector>

#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/train/ranks/rank_processes.h"
#include "butterfly/train/ranks/rank_workers.h"

namespace butterfly {
namespace {

Result<TrainResult> run_rank(const RunConfig& config, const TrainRank& rank, const TrainObserver& observer,
                             const std::stop_token& stop, const RanksOptions& options) {
  BF_ASSIGN_OR_RETURN(const auto trainer, options.make_trainer(config, rank));
  return trainer->run(observer, stop);
}

/// What went wrong first: the others' errors are that it went wrong.
const Error& cause(const std::vector<Result<TrainResult>>& results) {
  const Error* found = nullptr;
  for (const auto& result : results) {
    if (result) continue;
    if (found == nullptr || (ends_epoch(*found) && !ends_epoch(result.error()))) found = &result.error();
  }
  return *found;
}

Result<TrainResult> train_with_threads(RunConfig config, const TrainObserver& observer, const std::stop_token& stop,
                                       const RanksOptions& options) {
  config.parallel.mirror = 0;  // they share their fate
  const int ranks = config.parallel.ranks;
  const auto collectives = make_inproc_collectives(ranks);
  std::vector<Result<TrainResult>> results(collectives.size());
  const auto work = [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    const TrainRank place{
        .rank = rank, .size = ranks, .collectives = collectives[index].get(), .speeds = config.parallel.speeds};
    // Others neither print nor save, and learn of a stop from rank 0, after the same step as all.
    results[index] = rank == 0 ? run_rank(config, place, observer, stop, options)
                               : run_rank(config, place, TrainObserver{}, std::stop_token{}, options);
    if (!results[index]) collectives[index]->abort();
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(work, rank);
    work(0);
  }
  for (const auto& result : results) {
    if (!result) return tl::unexpected(cause(results));
  }
  return std::move(results[0]);
}

}  // namespace

Result<TrainResult> train_with_ranks(const RunConfig& config, const TrainObserver& observer,
                                     const std::stop_token& stop, const RanksOptions& options) {
  if (has_ranks_elsewhere(config.parallel)) return train_with_workers(config, observer, stop, options);
  if (config.parallel.ranks == 1) return run_rank(config, TrainRank{}, observer, stop, options);
  if (config.parallel.engine == RankEngine::kTcp) return train_with_processes(config, observer, stop, options);
  return train_with_threads(config, observer, stop, options);
}

}  // namespace butterfly
