#include "butterfly/model/training/train_memory.h"

#include <cstring>

#include "butterfly/model/core/memory_check.h"

namespace butterfly {
namespace {

std::int64_t head_chunk_rows(const TrainContext& context) {
  const std::int64_t row_bytes = std::int64_t{context.config->vocab} * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t fitting = context.options.logits_bytes_max / row_bytes / kGradientChunkRows * kGradientChunkRows;
  return std::min(context.rows(), std::max<std::int64_t>(kGradientChunkRows, fitting));
}

}  // namespace

/// Hands out 64-byte aligned pieces of a buffer; without one it only counts.
class TrainMemory::Layout {
 public:
  explicit Layout(std::byte* base) : base_(base) {}
  std::uint64_t bytes() const { return used_; }

  std::byte* take(std::int64_t elements, std::size_t element_bytes) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<std::uint64_t>(elements) * element_bytes + 63) / 64 * 64;
    return piece;
  }
  float* floats(std::int64_t elements) { return reinterpret_cast<float*>(take(elements, sizeof(float))); }
  void* operand(const TrainContext& context, std::int64_t elements) { return take(elements, context.operand_bytes()); }
  /// bf16 beside `same`, or `same` itself.
  void* operand_of(const TrainContext& context, float* same, std::int64_t elements) {
    return context.bf16() ? take(elements, 2) : static_cast<void*>(same);
  }
  NormStatistics statistics(const TrainContext& context) {
    NormStatistics statistics;
    statistics.inverse = floats(context.rows());
    if (context.config->norm == NormKind::kLayer) statistics.mean = floats(context.rows());
    return statistics;
  }

 private:
  std::byte* base_;
  std::uint64_t used_ = 0;
};

void TrainMemory::lay_out_blocks(const TrainContext& context, Layout& own, Layout& shared) {
  const ModelConfig& config = *context.config;
  const std::int64_t rows = context.rows();
  const std::int64_t narrow = rows * config.model_dim;
  const Fusion& fusion = context.options.fusion;

  const auto inputs = [&](BlockActivations& block, Layout& layout) { block.input = layout.floats(narrow); };
  // Kept unless the whole block is computed again: what matmuls and attention made.
  const auto results = [&](BlockActivations& block, Layout& layout) {
    block.middle = layout.floats(narrow);
    block.attn_norm = layout.statistics(context);
    block.ffn_norm = layout.statistics(context);
    block.attention.qkv = layout.floats(rows * context.qkv_dim());
    block.attention.mixed = layout.floats(rows * config.q_dim());
    if (fusion.attention) {
      block.attention.log_sum_exp = layout.floats(rows * config.heads);
    } else {
      block.attention.probabilities = layout.floats(rows * config.heads * context.seq());
    }
    block.mlp.in = layout.floats(rows * context.ffn_in_dim());
  };
  // Cheap to compute again from those.
  const auto derived = [&](BlockActivations& block, Layout& layout) {
    block.attn_normed = layout.operand(context, narrow);
    block.attention.mixed_operand = layout.operand_of(context, block.attention.mixed, rows * config.q_dim());
    block.ffn_normed = layout.operand(context, narrow);
    block.mlp.hidden = layout.operand(context, rows * config.ff_dim);
    if (!fusion.swiglu && config.mlp == MlpKind::kGated) block.mlp.silu = layout.floats(rows * config.ff_dim);
  };

  const Recompute recompute = context.options.recompute;
  BlockActivations common;
  if (recompute == Recompute::kBlock) results(common, shared);
  if (recompute != Recompute::kNone) derived(common, shared);
  blocks_.assign(static_cast<std::size_t>(config.layers), common);
  for (BlockActivations& block : blocks_) {
    inputs(block, own);
    if (recompute != Recompute::kBlock) results(block, own);
    if (recompute == Recompute::kNone) derived(block, own);
    if (recompute == Recompute::kSelective && !context.bf16()) block.attention.mixed_operand = block.attention.mixed;
  }
}

void TrainMemory::lay_out_scratch(TrainContext& context, Layout& shared) {
  const ModelConfig& config = *context.config;
  const std::int64_t rows = context.rows();
  const std::int64_t narrow = rows * config.model_dim;
  TrainScratch& scratch = scratch_;
  scratch.branch = shared.floats(narrow);
  scratch.wide = shared.floats(rows * std::max(config.q_dim(), config.ff_dim));
  scratch.dx = shared.floats(narrow);
  scratch.dx_operand = shared.operand_of(context, scratch.dx, narrow);
  scratch.dffn_in = shared.operand(context, rows * context.ffn_in_dim());
  scratch.attention.dmixed = scratch.wide;
  scratch.attention.dqkv = shared.floats(rows * context.qkv_dim());
  scratch.attention.dqkv_operand = shared.operand_of(context, scratch.attention.dqkv, rows * context.qkv_dim());
  if (!context.options.fusion.attention) {
    scratch.attention.dprobabilities = shared.floats(rows * config.heads * context.seq());
  }
  scratch.output = shared.floats(narrow);
  scratch.output_norm = shared.statistics(context);
  scratch.output_normed = shared.operand(context, narrow);
  scratch.output_scaled = shared.operand(context, narrow);
  scratch.head_chunk_rows = head_chunk_rows(context);
  const std::int64_t logits = scratch.head_chunk_rows * config.vocab;
  scratch.logits = shared.floats(logits);
  scratch.dlogits = shared.operand_of(context, scratch.logits, logits);
  scratch.losses = shared.floats(rows);

  context.member_scratch_floats =
      (std::max(pass_scratch_floats(context), attention_scratch_floats(context)) + 15) / 16 * 16;
  context.member_scratch = shared.floats(context.team->size() * context.member_scratch_floats);
  context.partial_sums = shared.floats(context.chunks() * partial_sum_width(context));
}

Result<TrainMemory> TrainMemory::create(TrainContext& context) {
  TrainMemory memory;
  // Twice: once to learn the sizes, once to give out addresses.
  for (const bool counting : {true, false}) {
    Layout own(memory.activations_.data());
    Layout shared(memory.shared_.data());
    memory.lay_out_blocks(context, own, shared);
    memory.lay_out_scratch(context, shared);
    if (!counting) break;
    BF_TRY(check_memory(own.bytes() + shared.bytes(), "activations and scratch memory"));
    BF_ASSIGN_OR_RETURN(memory.activations_, AlignedBuffer::create(own.bytes()));
    BF_ASSIGN_OR_RETURN(memory.shared_, AlignedBuffer::create(shared.bytes()));
    // Every page is here before the first step, which then takes as long as the others.
    std::memset(memory.activations_.data(), 0, memory.activations_.bytes());
    std::memset(memory.shared_.data(), 0, memory.shared_.bytes());
  }
  return memory;
}

}  // namespace butterfly
