// A rank above 0 that is not in rank 0's process: does what rank 0 says until it says that the run is over, or is gone.
#pragma once

#include <stop_token>

#include "butterfly/train/ranks/rank_control.h"
#include "butterfly/train/ranks/ranks.h"
#include "butterfly/wire/collective/mesh.h"

namespace butterfly {

/// Where rank 0 is in a list of members: nobody dials it.
inline constexpr const char* kNoAddress = "-";

struct RankChild {
  int number = 0;
  RankControl leader{};                                           // to rank 0
  Listener& listener;                                             // where lower ranks are accepted
  MeshOptions mesh{};                                             // its session and access
  std::stop_token stop{};                                         // gives the run up
  std::stop_token run_end{};                                      // ends the run on all ranks, saved
  TrainObserver observer{};                                       // its notes also tell of each epoch that begins
  std::function<void(Epoch epoch, int rank, int ranks)> began{};  // an epoch
};

/// Errors: those that end this rank: of its trainer, or that rank 0 is gone.
Status run_rank_child(const RankChild& child, const RunConfig& config, const RanksOptions& options);

/// The channels of an epoch's members, of which this process is the one of `mesh.rank`: each dials those of higher
/// rank. Errors: those of connect_mesh().
Result<std::unique_ptr<Collectives>> connect_epoch(Listener& listener, const std::vector<RankProcess>& members,
                                                   MeshOptions mesh, const RunConfig& config,
                                                   const RanksOptions& options);

/// What the trainer of such a rank shall know.
TrainRank train_rank(const RunConfig& config, const std::vector<RankProcess>& members, int rank,
                     Collectives* collectives);

}  // namespace butterfly
