#include "butterfly/model/format/gguf/gguf_config.h"

#include <climits>
#include <map>

namespace butterfly {
namespace {

/// Reads "<architecture>.<key>" entries as the types a ModelConfig has.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(std::string(architecture) + ".") {}

  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  Result<int> integer_or(std::string_view key, int fallback) const {
    BF_ASSIGN_OR_RETURN(const auto value, file_.get_int(full(key)));
    if (!value) return fallback;
    if (*value < 0 || *value > INT_MAX) {
      return make_error(ErrorCode::kBadData, "{}: {} is {}, expected 0 to {}", file_.source(), full(key), *value,
                        INT_MAX);
    }
    return static_cast<int>(*value);
  }

  Result<int> integer(std::string_view key) const {
    if (!file_.has(full(key))) {
      return make_error(ErrorCode::kBadData, "{}: lacks the metadata key {}", file_.source(), full(key));
    }
    return integer_or(key, 0);
  }

  Result<float> number_or(std::string_view key, float fallback) const {
    BF_ASSIGN_OR_RETURN(const auto value, file_.get_float(full(key)));
    return value ? static_cast<float>(*value) : fallback;
  }

  Result<float> number(std::string_view key) const {
    if (!file_.has(full(key))) {
      return make_error(ErrorCode::kBadData, "{}: lacks the metadata key {}", file_.source(), full(key));
    }
    return number_or(key, 0);
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

Status read_rope_factors(const GgufFile& file, RopeConfig& rope) {
  const GgufTensor* tensor = file.find_tensor("rope_freqs.weight");
  if (!tensor) return {};
  if (tensor->type != DType::kF32 || tensor->dims != 1) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: rope_freqs.weight is of type {} with {} dimensions, expected F32 with 1", file.source(),
                      tensor->type_name, tensor->dims);
  }
  rope.factors.resize(static_cast<std::size_t>(tensor->shape[0]));
  std::memcpy(rope.factors.data(), tensor->bytes.data(), tensor->bytes.size());
  return {};
}

Status read_rope(const GgufFile& file, const Keys& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  BF_ASSIGN_OR_RETURN(rope.base, keys.number_or("rope.freq_base", 10000.0f));
  BF_ASSIGN_OR_RETURN(rope.dim, keys.integer_or("rope.dimension_count", config.head_dim));
  rope.pairs = config.architecture == "qwen2" ? RopePairs::kHalves : RopePairs::kAdjacent;
  // Files older than rope.scaling.* have the linear factor under another name.
  BF_ASSIGN_OR_RETURN(const float old_factor, keys.number_or("rope.scale_linear", 1.0f));
  BF_ASSIGN_OR_RETURN(const float factor, keys.number_or("rope.scaling.factor", old_factor));
  BF_ASSIGN_OR_RETURN(const auto type, file.get_string(keys.full("rope.scaling.type")));
  const std::string_view scaling = type.value_or(old_factor != 1.0f ? "linear" : "none");
  if (scaling == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
    rope.factor = factor;
  } else if (scaling != "none") {
    return make_error(ErrorCode::kUnsupported, "{}: rope scaling \"{}\", supported are none and linear", file.source(),
                      printable(scaling));
  }
  return read_rope_factors(file, rope);
}

Status reject_variants(const GgufFile& file, const Keys& keys) {
  BF_ASSIGN_OR_RETURN(const int experts, keys.integer_or("expert_count", 0));
  if (experts != 0) {
    return make_error(ErrorCode::kUnsupported, "{}: has {} experts per block, supported are models without",
                      file.source(), experts);
  }
  BF_ASSIGN_OR_RETURN(const int window, keys.integer_or("attention.sliding_window", 0));
  if (window != 0) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: attends to a sliding window of {} tokens, supported is full attention", file.source(),
                      window);
  }
  return {};
}

Status read_dimensions(const GgufFile& file, const Keys& keys, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(config.layers, keys.integer("block_count"));
  BF_ASSIGN_OR_RETURN(config.model_dim, keys.integer("embedding_length"));
  BF_ASSIGN_OR_RETURN(config.ff_dim, keys.integer("feed_forward_length"));
  BF_ASSIGN_OR_RETURN(config.context, keys.integer("context_length"));
  BF_ASSIGN_OR_RETURN(config.heads, keys.integer("attention.head_count"));
  BF_ASSIGN_OR_RETURN(config.kv_heads, keys.integer_or("attention.head_count_kv", config.heads));
  if (config.heads < 1) {
    return make_error(ErrorCode::kBadData, "{}: {} is {}, expected at least 1", file.source(),
                      keys.full("attention.head_count"), config.heads);
  }
  const bool has_head_dim = file.has(keys.full("attention.key_length"));
  if (!has_head_dim && config.model_dim % config.heads != 0) {
    return make_error(ErrorCode::kBadData, "{}: a width of {} does not divide into {} heads, and {} is missing",
                      file.source(), config.model_dim, config.heads, keys.full("attention.key_length"));
  }
  BF_ASSIGN_OR_RETURN(config.head_dim, keys.integer_or("attention.key_length", config.model_dim / config.heads));
  BF_ASSIGN_OR_RETURN(const int value_dim, keys.integer_or("attention.value_length", config.head_dim));
  if (value_dim != config.head_dim) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: keys of {} and values of {} elements per head, supported are equal sizes", file.source(),
                      config.head_dim, value_dim);
  }
  return {};
}

/// The type that holds most bytes of the blocks' matrices; embeddings are often stored finer.
DType main_type(const GgufFile& file) {
  std::map<DType, std::uint64_t> bytes;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.dims == 2 && tensor.type && tensor.name.starts_with("blk.")) bytes[*tensor.type] += tensor.bytes.size();
  }
  DType best = DType::kF32;
  for (const auto& [type, count] : bytes) {
    if (count > bytes[best]) best = type;
  }
  return best;
}

}  // namespace

Result<ModelConfig> read_gguf_config(const GgufFile& file, int vocabulary_size) {
  BF_ASSIGN_OR_RETURN(const auto architecture, file.get_string("general.architecture"));
  if (!architecture) {
    return make_error(ErrorCode::kBadData, "{}: lacks the metadata key general.architecture", file.source());
  }
  if (*architecture != "llama" && *architecture != "qwen2" && *architecture != "gpt2") {
    return make_error(ErrorCode::kUnsupported, "{}: the architecture is \"{}\", supported are llama, qwen2 and gpt2",
                      file.source(), printable(*architecture));
  }
  ModelConfig config;
  config.architecture = *architecture;
  BF_ASSIGN_OR_RETURN(const auto name, file.get_string("general.name"));
  config.name = name.value_or("");
  const Keys keys(file, *architecture);
  BF_TRY(reject_variants(file, keys));
  BF_TRY(read_dimensions(file, keys, config));
  BF_ASSIGN_OR_RETURN(config.vocab, keys.integer_or("vocab_size", vocabulary_size));
  const auto has = [&](const char* tensor) { return file.find_tensor(tensor) != nullptr; };
  if (config.architecture == "gpt2") {
    config.norm = NormKind::kLayer;
    config.activation = Activation::kGeluTanh;
    config.mlp = MlpKind::kPlain;
    config.position = PositionKind::kLearned;
    config.qkv_bias = config.attention_output_bias = config.mlp_bias = config.norm_bias = true;
    BF_ASSIGN_OR_RETURN(config.norm_epsilon, keys.number("attention.layer_norm_epsilon"));
  } else {
    config.qkv_bias = config.architecture == "qwen2" || has("blk.0.attn_q.bias");
    config.attention_output_bias = has("blk.0.attn_output.bias");
    config.mlp_bias = has("blk.0.ffn_down.bias");
    BF_ASSIGN_OR_RETURN(config.norm_epsilon, keys.number("attention.layer_norm_rms_epsilon"));
    BF_TRY(read_rope(file, keys, config));
  }
  config.tied_head = !has("output.weight");
  config.weight_type = main_type(file);
  if (auto valid = validate(config); !valid) {
    return make_error(valid.error().code, "{}: {}", file.source(), valid.error().message);
  }
  return config;
}

}  // namespace butterfly
