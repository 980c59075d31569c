#include "butterfly/train/ranks/ranks.h"

#include <algorithm>
#include <filesystem>
#include <thread>
#include <vector>

#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/train/ranks/rank_processes.h"
#include "butterfly/train/ranks/rank_workers.h"
#include "butterfly/train/run/run_parts.h"
#include "butterfly/wire/collective/outcome.h"

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

/// What each rank computes for itself has to be the same to the bit.
Result<Isa> common_isa(Collectives& members) {
  BF_ASSIGN_OR_RETURN(const Isa mine, choose_isa());
  std::vector<Isa> all(static_cast<std::size_t>(members.size()), mine);
  std::vector<MutableByteSpan> parts;
  for (Isa& isa : all) parts.push_back(std::as_writable_bytes(std::span(&isa, 1)));
  BF_TRY(members.all_gather(parts));
  return *std::ranges::min_element(all);
}

/// This process is a rank of its own; all see the same files.
Result<TrainResult> train_as_member(RunConfig config, const TrainObserver& observer, const std::stop_token& stop,
                                    const RanksOptions& options) {
  if (options.started == nullptr) {
    return make_error(ErrorCode::kUnsupported, "parallel.engine is mpi, and nothing here has begun MPI");
  }
  Collectives& members = *options.started;
  config.parallel.mirror = 0;  // they share their fate
  const TrainRank place{.rank = members.rank(),
                        .size = members.size(),
                        .collectives = members.size() > 1 ? &members : nullptr,
                        .speeds = config.parallel.speeds};
  BF_ASSIGN_OR_RETURN(const Isa isa, common_isa(members));
  const auto prepare = [&]() -> Result<std::unique_ptr<RankTrainer>> {
    std::error_code ignored;
    const bool reads_part = members.size() > 1 && sharding_of(config.parallel.strategy).optimizer;
    if (reads_part && !config.resume.empty() && !std::filesystem::exists(config.resume, ignored)) {
      return make_error(ErrorCode::kNotFound, "{}: is not here, and each rank reads its part of a checkpoint",
                        config.resume);
    }
    BF_ASSIGN_OR_RETURN(RunParts parts, make_run_parts(config, place, {.isa = isa}));
    return make_trainer(std::move(parts), place);
  };
  const auto trainer = prepare();
  BF_TRY(agree_on_outcome(members, trainer ? Status{} : tl::unexpected(trainer.error())));
  auto result = (*trainer)->run(place.rank == 0 ? observer : TrainObserver{}, stop);
  if (!result) members.abort();
  return result;
}

}  // namespace

Result<TrainResult> train_with_ranks(const RunConfig& config, const TrainObserver& observer,
                                     const std::stop_token& stop, const RanksOptions& options) {
  if (config.parallel.engine == RankEngine::kMpi) return train_as_member(config, observer, stop, options);
  if (has_ranks_elsewhere(config.parallel)) return train_with_workers(config, observer, stop, options);
  if (config.parallel.ranks == 1) return run_rank(config, TrainRank{}, observer, stop, options);
  if (config.parallel.engine == RankEngine::kTcp) return train_with_processes(config, observer, stop, options);
  return train_with_threads(config, observer, stop, options);
}

}  // namespace butterfly
