// One node's share of a plan: its blocks, and where the plan says so the embedding or the head, with the key/value
// cache for them. forward() turns a step's input into its output, and that is all it does; what a node does around it
// is PacedStage's. One call at a time. Owns its cache; its threads may be those of other stages, too.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/isa.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/model/inference/block.h"
#include "butterfly/model/inference/embedding.h"
#include "butterfly/model/inference/kv_cache.h"
#include "butterfly/model/inference/tensor_group.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/stage/stage_parts.h"
#include "butterfly/stage/stage_step.h"
#include "butterfly/wire/exchange/exchange.h"

namespace butterfly {

struct StageOptions {
  int threads = 1;
  std::shared_ptr<ThreadTeam> team{};  // of all stages of a node; null: this one has `threads` threads of its own
  Isa isa = Isa::kReference;
  std::optional<DType> kv_type{};  // none: kv_type_for(config)
  DType wire_type = DType::kF32;   // of activations from and to other stages
  std::uint64_t kv_bytes_max = 0;  // 0: no limit
};

/// Floats for F32 models, halves for all others, unless one is asked for: it shows in the bits.
DType kv_type_for(const ModelConfig& config);

class Stage {
 public:
  /// Takes what `kept` has and leaves there what it loads. Errors: those of StageParts::complete().
  static Result<std::unique_ptr<Stage>> load(const ModelConfig& config, const StageAssignment& assignment,
                                             const WeightSourceFinder& find_source, const StageOptions& options,
                                             StageParts& kept, const LoadOptions& loading = {});
  /// The same for a node that keeps nothing.
  static Result<std::unique_ptr<Stage>> load(const ModelConfig& config, const StageAssignment& assignment,
                                             std::shared_ptr<const WeightSource> source, const StageOptions& options,
                                             const LoadOptions& loading = {});

  /// For an assignment of some slices: meets the others that compute the same layers. Collective; each member's rank in
  /// `exchange` is the place of its slices. Once per stage, before the first step; `exchange` outlives its use.
  /// Errors: those of the exchange; kProtocol where the members are not one group: slices that do not follow each
  /// other, other layers, another cache type.
  Status join(Exchange& exchange);

  /// Replaces step.tensor: tokens or activations in, activations or what the model gives out. A step without rows only
  /// releases. All members of a group are given the same steps in the same order; the result is at the one that
  /// leads(), the others' tensor is empty. Exchanges: one to begin, two a block (in two halves where rows are many),
  /// one for logits. Errors: kInvalidArgument (token), kNoMemory (cache), kProtocol (a tensor of another size than the
  /// batch says, or slices without a group), at all members alike. An error in the middle of a step ends the group: see
  /// broken().
  Status forward(Step& step);

  /// Called at the end of every step, as a part of it: a machine that plays a slower one is not done yet.
  void set_pace(std::function<void()> pace) { pace_ = std::move(pace); }

  /// In the middle of a step, or of a trial: the others wait for what will not come.
  void leave_group();

  /// True for the member whose results count: the one with the first slices, or all of them.
  bool leads() const { return !group_ || group_->rank() == 0; }

  /// True once a member of the group is gone or fell out of step: no step succeeds any more.
  bool broken() const { return broken_; }

  const ModelConfig& config() const { return config_; }
  const StageAssignment& assignment() const { return assignment_; }
  /// Buffers for incoming steps, from this stage's pool.
  PayloadAllocator payload_allocator() const;
  /// Packed weights, and what the cache and the scratch memory hold now.
  std::uint64_t weight_bytes() const { return weight_bytes_; }
  std::uint64_t memory_bytes() const;
  DType wire_type() const { return wire_type_; }
  const Kernels& kernels() const { return *kernels_; }
  /// A tensor from this stage's pool. Errors: kNoMemory.
  Result<Tensor> allocate(DType type, const Shape& shape) const { return Tensor::allocate(*pool_, type, shape); }
  StepLimits limits() const { return {.context = config_.context}; }

 private:
  friend class StageTrial;
  Stage(const ModelConfig& config, const StageAssignment& assignment, const StageOptions& options);
  Result<std::vector<TokenId>> tokens_of(const Step& step) const;
  Status check_activations(const Step& step) const;
  Result<Tensor> first_activations(Step& step, std::span<const TokenId> tokens);
  Result<Tensor> begin(Step& step);
  Status compute(Step& step);
  Status run_blocks(const Batch& batch, Tensor& x);
  Result<Tensor> finish(const Batch& batch, Tensor x);
  tl::unexpected<Error> leave_group_with(const Error& error);
  Compute compute_with(Arena& arena) { return {kernels_, team_.get(), &arena, group_ ? &*group_ : nullptr}; }

  ModelConfig config_;
  StageAssignment assignment_;
  DType wire_type_;
  const Kernels* kernels_;
  const std::shared_ptr<ThreadTeam> team_;  // shared by the stages of a node
  std::shared_ptr<Pool> pool_;
  Arena step_arena_;   // what all blocks of a step share
  Arena block_arena_;  // scratch of one block, reset between blocks
  KvCache cache_;
  std::vector<double> frequencies_;
  std::uint64_t weight_bytes_ = 0;
  Exchange* exchange_ = nullptr;
  std::optional<TensorGroup> group_;
  bool broken_ = false;
  std::function<void()> pace_;
  std::shared_ptr<const Embedding> embedding_;  // these three also the node's that keeps them
  std::vector<std::shared_ptr<const Block>> blocks_;
  std::shared_ptr<const Head> head_;
};

/// Blocks of a stage at work without a step, for those that measure; of a sequence that no step has. Nothing is left of
/// it but memory that steps use again.
class StageTrial {
 public:
  StageTrial(Stage& stage, int rows_max);
  ~StageTrial() { stage_.cache_.release(kSpare); }
  StageTrial(const StageTrial&) = delete;
  StageTrial& operator=(const StageTrial&) = delete;

  /// Whether there are blocks and memory for them.
  bool ready() const { return room_ && x_ && !stage_.blocks_.empty(); }

  /// The next block, as in a step: weights that no cache holds. Errors: those of a step.
  Status block(int rows);

 private:
  static constexpr SequenceId kSpare{std::numeric_limits<std::int32_t>::max()};

  Stage& stage_;
  const Status room_;
  Result<Tensor> x_;
  std::size_t layer_ = 0;
};

}  // namespace butterfly
