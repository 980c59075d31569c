// A rank above 0 in its own process: does what rank 0 says until it says that the run is over, or is gone.
#pragma once

#include "butterfly/train/rank_control.h"
#include "butterfly/train/ranks.h"
#include "butterfly/wire/mesh.h"

namespace butterfly {

struct RankChild {
  int number = 0;
  std::string leader{};  // address of rank 0
  SessionId session{};
};

/// Errors: those that end this process: of its trainer, or that rank 0 is gone.
Status run_rank_child(const RankChild& child, const RunConfig& config, const RanksOptions& options);

/// The channels of an epoch's members, of which this process is the one of `rank`. Errors: those of connect_mesh().
Result<std::unique_ptr<Collectives>> connect_epoch(Listener& listener, const std::vector<RankProcess>& members,
                                                   MeshOptions options, std::chrono::milliseconds member_timeout);

/// What the trainer of such a process shall know.
TrainRank train_rank(const RunConfig& config, const std::vector<RankProcess>& members, int rank,
                     Collectives* collectives);

}  // namespace butterfly
