// Rank 0 of a run whose other ranks are elsewhere: leads epochs until one comes to the end of the run. Where the others
// come from, and what becomes of one that is lost, is OtherRanks'.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/train/ranks/rank_control.h"
#include "butterfly/train/ranks/ranks.h"
#include "butterfly/wire/collective/mesh.h"

namespace butterfly {

struct LedRank {
  int number = 0;
  std::string title{};    // "process 4711", "worker 10.0.0.2:7000"
  std::string address{};  // where it takes connections of other ranks
  RankControl control{};
  std::optional<RankMessage> held{};  // read, and not acted upon yet
};

class OtherRanks {
 public:
  virtual ~OtherRanks() = default;

  /// All but rank 0, ready for an epoch, ascending by number.
  virtual Result<std::vector<LedRank>> start() = 0;

  /// Rank 0's.
  virtual Result<std::unique_ptr<RankTrainer>> make_trainer(const TrainRank& place) = 0;

  /// Rank 0's end of an epoch. `members` begins with rank 0. Errors: those of connect_epoch().
  virtual Result<std::unique_ptr<Collectives>> connect(const std::vector<RankProcess>& members, Epoch epoch,
                                                       const std::function<Status()>& still_wanted) = 0;

  /// Gone, or silent for too long, which comes to the same: makes sure of it. How it ended, for people.
  virtual std::string terminate(LedRank& rank, const Error& cause) = 0;

  /// Whether more are ready to join than the ranks that take part beside rank 0; asked in each step.
  virtual bool others_ready([[maybe_unused]] std::size_t taking_part) { return false; }

  /// Those, ready for an epoch, with numbers above all before, as far as there is room for them.
  virtual std::vector<LedRank> admit([[maybe_unused]] std::size_t taking_part) { return {}; }

  /// What connect() gave is about to end, and rank 0's trainer is.
  virtual void run_is_over() {}
};

/// Ends the others' runs before it returns; whether they heard it is the caller's business. Errors: those of
/// train_with_ranks().
Result<TrainResult> lead_ranks(OtherRanks& others, const RunConfig& config, const TrainObserver& observer,
                               const std::stop_token& stop, std::chrono::milliseconds member_timeout);

}  // namespace butterfly
