#include "butterfly/model/training/train_memory.h"

#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/machine/usage/memory_check.h"

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

  template <typename T>
  T* of(std::int64_t elements) {
    return reinterpret_cast<T*>(take(elements, sizeof(T)));
  }

  void expert_results(const TrainContext& context, ExpertActivations& a) {
    const ModelConfig& config = *context.config;
    const MoeConfig& moe = config.moe;
    const std::int64_t rows = context.rows();
    const std::int64_t pairs = context.pairs_max();
    a.logits = floats(rows * moe.experts);
    a.experts = of<int>(rows * moe.experts_used);
    a.weights = floats(rows * moe.experts_used);
    a.pair_of = of<int>(rows * moe.experts_used);
    a.row_of = of<int>(pairs);
    a.begin = of<std::int64_t>(2 * std::int64_t{moe.experts} + 1);
    a.mlp.in = floats(pairs * context.mlp_in_dim(moe.ff_dim));
    a.mlp.ff_dim = moe.ff_dim;
    a.out = floats(pairs * config.model_dim);
    if (moe.shared_ff_dim == 0) return;
    a.shared.in = floats(rows * context.mlp_in_dim(moe.shared_ff_dim));
    a.shared.ff_dim = moe.shared_ff_dim;
    a.shared.rows = rows;
    if (!moe.shared_gate) return;
    a.shared_out = floats(rows * config.model_dim);
    a.gate_logits = floats(rows);
  }

  void expert_derived(const TrainContext& context, ExpertActivations& a) {
    const MoeConfig& moe = context.config->moe;
    const std::int64_t rows = context.rows();
    const std::int64_t pairs = context.pairs_max();
    a.gathered = operand(context, pairs * context.config->model_dim);
    a.mlp.hidden = operand(context, pairs * moe.ff_dim);
    if (moe.shared_ff_dim > 0) a.shared.hidden = operand(context, rows * moe.shared_ff_dim);
    if (context.options.fusion.swiglu) return;
    a.mlp.silu = floats(pairs * moe.ff_dim);
    if (moe.shared_ff_dim > 0) a.shared.silu = floats(rows * moe.shared_ff_dim);
  }

 private:
  std::byte* base_;
  std::uint64_t used_ = 0;
};

/// Which kinds of MLP a block's memory is for.
struct TrainMemory::Mlps {
  bool dense = false;
  bool experts = false;
};

/// Kept unless the whole block is computed again: what matmuls and attention made.
void TrainMemory::lay_out_results(const TrainContext& context, const Mlps& mlps, BlockActivations& block,
                                  Layout& layout) {
  const ModelConfig& config = *context.config;
  const std::int64_t rows = context.rows();
  const std::int64_t narrow = rows * config.model_dim;
  // A parallel block goes on from its input.
  if (!config.parallel_block) block.middle = layout.floats(narrow);
  block.attn_norm = layout.statistics(context);
  block.ffn_norm = layout.statistics(context);
  block.attention.qkv = layout.floats(rows * context.qkv_dim());
  if (config.qk_norm != QkNorm::kNone) {
    block.attention.raw = layout.floats(rows * (std::int64_t{config.q_dim()} + config.kv_dim()));
    block.attention.raw_inverse = layout.floats(rows * (std::int64_t{config.heads} + config.kv_heads));
  }
  block.attention.mixed = layout.floats(rows * config.q_dim());
  const std::int64_t matrices = rows * config.heads * context.seq();
  if (context.options.fusion.attention) {
    block.attention.log_sum_exp = layout.floats(rows * config.heads);
  } else {
    block.attention.probabilities = layout.floats(matrices);
    if (config.attention_cap != 0.0f) block.attention.cap_slopes = layout.floats(matrices);
  }
  if (mlps.dense) block.mlp.in = layout.floats(rows * context.ffn_in_dim());
  if (mlps.experts) layout.expert_results(context, block.experts);
  if (!config.norms_outputs()) return;
  block.attention_out = layout.floats(narrow);
  block.ffn_out = layout.floats(narrow);
  block.post_attention_norm = layout.statistics(context);
  block.post_ffw_norm = layout.statistics(context);
}

/// Cheap to compute again from those.
void TrainMemory::lay_out_derived(const TrainContext& context, const Mlps& mlps, BlockActivations& block,
                                  Layout& layout) {
  const ModelConfig& config = *context.config;
  const std::int64_t rows = context.rows();
  const std::int64_t narrow = rows * config.model_dim;
  const bool silu = !context.options.fusion.swiglu && config.mlp == MlpKind::kGated;
  block.attn_normed = layout.operand(context, narrow);
  block.attention.mixed_operand = layout.operand_of(context, block.attention.mixed, rows * config.q_dim());
  block.ffn_normed = config.shared_norm ? block.attn_normed : layout.operand(context, narrow);
  if (mlps.dense) {
    block.mlp.hidden = layout.operand(context, rows * config.ff_dim);
    if (silu) block.mlp.silu = layout.floats(rows * config.ff_dim);
  }
  if (mlps.experts) layout.expert_derived(context, block.experts);
}

void TrainMemory::lay_out_blocks(const TrainContext& context, Layout& own, Layout& shared) {
  const ModelConfig& config = *context.config;
  const Recompute recompute = context.options.recompute;
  const Mlps both{.dense = config.expert_layers() < config.layers, .experts = config.expert_layers() > 0};
  BlockActivations common;
  common.mlp.ff_dim = config.ff_dim;
  common.mlp.rows = context.rows();
  if (recompute == Recompute::kBlock) lay_out_results(context, both, common, shared);
  if (recompute != Recompute::kNone) lay_out_derived(context, both, common, shared);
  const int layers = part_.last_layer - part_.first_layer;
  blocks_.assign(static_cast<std::size_t>(part_.kept * layers), common);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    BlockActivations& block = blocks_[i];
    const int layer = part_.first_layer + static_cast<int>(i) % layers;
    const Mlps mlps{.dense = !config.has_experts(layer), .experts = config.has_experts(layer)};
    block.input = own.floats(context.rows() * config.model_dim);
    if (recompute != Recompute::kBlock) lay_out_results(context, mlps, block, own);
    if (recompute == Recompute::kNone) lay_out_derived(context, mlps, block, own);
    if (recompute == Recompute::kSelective && !context.bf16()) block.attention.mixed_operand = block.attention.mixed;
  }
}

/// Of the layers with experts, all with the same sizes.
void TrainMemory::lay_out_expert_gradients(const TrainContext& context, Layout& shared) {
  const ModelConfig& config = *context.config;
  const MoeConfig& moe = config.moe;
  if (config.expert_layers() == 0) return;
  const std::int64_t rows = context.rows();
  const std::int64_t pairs = context.pairs_max();
  ExpertGradients& g = scratch_.experts;
  g.dout = shared.operand(context, pairs * config.model_dim);
  g.dhidden = shared.floats(pairs * moe.ff_dim);
  g.din = shared.operand(context, pairs * context.mlp_in_dim(moe.ff_dim));
  g.dgathered = shared.floats(pairs * config.model_dim);
  g.dweights = shared.floats(rows * moe.experts_used);
  g.dlogits = shared.floats(rows * moe.experts);
  g.dlogits_operand = shared.operand_of(context, g.dlogits, rows * moe.experts);
  scratch_.balance = shared.floats(std::int64_t{config.layers} * moe.experts);
  if (moe.shared_ff_dim == 0) return;
  g.dshared_hidden = shared.floats(rows * moe.shared_ff_dim);
  g.dshared_in = shared.operand(context, rows * context.mlp_in_dim(moe.shared_ff_dim));
  if (!moe.shared_gate) return;
  g.dshared_out = shared.operand(context, rows * config.model_dim);
  g.dgate = shared.floats(rows);
  g.dgate_operand = shared.operand_of(context, g.dgate, rows);
}

void TrainMemory::lay_out_head(const TrainContext& context, Layout& shared) {
  const std::int64_t narrow = context.rows() * context.config->model_dim;
  TrainScratch& scratch = scratch_;
  scratch.output = shared.floats(narrow);
  scratch.output_norm = shared.statistics(context);
  scratch.output_normed = shared.operand(context, narrow);
  scratch.output_scaled = shared.operand(context, narrow);
  scratch.head_chunk_rows = head_chunk_rows(context);
  const std::int64_t logits = scratch.head_chunk_rows * context.config->vocab;
  scratch.logits = shared.floats(logits);
  scratch.dlogits = shared.operand_of(context, scratch.logits, logits);
  scratch.losses = shared.floats(context.rows());
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
  if (config.expert_layers() < config.layers) scratch.dffn_in = shared.operand(context, rows * context.ffn_in_dim());
  if (config.parallel_block) scratch.branch_of_ffn = shared.floats(narrow);
  if (context.scales_outputs()) {
    scratch.dbranch = shared.floats(narrow);
    scratch.dbranch_operand = shared.operand_of(context, scratch.dbranch, narrow);
  }
  lay_out_expert_gradients(context, shared);
  scratch.attention.dmixed = scratch.wide;
  scratch.attention.dqkv = shared.floats(rows * context.qkv_dim());
  scratch.attention.dqkv_operand = shared.operand_of(context, scratch.attention.dqkv, rows * context.qkv_dim());
  if (!context.options.fusion.attention) {
    scratch.attention.dprobabilities = shared.floats(rows * config.heads * context.seq());
  }
  if (part_.ends) lay_out_head(context, shared);

  context.member_scratch_floats =
      (std::max(pass_scratch_floats(context), attention_scratch_floats(context)) + 15) / 16 * 16;
  context.member_scratch = shared.floats(context.options.threads * context.member_scratch_floats);
  context.partial_sums = shared.floats(context.chunks() * partial_sum_width(context));
}

void TrainMemory::lay_out(TrainContext& context, Layout& own, Layout& shared) {
  lay_out_blocks(context, own, shared);
  lay_out_scratch(context, shared);
}

void TrainMemory::lay_out(TrainContext& context) {
  Layout own(activations_.data()), shared(shared_.data());
  lay_out(context, own, shared);
  BF_CHECK(own.bytes() <= activations_.bytes() && shared.bytes() <= shared_.bytes(), "a smaller micro-batch");
}

std::uint64_t TrainMemory::planned_bytes(TrainContext context, const ModelPart& part) {
  TrainMemory memory;
  memory.part_ = part;
  Layout own(nullptr), shared(nullptr);
  memory.lay_out(context, own, shared);
  return own.bytes() + shared.bytes();
}

Result<TrainMemory> TrainMemory::create(TrainContext& context, const ModelPart& part) {
  TrainMemory memory;
  memory.part_ = part;
  // Twice: once to learn the sizes, once to give out addresses.
  for (const bool counting : {true, false}) {
    Layout own(memory.activations_.data());
    Layout shared(memory.shared_.data());
    memory.lay_out(context, own, shared);
    if (!counting) break;
    BF_TRY(check_memory(own.bytes() + shared.bytes(), "activations and scratch memory"));
    BF_ASSIGN_OR_RETURN(memory.activations_, AlignedBuffer::create(own.bytes()));
    BF_ASSIGN_OR_RETURN(memory.shared_, AlignedBuffer::create(shared.bytes()));
    memory.activations_held_ = trace::Held(trace::Owner::kActivations, own.bytes());
    memory.shared_held_ = trace::Held(trace::Owner::kBuffers, shared.bytes());
    // Every page is here before the first step, which then takes as long as the others.
    std::memset(memory.activations_.data(), 0, memory.activations_.bytes());
    std::memset(memory.shared_.data(), 0, memory.shared_.bytes());
  }
  return memory;
}

}  // namespace butterfly
