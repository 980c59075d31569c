#include "butterfly/model/weights.h"

namespace butterfly {
namespace {

/// Collects names and shapes in file order.
class Expectation {
 public:
  explicit Expectation(const ModelConfig& config) : config_(config) {}

  void matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    // Rows that no block of 32 divides are stored unquantised; the file's own type is what counts.
    const DType type =
        row_bytes(config_.weight_type, static_cast<std::uint64_t>(cols)) ? config_.weight_type : DType::kF16;
    add(name, type, rows, cols);
  }
  void vector(const std::string& name, std::int64_t cols) { add(name, DType::kF32, 1, cols); }

  void norm(const std::string& name) {
    vector(name + ".weight", config_.model_dim);
    if (config_.norm_bias) vector(name + ".bias", config_.model_dim);
  }

  struct Projection {
    std::int64_t rows, cols;
    bool bias;
  };
  void projection(const std::string& name, const Projection& shape) {
    matrix(name + ".weight", shape.rows, shape.cols);
    if (shape.bias) vector(name + ".bias", shape.rows);
  }

  std::vector<WeightInfo> take() { return std::move(weights_); }

 private:
  void add(const std::string& name, DType type, std::int64_t rows, std::int64_t cols) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(rows) * *row_bytes(type, static_cast<std::uint64_t>(cols));
    weights_.push_back({.name = name, .type = type, .rows = rows, .cols = cols, .bytes = bytes});
  }

  const ModelConfig& config_;
  std::vector<WeightInfo> weights_;
};

void expect_block(Expectation& expect, const ModelConfig& config, int layer) {
  const std::string block = "blk." + std::to_string(layer) + ".";
  expect.norm(block + "attn_norm");
  expect.projection(block + "attn_q", {config.q_dim(), config.model_dim, config.qkv_bias});
  expect.projection(block + "attn_k", {config.kv_dim(), config.model_dim, config.qkv_bias});
  expect.projection(block + "attn_v", {config.kv_dim(), config.model_dim, config.qkv_bias});
  expect.projection(block + "attn_output", {config.model_dim, config.q_dim(), config.attention_output_bias});
  expect.norm(block + "ffn_norm");
  if (config.mlp == MlpKind::kGated) {
    expect.projection(block + "ffn_gate", {config.ff_dim, config.model_dim, config.mlp_bias});
  }
  expect.projection(block + "ffn_up", {config.ff_dim, config.model_dim, config.mlp_bias});
  expect.projection(block + "ffn_down", {config.model_dim, config.ff_dim, config.mlp_bias});
}

}  // namespace

void WeightSource::release(const WeightView&) const {}

std::vector<WeightInfo> expected_weights(const ModelConfig& config, const WeightRange& range) {
  Expectation expect(config);
  const bool shared = config.tied_head && range.head;
  if (range.embedding || shared) expect.matrix("token_embd.weight", config.vocab, config.model_dim);
  if (range.embedding && config.position == PositionKind::kLearned) {
    expect.matrix("position_embd.weight", config.context, config.model_dim);
  }
  for (int layer = range.first_layer; layer < range.last_layer; ++layer) expect_block(expect, config, layer);
  if (range.head) {
    if (config.norm_place == NormPlace::kBefore) expect.norm("output_norm");
    if (!config.tied_head) expect.matrix("output.weight", config.vocab, config.model_dim);
  }
  return expect.take();
}

Result<WeightView> find_checked(const WeightSource& source, const WeightInfo& expected) {
  BF_ASSIGN_OR_RETURN(WeightView view, source.find(expected.name));
  if (view.rows != expected.rows || view.cols != expected.cols) {
    return make_error(ErrorCode::kBadData, "{}: {} is {} x {}, the model's configuration says {} x {} (rows x columns)",
                      source.description(), expected.name, view.rows, view.cols, expected.rows, expected.cols);
  }
  const auto bytes = row_bytes(view.type, static_cast<std::uint64_t>(view.cols));
  if (!bytes || view.bytes.size() != *bytes * static_cast<std::uint64_t>(view.rows)) {
    return make_error(ErrorCode::kBadData, "{}: {} has {} bytes, {} x {} of {} take {}", source.description(),
                      expected.name, view.bytes.size(), view.rows, view.cols, to_string(view.type),
                      bytes ? *bytes * static_cast<std::uint64_t>(view.rows) : 0);
  }
  return view;
}

}  // namespace butterfly
