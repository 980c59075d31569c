// One training step on one rank. train_step() is the story; what it calls is in this module and below. Used by the
// thread that trains.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/training/trainable_transformer.h"
#include "butterfly/plan/cost/micro_batch_shares.h"
#include "butterfly/plan/pipeline/schedule.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/data/dataset.h"
#include "butterfly/train/gradients/guard.h"
#include "butterfly/train/gradients/reducer.h"
#include "butterfly/train/sharding/sharded_weights.h"
#include "butterfly/train/sharding/share_numbers.h"
#include "butterfly/train/step/optimizer.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// Seconds in the phases of a step, whose spans trace has: both come from the same looks at the clock.
struct StepPhases {
  double data_s = 0.0, forward_s = 0.0, backward_s = 0.0;
  double communication_exposed_s = 0.0;  // the gradients' sum, as far as the backward pass does not hide it
  double optimizer_s = 0.0;              // norm, guard and update
  double total_s = 0.0;                  // from the first look at the clock to the last, whatever was seen between
};

struct StepReport {
  std::int64_t step = 0;  // from 0
  double loss = 0.0;      // mean over the step's tokens, all ranks; nats
  double gradient_norm = 0.0;
  double rate = 0.0;
  bool left_out = false;  // by the guard: no update
  bool stop = false;      // a rank wants this step to be the last
  bool regroup = false;   // others wait to take part: the epoch ends with this step
  bool saving = false;    // some rank has not written its part of a checkpoint yet
  std::int64_t tokens = 0;
  double router_aux_loss = 0.0;  // mean of the micro-batches' load-balance losses, without its coefficient
  /// By layer, then by expert: tokens that went through it in this step, on all ranks. Empty without experts.
  std::vector<std::int64_t> expert_tokens{};
  int experts = 0;  // of each layer that has some
  StepPhases phases{};
  ReduceReport reduced{};
};

/// How evenly the tokens of a step went through the experts.
struct ExpertLoad {
  double largest_over_mean = 0.0;  // tokens of a layer's busiest expert over the mean, of the worst layer; 1: even
  int unused = 0;                  // experts without a token, over all layers
};
ExpertLoad expert_load(const StepReport& report);

struct StepSizes {
  int micro_batch = 1;            // sequences
  int seq = 1;                    // tokens of each
  int micro_batches = 1;          // of a step
  int stages_max = 0;             // of a pipeline
  std::size_t expert_counts = 0;  // of RouterReport::tokens
};

/// Memory that steps reuse.
struct StepBuffers {
  explicit StepBuffers(const StepSizes& sizes)
      : StepBuffers(sizes, static_cast<std::size_t>(sizes.micro_batches),
                    static_cast<std::size_t>(std::max(sizes.micro_batches, sizes.stages_max))) {}
  StepBuffers(const StepBuffers&) = delete;
  StepBuffers& operator=(const StepBuffers&) = delete;

  std::int64_t summed_step = -1;         // the last whose gradients are summed here, and at this rank's mirrors
  std::vector<TokenId> tokens, targets;  // [sequences, seq] of a pass
  static constexpr std::size_t kWishes = 3;
  std::vector<double> numbers;       // what ranks share: the following, then a number for each wish
  std::span<double> losses;          // of each micro-batch of the step; of several in one pass at the first
  std::span<double> balance_losses;  // likewise
  std::span<double> pass_s;          // likewise: of its forward and backward pass; in a pipeline all of each stage
  std::span<double> expert_tokens;   // sums over micro-batches

 private:
  StepBuffers(const StepSizes& sizes, std::size_t micro_batches, std::size_t times)
      : tokens(static_cast<std::size_t>(sizes.micro_batch) * static_cast<std::size_t>(sizes.seq)),
        targets(tokens.size()),
        numbers(2 * micro_batches + times + sizes.expert_counts + kWishes),
        losses(std::span(numbers).first(micro_batches)),
        balance_losses(std::span(numbers).subspan(micro_batches, micro_batches)),
        pass_s(std::span(numbers).subspan(2 * micro_batches, times)),
        expert_tokens(std::span(numbers).subspan(2 * micro_batches + times, sizes.expert_counts)) {}
};

/// A rank's place in a pipeline.
struct StagePlace {
  int stage = 0, stages = 1;
  std::vector<int> ranks{};       // of the stages
  std::vector<StagePass> step{};  // what it does in one
  int kept = 1;                   // micro-batches of which it has activations at once
  bool is_last() const { return stage == stages - 1; }
  int rank_of(int other_stage) const { return ranks[static_cast<std::size_t>(other_stage)]; }
};

/// What a step works on; borrowed.
struct StepContext {
  const RunConfig& config;
  TrainableTransformer& transformer;
  const Dataset& data;
  GradientReducer& reducer;
  Optimizer& optimizer;
  OutlierGuard& guard;
  StepBuffers& buffers;
  Collectives* collectives = nullptr;  // null for one rank
  MicroBatches share{};
  std::vector<PassMicroBatches> rounds{};  // this rank's in each
  const StagePlace* stages = nullptr;      // null: all layers are computed here
  ShardedWeights* weights = nullptr;       // null: every rank has all of them
  int micro_batch = 1;                     // sequences: shared_micro_batch() of the run
};

std::int64_t tokens_of_step(const StepContext& context);

/// Into buffers.tokens and targets. Micro-batch m of a step holds its sequences [m micro_batch, (m + 1) micro_batch),
/// whichever rank computes it.
void read_batch(StepContext& context, std::int64_t step, PassMicroBatches micro_batches);

/// Of the loss of each token: a step's is their mean.
float loss_scale(const StepContext& context);

/// The loss of a forward pass, and what its routers did.
void note_forward(StepContext& context, int micro_batch, double loss);

/// What shall follow the step, as this rank wants it: the next one, the end of the run, or another epoch, since others
/// wait to take part. All ranks learn of it, where one of them wishes it, after the same step.
struct StepWish {
  bool stop = false;
  bool regroup = false;
  bool saving = false;  // it has not written its part of a checkpoint yet
};

/// Errors: those of the transformer, the reducer and the collectives; kInvalidArgument naming loss and norm where one
/// is not finite. Then neither weights nor moments have changed.
Result<StepReport> train_step(StepContext& context, std::int64_t step, StepWish wish);

/// The end of a step whose gradients are summed: the guard's verdict on `report`'s loss and norm, and the update.
void end_step(StepContext& context, StepReport& report);

}  // namespace butterfly
