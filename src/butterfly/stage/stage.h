// One node's share of a plan: its blocks, and where the plan says so the embedding or the head, with the key/value
// cache for them. forward() turns a step's input into its output; one call at a time. Owns cache and threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/emulation.h"
#include "butterfly/machine/isa.h"
#include "butterfly/model/block.h"
#include "butterfly/model/config.h"
#include "butterfly/model/ends.h"
#include "butterfly/model/kv_cache.h"
#include "butterfly/model/weights.h"
#include "butterfly/plan/plan.h"
#include "butterfly/stage/stage_parts.h"
#include "butterfly/stage/step.h"

namespace butterfly {

/// What stages have done; read by other threads while they work.
struct StageCounters {
  std::atomic<std::uint64_t> steps{0}, busy_ns{0};
};

struct StageOptions {
  int threads = 1;
  Isa isa = Isa::kReference;
  std::optional<DType> kv_type;       // none: kv_type_for(config)
  DType wire_type = DType::kF32;      // of activations from and to other stages
  std::uint64_t kv_bytes_max = 0;     // 0: no limit
  double emulated_speed = 1.0;        // of a slower machine that this one plays; see Emulation
  StageCounters* counters = nullptr;  // outlives the stage
};

/// Types that activations may travel in: floats as they are, or rounded to halves or to int8 in blocks of 32.
inline bool is_wire_type(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kQ8_0;
}

/// Floats for F32 models, halves for all others: a property of the model, since it shows in the bits.
DType kv_type_for(const ModelConfig& config);

class Stage {
 public:
  /// Takes what `kept` has and leaves there what it loads. Errors: those of StageParts::complete().
  static Result<std::unique_ptr<Stage>> load(const ModelConfig& config, const StageAssignment& assignment,
                                             const WeightSourceFinder& find_source, const StageOptions& options,
                                             StageParts& kept, const std::stop_token& stop = {});
  /// The same for a node that keeps nothing.
  static Result<std::unique_ptr<Stage>> load(const ModelConfig& config, const StageAssignment& assignment,
                                             std::shared_ptr<const WeightSource> source, const StageOptions& options);

  /// Replaces step.tensor: tokens or activations in, activations or logits out. A step without rows only releases.
  /// Errors: kInvalidArgument (token), kNoMemory (cache), kProtocol (a tensor of another size than the batch says).
  Status forward(Step& step);

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
  Stage(const ModelConfig& config, const StageAssignment& assignment, const StageOptions& options);
  Result<Tensor> embed(const Step& step);
  Result<Tensor> take_activations(Step& step);

  Status compute(Step& step);

  ModelConfig config_;
  StageAssignment assignment_;
  StageCounters* counters_;
  Emulation emulation_;
  DType wire_type_;
  const Kernels* kernels_;
  ThreadTeam team_;
  std::shared_ptr<Pool> pool_;
  Arena step_arena_;   // what all blocks of a step share
  Arena block_arena_;  // scratch of one block, reset between blocks
  KvCache cache_;
  std::vector<double> frequencies_;
  std::uint64_t weight_bytes_ = 0;
  std::shared_ptr<const Embedding> embedding_;  // these three also the node's that keeps them
  std::vector<std::shared_ptr<const Block>> blocks_;
  std::shared_ptr<const Head> head_;
};

}  // namespace butterfly
