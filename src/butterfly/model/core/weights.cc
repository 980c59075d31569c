#include "butterfly/model/core/weights.h"

#include "butterfly/model/core/shard.h"
#include "butterfly/tensor/sub_blocks.h"

namespace butterfly {
namespace {

/// Collects names, shapes and parts in file order.
class Expectation {
 public:
  Expectation(const ModelConfig& config, const HeldSlices& slices)
      : config_(config), shard_(shard_of(config, slices)) {}

  const Shard& shard() const { return shard_; }

  void matrix(const std::string& name, const WeightPart& part) {
    // Rows that no block of 32 divides are stored unquantised; the file's own type is what counts.
    const DType type =
        row_bytes(config_.weight_type, static_cast<std::uint64_t>(part.cols)) ? config_.weight_type : DType::kF16;
    add(name, type, part);
  }
  /// All of a small matrix, in float.
  void fine_matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    add(name, DType::kF32, WeightPart::all(rows, cols));
  }
  void vector(const std::string& name, std::int64_t cols, const IndexRange& held) {
    add(name, DType::kF32, {.rows = 1, .cols = cols, .of_rows = {0, 1}, .of_cols = held});
  }

  void norm(const std::string& name) { norm(name, config_.model_dim); }
  void norm(const std::string& name, std::int64_t width) {
    const IndexRange all{0, width};
    vector(name + ".weight", width, all);
    if (config_.norm_bias) vector(name + ".bias", width, all);
  }

  /// [outputs, model_dim], divided along its outputs.
  void rows(const std::string& name, std::int64_t outputs, const IndexRange& held, bool bias) {
    matrix(name + ".weight", {outputs, config_.model_dim, held, {0, config_.model_dim}});
    if (bias) vector(name + ".bias", outputs, held);
  }
  /// [model_dim, inputs], divided along its inputs; everybody adds the whole bias.
  void cols(const std::string& name, std::int64_t inputs, const IndexRange& held, bool bias) {
    const IndexRange all{0, config_.model_dim};
    matrix(name + ".weight", {config_.model_dim, inputs, all, held});
    if (bias) vector(name + ".bias", config_.model_dim, all);
  }

  std::vector<ExpectedPart> take() { return std::move(parts_); }

 private:
  void add(const std::string& name, DType type, const WeightPart& part) {
    if (part.empty()) return;
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(part.rows) * *row_bytes(type, static_cast<std::uint64_t>(part.cols));
    const WeightInfo whole{.name = name, .type = type, .rows = part.rows, .cols = part.cols, .bytes = bytes};
    parts_.push_back({.whole = whole, .part = part});
  }

  const ModelConfig& config_;
  const Shard shard_;
  std::vector<ExpectedPart> parts_;
};

void expect_latent(Expectation& expect, const ModelConfig& config, const std::string& block) {
  const Shard& held = expect.shard();
  const std::int64_t dim = config.latent.dim;
  const std::int64_t rank = config.latent.query_rank;
  const std::int64_t plain = config.head_dim - config.rope.dim;
  const auto of_heads = [&](std::int64_t rows) { return IndexRange{held.heads.begin * rows, held.heads.end * rows}; };
  const auto wanted = [&](std::int64_t size) { return IndexRange{0, held.heads.size() > 0 ? size : 0}; };
  if (rank > 0) {
    expect.rows(block + "attn_q_a", rank, wanted(rank), false);
    expect.vector(block + "attn_q_a_norm.weight", rank, {0, rank});
    expect.matrix(block + "attn_q_b.weight", {config.q_dim(), rank, held.q_rows, {0, rank}});
  } else {
    expect.rows(block + "attn_q", config.q_dim(), held.q_rows, false);
  }
  expect.rows(block + "attn_kv_a_mqa", config.cached_key_dim(), held.k_rows, false);
  expect.vector(block + "attn_kv_a_norm.weight", dim, {0, dim});
  expect.matrix(block + "attn_k_b.weight", {config.heads * dim, plain, of_heads(dim), {0, plain}});
  const std::int64_t values = config.latent.value_dim;
  expect.matrix(block + "attn_v_b.weight", {config.heads * values, dim, of_heads(values), {0, dim}});
}

void expect_experts(Expectation& expect, const ModelConfig& config, const std::string& block) {
  const MoeConfig& moe = config.moe;
  const Shard& held = expect.shard();
  expect.fine_matrix(block + "ffn_gate_inp.weight", moe.experts, config.model_dim);
  if (moe.router_bias) expect.vector(block + "ffn_gate_inp.bias", moe.experts, {0, moe.experts});
  if (moe.choice_bias) expect.vector(block + "exp_probs_b.bias", moe.experts, {0, moe.experts});
  const IndexRange all{0, moe.ff_dim};
  for (const char* kind : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
    for (std::int64_t expert = held.experts.begin; expert < held.experts.end; ++expert) {
      const std::string name = block + kind + "." + std::to_string(expert);
      if (std::string_view(kind) == "ffn_down_exps") {
        expect.cols(name, moe.ff_dim, all, moe.expert_bias);
      } else {
        expect.rows(name, moe.ff_dim, all, moe.expert_bias);
      }
    }
  }
  if (moe.shared_ff_dim == 0) return;
  if (moe.shared_gate) expect.vector(block + "ffn_gate_inp_shexp.weight", config.model_dim, {0, config.model_dim});
  expect.rows(block + "ffn_gate_shexp", moe.shared_ff_dim, held.shared_ff, false);
  expect.rows(block + "ffn_up_shexp", moe.shared_ff_dim, held.shared_ff, false);
  expect.cols(block + "ffn_down_shexp", moe.shared_ff_dim, held.shared_ff, false);
}

/// What only encoders have, and decoders behind one.
void expect_encoder(Expectation& expect, const ModelConfig& config, const std::string& block, int layer) {
  const Shard& held = expect.shard();
  if (config.relative.buckets > 0 && held.heads.size() > 0) {
    expect.fine_matrix(block + "attn_rel_b.weight", config.relative.buckets, config.heads);
  }
  if (config.has_decoder() && layer == config.encoder_layers - 1) expect.norm(block + "encoder_norm");
  if (!config.has_cross_attention(layer)) return;
  expect.norm(block + "cross_attn_norm");
  expect.rows(block + "cross_attn_q", config.q_dim(), held.q(), config.qkv_bias);
  expect.rows(block + "cross_attn_k", config.kv_dim(), held.kv(), config.qkv_bias);
  expect.rows(block + "cross_attn_v", config.kv_dim(), held.kv(), config.qkv_bias);
  expect.cols(block + "cross_attn_output", config.mixed_dim(), held.mixed(), config.attention_output_bias);
}

void expect_block(Expectation& expect, const ModelConfig& config, int layer) {
  const std::string block = "blk." + std::to_string(config.weight_layer(layer)) + ".";
  const Shard& held = expect.shard();
  const bool input_norms = config.norm_place != NormPlace::kOutput;
  if (config.has_attention_norm(layer)) expect.norm(block + "attn_norm");
  if (config.has_latent()) {
    expect_latent(expect, config, block);
  } else {
    expect.rows(block + "attn_q", config.q_dim(), held.q_rows, config.qkv_bias);
    expect.rows(block + "attn_k", config.kv_dim(), held.k_rows, config.qkv_bias);
    expect.rows(block + "attn_v", config.kv_dim(), held.kv(), config.qkv_bias);
  }
  expect.cols(block + "attn_output", config.mixed_dim(), held.mixed(), config.attention_output_bias);
  if (config.attention_sinks) expect.vector(block + "attn_sinks.weight", config.heads, held.heads);
  if (config.qk_norm != QkNorm::kNone) {
    const bool head = config.qk_norm == QkNorm::kHead;
    const std::int64_t q_width = head ? config.head_dim : config.q_dim();
    const std::int64_t k_width = head ? config.head_dim : config.kv_dim();
    expect.vector(block + "attn_q_norm.weight", q_width, {0, q_width});
    expect.vector(block + "attn_k_norm.weight", k_width, {0, k_width});
  }
  if (config.norms_outputs()) expect.norm(block + "post_attention_norm");
  if (input_norms && !config.shared_norm) expect.norm(block + "ffn_norm");
  if (config.has_experts(layer)) {
    expect_experts(expect, config, block);
  } else {
    if (config.mlp == MlpKind::kGated) expect.rows(block + "ffn_gate", config.ff_dim, held.ff, config.mlp_bias);
    expect.rows(block + "ffn_up", config.ff_dim, held.ff, config.mlp_bias);
    expect.cols(block + "ffn_down", config.ff_dim, held.ff, config.mlp_bias);
  }
  if (config.norms_outputs()) expect.norm(block + "post_ffw_norm");
  expect_encoder(expect, config, block, layer);
}

/// Beside the tables of tokens and positions.
void expect_embedding(Expectation& expect, const ModelConfig& config) {
  if (config.position == PositionKind::kLearned) {
    expect.matrix("position_embd.weight", WeightPart::all(config.context, config.table_dim()));
  }
  if (config.token_types > 0) expect.fine_matrix("token_types.weight", config.token_types, config.table_dim());
  if (config.embedding_norm) expect.norm("token_embd_norm", config.table_dim());
  if (config.embedding_dim == 0) return;
  expect.matrix("token_embd_proj.weight", WeightPart::all(config.model_dim, config.embedding_dim));
  expect.vector("token_embd_proj.bias", config.model_dim, {0, config.model_dim});
}

void expect_head(Expectation& expect, const ModelConfig& config, const WeightPart& table) {
  if (config.norm_place != NormPlace::kAfter) expect.norm("output_norm");
  if (config.output == OutputKind::kHidden) return;
  if (config.head_transform) {
    const std::int64_t width = config.table_dim();
    expect.matrix("output_dense.weight", WeightPart::all(width, config.model_dim));
    if (config.head_transform_bias) expect.vector("output_dense.bias", width, {0, width});
    expect.norm("output_dense_norm", width);
  }
  if (!config.tied_head) expect.matrix("output.weight", table);
  if (config.head_bias) expect.vector("output.bias", config.vocab, expect.shard().vocab);
}

Status check_shape(const WeightSource& source, const WeightInfo& stored, std::int64_t rows, std::int64_t cols) {
  if (stored.rows == rows && stored.cols == cols) return {};
  return make_error(ErrorCode::kBadData, "{}: {} is {} x {}, the model's configuration says {} x {} (rows x columns)",
                    source.description(), stored.name, stored.rows, stored.cols, rows, cols);
}

bool lies_within(const IndexRange& range, std::int64_t size) {
  return range.begin >= 0 && range.begin < range.end && range.end <= size;
}

}  // namespace

std::optional<PackedMatrix> WeightSource::find_packed(const std::string&, const WeightPart&) const {
  return std::nullopt;
}
void WeightSource::was_packed(const std::string&, const WeightPart&, const PackedMatrix&) const {}
void WeightSource::read_behind(const WeightView&) const {}
void WeightSource::release(const WeightView&) const {}

namespace {

/// Columns whose borders lie within blocks of the stored type, in the type that they are computed as.
WeightView re_expressed(const WeightView& view, const IndexRange& of_rows, const IndexRange& of_cols) {
  const DType type = computing_type(view.type);
  const std::uint64_t stored = *row_bytes(view.type, static_cast<std::uint64_t>(view.cols));
  const std::uint64_t step = view.stride == 0 ? stored : view.stride;
  const std::uint64_t wide = *row_bytes(type, static_cast<std::uint64_t>(of_cols.size()));
  const auto memory = std::make_shared<std::vector<std::byte>>(wide * static_cast<std::uint64_t>(of_rows.size()));
  for (std::int64_t row = of_rows.begin; row < of_rows.end; ++row) {
    to_computing_type(view.type, view.bytes.subspan(static_cast<std::uint64_t>(row) * step, stored), of_cols,
                      MutableByteSpan(*memory).subspan(static_cast<std::uint64_t>(row - of_rows.begin) * wide, wide));
  }
  return {type, of_rows.size(), of_cols.size(), *memory, memory};
}

}  // namespace

WeightView WeightView::cut(const IndexRange& of_rows, const IndexRange& of_cols) const {
  const int block = block_elements(type);
  if (of_cols.begin % block != 0 || of_cols.end % block != 0) return re_expressed(*this, of_rows, of_cols);
  const MatrixView part = matrix().part(of_rows, of_cols);
  const bool touching = part.rows == 1 || (stride == 0 && part.cols == cols);
  return {type, part.rows, part.cols, part.bytes, owner, touching ? 0 : part.stride};
}

Result<WeightView> WeightSource::find_part(const std::string& name, const WeightPart& part) const {
  BF_ASSIGN_OR_RETURN(const WeightView view, find_checked(*this, {.name = name, .rows = part.rows, .cols = part.cols}));
  BF_TRY(check_part(*this, {.name = name, .type = view.type, .rows = view.rows, .cols = view.cols}, part));
  return view.cut(part.of_rows, part.of_cols);
}

Status check_part(const WeightSource& source, const WeightInfo& stored, const WeightPart& part) {
  BF_TRY(check_shape(source, stored, part.rows, part.cols));
  const auto refuse = [&](const char* what, const IndexRange& wanted, std::int64_t size) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {} has {} 0 to {}, {} to {} were asked for",
                      source.description(), stored.name, what, size, wanted.begin, wanted.end);
  };
  if (!lies_within(part.of_rows, stored.rows)) return refuse("rows", part.of_rows, stored.rows);
  if (!lies_within(part.of_cols, stored.cols)) return refuse("columns", part.of_cols, stored.cols);
  const int block = block_elements(computing_type(stored.type));
  if (part.of_cols.begin % block != 0 || part.of_cols.end % block != 0) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {} has blocks of {} columns, {} to {} were asked for",
                      source.description(), stored.name, block, part.of_cols.begin, part.of_cols.end);
  }
  return {};
}

std::vector<WeightInfo> expected_weights(const ModelConfig& config, const WeightRange& range) {
  std::vector<WeightInfo> weights;
  for (ExpectedPart& part : expected_parts(config, range, {})) weights.push_back(std::move(part.whole));
  return weights;
}

std::vector<ExpectedPart> expected_parts(const ModelConfig& config, const WeightRange& range,
                                         const HeldSlices& slices) {
  Expectation expect(config, slices);
  const WeightPart table{config.vocab, config.table_dim(), expect.shard().vocab, {0, config.table_dim()}};
  const bool shared = config.tied_head && range.head && config.output == OutputKind::kLogits;
  if (range.embedding || shared) expect.matrix("token_embd.weight", table);
  if (range.embedding) expect_embedding(expect, config);
  for (int layer = range.first_layer; layer < range.last_layer; ++layer) {
    const bool again = layer > range.first_layer && config.weight_layer(layer) == config.weight_layer(layer - 1);
    if (!again) expect_block(expect, config, layer);
  }
  if (range.head) expect_head(expect, config, table);
  return expect.take();
}

Result<WeightView> find_checked(const WeightSource& source, const WeightInfo& expected) {
  BF_ASSIGN_OR_RETURN(WeightView view, source.find(expected.name));
  BF_TRY(
      check_shape(source, {.name = expected.name, .rows = view.rows, .cols = view.cols}, expected.rows, expected.cols));
  const auto bytes = row_bytes(view.type, static_cast<std::uint64_t>(view.cols));
  if (!bytes || view.bytes.size() != *bytes * static_cast<std::uint64_t>(view.rows)) {
    return make_error(ErrorCode::kBadData, "{}: {} has {} bytes, {} x {} of {} take {}", source.description(),
                      expected.name, view.bytes.size(), view.rows, view.cols, to_string(view.type),
                      bytes ? *bytes * static_cast<std::uint64_t>(view.rows) : 0);
  }
  return view;
}

}  // namespace butterfly
