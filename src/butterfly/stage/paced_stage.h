// A stage on a node: computes when it is its turn among the stages of the node, as slowly as the machine that the node
// plays, counts what it does, and measures what exchanges cost its tensor group. None of it shows in a result. One call
// at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "butterfly/machine/emulation/emulation.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/plan/description/exchange_times.h"
#include "butterfly/stage/stage.h"

namespace butterfly {

/// What stages have done; read by other threads while they work. Busy is computing: a member that waits for the sums of
/// a slower one is not. Of an emulated machine it is what its work takes at its speed, even while others had the
/// cores.
struct StageCounters {
  std::atomic<std::uint64_t> steps{0}, busy_ns{0};
};

/// The threads of a node: its stages take turns with them. A stage that waits for its tensor group lets others go on.
struct Crew {
  explicit Crew(int threads) : team(threads) {}
  ThreadTeam team;
  std::mutex turn;  // who has it computes
};

struct PacedStageOptions {
  std::shared_ptr<Crew> crew{};  // of all stages of a node; null: this one takes turns with nobody
  double emulated_speed = 1.0;   // of a slower machine that this one plays; see Emulation
  EmulationClock emulation_clock = system_clock_of_this_thread();
  StageCounters* counters = nullptr;  // outlives the stage
};

class PacedStage {
 public:
  PacedStage(std::unique_ptr<Stage> stage, const PacedStageOptions& options);
  ~PacedStage();

  /// As Stage::join(); `exchange` outlives this stage's use of it.
  Status join(Exchange& exchange);

  /// What exchanges cost this group, after join() and before the first step: collective, some tens of milliseconds.
  /// Errors: those of the exchange, kNoMemory; stage().broken() then.
  Result<ExchangeTimes> measure_exchanges();

  /// As Stage::forward().
  Status forward(Step& step);

  Stage& stage() { return *stage_; }
  const Stage& stage() const { return *stage_; }

 private:
  class PacedExchange;
  /// Time of computing, from any point on.
  std::uint64_t worked_ns() const;

  const std::shared_ptr<Crew> crew_;  // shared by the stages of a node
  StageCounters* const counters_;
  Emulation emulation_;
  std::unique_ptr<PacedExchange> exchange_;  // outlives the stage; null without a group
  const std::unique_ptr<Stage> stage_;
};

}  // namespace butterfly
