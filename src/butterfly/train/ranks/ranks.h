// A run on several ranks, each a replica of the whole model: threads of this process, processes of this machine over
// TCP, or worker processes anywhere. Rank 0 is the calling thread: it observes and saves. The calling thread waits for
// all others before it returns. Or this process is one of those that MPI has started, of any rank.
//
// A process that is lost ends the epoch: the others connect anew, agree on the last step that one of them has finished
// and divide the same global batch among themselves. Rank 0 decides who remains; without it the others end with an
// error, for the run's files are its. Threads share their fate: an error of one ends the run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>

#include "butterfly/base/result.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/run/trainer.h"
#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

struct RanksOptions {
  /// Tests put others in.
  std::function<Result<std::unique_ptr<RankTrainer>>(const RunConfig&, const TrainRank&)> make_trainer =
      RankTrainer::create;
  /// For the next bytes of a rank, and for its answer when an epoch has ended. Who is silent longer is lost.
  std::chrono::milliseconds member_timeout{60'000};
  NodeAccess access{};  // to workers
  /// Where ranks join, for a caller that listens there already; null: parallel.rendezvous or join_at is opened.
  std::function<Result<std::unique_ptr<Listener>>()> listen_for_joins{};
  SharedMemoryUse shared_memory = SharedMemoryUse::kAllowed;  // with other ranks on this host, where the run does not
                                                              // forbid it
  Collectives* started = nullptr;  // of RankEngine::kMpi: among the processes that MPI has started
};

/// config.parallel says how many ranks and of what kind. With RankEngine::kTcp and no workers this process forks, which
/// it should do while it has one thread. The observer's notes name the processes, and who was lost. Errors: those of
/// RankTrainer::create() and RankTrainer::run() on any rank; kUnavailable where epochs end again and again although
/// nobody is lost. With RankEngine::kMpi all ranks call it, and `stop` of any of them ends the run; the collectives are
/// of no use after an error of run(), which wakes the others.
Result<TrainResult> train_with_ranks(const RunConfig& config, const TrainObserver& observer,
                                     const std::stop_token& stop, const RanksOptions& options = {});

}  // namespace butterfly
