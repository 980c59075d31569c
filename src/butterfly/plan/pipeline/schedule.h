// What each stage of a pipeline does in a training step, and in which order: one forward, one backward (1F1B,
// https://arxiv.org/abs/1806.03377, without its old weights: the step ends with all micro-batches). The last stage has
// the head, and the embedding too, which may be the same weights: it embeds for the first stage, ahead of it, and takes
// back the gradients that the first stage leaves. Runs follow it, and predictions simulate it. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace butterfly {

/// kForward and kBackward of the last stage have the head in them.
enum class StagePassKind : std::uint8_t { kEmbed, kForward, kBackward, kEmbedBackward };

struct StagePass {
  StagePassKind kind = StagePassKind::kForward;
  int micro_batch = 0;
  friend bool operator==(const StagePass&, const StagePass&) = default;
};

/// Micro-batches by which a stage is ahead of what 1F1B needs: what keeps the next one busy while this one, or what it
/// waits for, is late.
inline constexpr int kMicroBatchesAhead = 1;

/// Micro-batches whose activations stage s of S keeps at once: S - s + kMicroBatchesAhead, the last one 1; all where
/// there are fewer.
int kept_micro_batches(int stage, int stages, int micro_batches);

/// Of several stages; a single one embeds within its passes.
std::vector<StagePass> pipeline_schedule(int stage, int stages, int micro_batches);

/// Forward passes alone, for an evaluation.
std::vector<StagePass> forward_schedule(int stage, int stages, int micro_batches);

/// Of one micro-batch. Embedding is the last stage's.
struct StageTimes {
  double forward_s = 0.0, backward_s = 0.0;
  double to_next_s = 0.0;  // until what the stage sends to either side has arrived
};

struct PipelineTimes {
  double step_s = 0.0;            // until the last pass of a step
  std::vector<double> waits_s{};  // of each stage, in it
  double bubble = 0.0;            // the waits' share of the stages' time; (S - 1) / (M + S - 1) for equal stages
};

/// The schedule event by event.
PipelineTimes simulate_pipeline(std::span<const StageTimes> stages, int micro_batches);

}  // namespace butterfly
