// A run on one rank, from its configuration to its result: builds data, transformer and optimizer, takes steps,
// evaluates, saves, audits. Observers print. Not thread-safe; a stop requested from any thread ends it at a step's
// border, saved.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/run/audit.h"
#include "butterfly/train/run/summary.h"
#include "butterfly/train/step/train_step.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// What a run tells while it goes; called by its thread.
struct TrainObserver {
  std::function<void(const StepReport& report, std::int64_t steps)> step{};
  /// Validation begins: on how many tokens, and how many seconds that takes at the speed of the last step's forward
  /// pass.
  std::function<void(std::int64_t step, std::int64_t tokens, double seconds)> evaluating{};
  std::function<void(std::int64_t step, double validation_loss)> evaluated{};
  std::function<void(std::int64_t step, const std::string& text)> sampled{};
  std::function<void(std::int64_t step, const std::string& path)> saved{};
  std::function<void(const std::string& message)> note{};
};

struct TrainResult {
  RunSummary summary{};
  std::vector<RankRow> ranks{};  // of the last epoch, in rank order; empty for one rank
  AuditVerdict verdict{};
  std::string weights_hash{};
  std::int64_t steps_done = 0;   // fewer than the configuration says where the run was stopped
  double validation_loss = 0.0;  // nats per token; 0 where nothing was evaluated
};

struct TrainRank {
  int rank = 0;
  int size = 1;
  Collectives* collectives = nullptr;  // null for one rank
  std::vector<double> speeds{};        // of all ranks of this epoch; empty: equal. divide_micro_batches() takes them
  /// Rank 0's, asked in each step: whether others wait to take part. run() then ends with an error that ends_epoch()
  /// after the step. Null: nobody does.
  std::function<bool()> others_wait{};
};

class RankTrainer {
 public:
  /// A rank that resumes is rank 0: the others receive the state when they run. Errors: those of the configuration, the
  /// data, the model's file, memory; kInvalidArgument naming the key in which a resumed run differs from the saved one.
  static Result<std::unique_ptr<RankTrainer>> create(const RunConfig& config, const TrainRank& rank);
  virtual ~RankTrainer() = default;

  /// Until the last step, a stop or an error. Ranks first agree on the state to go on from. A lost rank is an error
  /// that ends_epoch(); adopt() and run() go on. Errors: those of train_step(), naming the last good checkpoint; kIo
  /// where the last checkpoint or the result cannot be written (those in between are notes).
  virtual Result<TrainResult> run(const TrainObserver& observer, std::stop_token stop) = 0;

  /// Another epoch: another number of ranks. All agree on the last step that one of them has finished, and those behind
  /// receive its state. Errors: those of the collectives and of divide_micro_batches().
  virtual Status adopt(const TrainRank& rank) = 0;

  /// The weights as they are, between runs.
  virtual const ParameterSet& parameters() const = 0;
};

}  // namespace butterfly
