// A run on one rank: what trainer.h promises. Steps, evaluation and the end are in trainer.cc, what is different where
// ranks hold parts of the state in trainer_shards.cc, how work is divided while it goes on in trainer_balance.cc. Used
// by the thread that trains.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/model/core/parameter_weights.h"
#include "butterfly/train/checkpoint/agreement.h"
#include "butterfly/train/checkpoint/checkpoint_writer.h"
#include "butterfly/train/checkpoint/part_writer.h"
#include "butterfly/train/checkpoint/sharded_save.h"
#include "butterfly/train/gradients/rank_shards.h"
#include "butterfly/train/run/run_parts.h"
#include "butterfly/train/run/trainer.h"
#include "butterfly/train/sharding/speed_watch.h"
#include "butterfly/train/sharding/work_balance.h"

namespace butterfly {

class RunTrainer final : public RankTrainer {
 public:
  explicit RunTrainer(RunParts parts)
      : parts_(std::move(parts)),
        config_(parts_.config),
        transformer_(*parts_.transformer),
        buffers_({.micro_batch = config_.micro_batch,
                  .seq = config_.seq,
                  .micro_batches = config_.global_batch / shared_micro_batch(config_),
                  .stages_max = config_.shape.layers + 1,
                  .expert_counts = transformer_.router_report().tokens.size()}),
        guard_(config_.guard),
        writer_(config_.checkpoint, *parts_.files),
        part_writer_(*parts_.files),
        toml_(to_toml(config_)) {}

  Result<TrainResult> run(const TrainObserver& observer, std::stop_token stop) override;
  Status adopt(const TrainRank& rank) override;
  const ParameterSet& parameters() const override { return transformer_.parameters(); }

  /// Of the state: what this rank holds in the end, or all of it, which others wait for.
  enum class HeldPart : std::uint8_t { kOwn, kAll };

  /// The saved run's state, on the rank that resumes.
  Status restore(HeldPart part);
  HeldPart part_to_read() const;

  /// Behind all others: agree() gives it their state.
  void wait_for_state() { step_ = kNoStep; }

 private:
  Status take_steps(const TrainObserver& observer, const std::stop_token& stop);
  StepWish wish(const std::stop_token& stop) const;
  Status after_step(const TrainObserver& observer, const StepReport& report);
  Status evaluate(const TrainObserver& observer);
  Status sample(const TrainObserver& observer);
  Status save(const TrainObserver& observer);
  void tell(const TrainObserver& observer, const std::optional<SaveOutcome>& outcome);
  RunSummary summarize(const TrainObserver& observer) const;
  Result<double> balance_of_ranks(const StepPhases& phases) const;
  Result<std::vector<RankRow>> rows_of_ranks(const RunSummary& summary) const;
  Result<TrainResult> finish(const TrainObserver& observer);
  Result<std::vector<std::vector<std::string>>> hashes_of_parts();
  void set_last_good(std::int64_t step, const std::string& path);
  Error with_last_good(Error error);
  Error ended_by(Error error);

  /// What all ranks have begun to save, each its part.
  struct Saving {
    RunState state;
    std::string folder;
  };
  struct Holding {
    ShardMap map;
    int rank = 0;
  };
  void keep_part();
  Result<bool> state_is_divided();
  Result<std::vector<int>> old_ranks();
  bool is_newcomer() const { return !before_ || before_->rank == kNewcomer; }
  Status catch_up();
  Status settle(const std::vector<double>& seen);
  Status take_over(const TrainObserver& observer);
  Status finish_last_step(const TrainObserver& observer);
  Status go_back(const TrainObserver& observer, const std::string& why);
  Status begin_again(HeldPart part);
  Status read_back(const std::string& path, HeldPart part);
  Status divide(const TrainRank& rank, const RankWorkShares& work);
  /// Of a step's work, on this rank.
  double share_of_work() const;
  Status take_place(const TrainRank& rank, RankWorkShares work);
  void watch_speeds();
  bool parts_stay() const;
  void balance_work(const TrainObserver& observer, StepContext& step);
  std::vector<double> busy_of_ranks() const;
  Result<bool> all_have_room(const RankWorkShares& work) const;
  Status balance_rounds(const TrainObserver& observer);
  Status note_bubble(TrainResult& result) const;
  Status agree(const TrainObserver& observer);
  void tell_parts(const TrainObserver& observer) const;
  std::size_t arrays_of_a_part() const;
  ShardedSave sharded_save();
  Status save_parts(const TrainObserver& observer);
  Status complete_save(const TrainObserver& observer);
  Status tell_saved(const TrainObserver& observer, std::int64_t step, Result<std::string> path);
  Status write_model();
  /// Every rank has all weights, or rank 0 where none else is to; until release_weights().
  Status gather_weights();
  void release_weights();
  Status share_memory(const TrainObserver& observer);
  RunState state() const;
  Status set_state(const RunState& state);
  std::vector<RunArray> arrays();
  /// What this rank has of a flat array, in bytes.
  std::uint64_t held_bytes() const;
  StepContext context();
  Checkpoint checkpoint() { return trained_checkpoint(transformer_.parameters(), config_.shape, parts_.vocabulary); }
  std::uint64_t allocated_bytes() const;
  bool is_first() const { return rank_.rank == 0; }

  static constexpr std::int64_t kNoStep = -1;
  static constexpr int kNewcomer = -1;  // that had no rank when the state was divided

  RunParts parts_;
  const RunConfig& config_;
  TrainableTransformer& transformer_;
  TrainRank rank_;
  /// Who held what when a rank was lost, until the others have taken over.
  std::optional<Holding> before_;
  std::optional<Holding> moved_;        // what this rank holds besides, with all others that were there to take over
  std::optional<Holding> undivided_;    // what this rank holds if others have begun an epoch that it could not begin
  int takeovers_ = 0;                   // that all ranks have completed, as far as this one knows
  bool going_back_ = false;             // to an earlier step: what was held before is overwritten
  std::unique_ptr<Collectives> alone_;  // of the last rank that is left
  std::unique_ptr<RankShards> shards_;  // null: each rank has all
  std::optional<StagePlace> stage_;     // in a pipeline of several ranks
  bool any_parts_stay_ = false;         // on any rank of this epoch
  struct {
    double exposed_s = 0.0, all_s = 0.0;
  } stage_times_;  // of the steps since stages were divided
  std::unique_ptr<GradientReducer> reducer_;
  RankWorkShares work_;
  MicroBatches share_;
  std::optional<WorkBalance> balance_;  // null: the shares stay as they are, but for what watch_ sees
  std::optional<SpeedWatch> watch_;     // null: the rounds and stages stay as they are
  std::vector<PassMicroBatches> rounds_;
  StepBuffers buffers_;
  OutlierGuard guard_;
  CheckpointWriter writer_;
  PartWriter part_writer_;
  const std::string toml_;
  Residuals saved_residuals_;  // read, not yet given to the ranks

  std::int64_t step_ = 0;  // done
  StepReport last_report_{};
  bool agreed_ = false;         // on the state, in this epoch, or since the work was divided in it
  bool shares_memory_ = false;  // with the ranks of this epoch, as far as they can
  bool stopped_ = false;
  std::int64_t last_saved_ = -1;  // step of the last save, the same on every rank
  std::optional<Saving> saving_;  // likewise
  double validation_loss_ = 0.0;
  std::string last_good_;    // checkpoint
  std::string good_before_;  // the one before it
  std::int64_t last_good_step_ = -1;
  std::optional<Error> save_error_;  // of the last save
  std::optional<Audit> audit_;
  Statistics statistics_;
};

}  // namespace butterfly
