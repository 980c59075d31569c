#include "butterfly/model/format/gguf/gguf_config.h"

#include <algorithm>
#include <map>

#include "butterfly/model/format/gguf/gguf_experts.h"
#include "butterfly/model/format/gguf/gguf_families.h"
#include "butterfly/model/format/gguf/gguf_latent.h"

namespace butterfly {
namespace {

Status read_dimensions(const GgufFile& file, const GgufKeys& keys, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(config.layers, keys.integer("block_count"));
  // Behind the model's layers stand those that guess further tokens.
  BF_ASSIGN_OR_RETURN(const int guessing, keys.integer_or("nextn_predict_layers", 0));
  config.layers = std::max(config.layers - guessing, 0);
  BF_ASSIGN_OR_RETURN(config.model_dim, keys.integer("embedding_length"));
  BF_ASSIGN_OR_RETURN(config.ff_dim, keys.integer("feed_forward_length"));
  BF_ASSIGN_OR_RETURN(config.context, keys.integer("context_length"));
  BF_ASSIGN_OR_RETURN(config.heads, keys.integer("attention.head_count"));
  BF_ASSIGN_OR_RETURN(config.kv_heads, keys.integer_or("attention.head_count_kv", config.heads));
  if (config.heads < 1) {
    return make_error(ErrorCode::kBadData, "{}: {} is {}, expected at least 1", file.source(),
                      keys.full("attention.head_count"), config.heads);
  }
  if (has_gguf_latent(config.architecture)) return read_gguf_latent_sizes(keys, config);
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
    if (tensor.dims >= 2 && tensor.type && tensor.name.starts_with("blk.")) bytes[*tensor.type] += tensor.bytes.size();
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
  BF_TRY(check_gguf_architecture(*architecture, file.source()));
  ModelConfig config;
  config.architecture = *architecture;
  BF_ASSIGN_OR_RETURN(const auto name, file.get_string("general.name"));
  config.name = name.value_or("");
  const GgufKeys keys(file, *architecture);
  BF_TRY(read_dimensions(file, keys, config));
  BF_ASSIGN_OR_RETURN(config.vocab, keys.integer_or("vocab_size", vocabulary_size));
  const auto has = [&](const char* tensor) { return file.find_tensor(tensor) != nullptr; };
  BF_TRY(read_gguf_family(keys, config));
  BF_TRY(read_gguf_experts(keys, config));
  config.tied_head = !has("output.weight");
  config.weight_type = main_type(file);
  if (auto valid = validate(config); !valid) {
    return make_error(valid.error().code, "{}: {}", file.source(), valid.error().message);
  }
  return config;
}

}  // namespace butterfly
