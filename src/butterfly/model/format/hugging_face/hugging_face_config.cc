#include "butterfly/model/format/hugging_face/hugging_face_config.h"

#include <algorithm>
#include <climits>

#include "butterfly/base/json.h"
#include "butterfly/model/core/rope_factors.h"
#include "butterfly/model/format/gguf/gguf.h"

namespace butterfly {
namespace {

using nlohmann::json;

/// Typed access to one JSON object; null counts as absent.
class Object {
 public:
  Object(const json& object, std::string source) : object_(object), source_(std::move(source)) {}

  const std::string& source() const { return source_; }

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  Result<int> integer_or(const char* key, int fallback) const {
    const json* value = find(key);
    if (!value) return fallback;
    if (!value->is_number_integer()) return mismatch(key, *value, "an integer");
    const bool fits = value->is_number_unsigned()
                          ? value->get<std::uint64_t>() <= INT_MAX
                          : value->get<std::int64_t>() >= 0 && value->get<std::int64_t>() <= INT_MAX;
    if (!fits)
      return make_error(ErrorCode::kBadData, "{}: {} is {}, expected 0 to {}", source_, key, value->dump(), INT_MAX);
    return value->get<int>();
  }
  Result<int> integer(const char* key) const {
    if (!find(key)) return make_error(ErrorCode::kBadData, "{}: lacks {}", source_, key);
    return integer_or(key, 0);
  }
  Result<float> number_or(const char* key, float fallback) const {
    const json* value = find(key);
    if (!value) return fallback;
    if (!value->is_number()) return mismatch(key, *value, "a number");
    return static_cast<float>(value->get<double>());
  }
  Result<float> number(const char* key) const {
    if (!find(key)) return make_error(ErrorCode::kBadData, "{}: lacks {}", source_, key);
    return number_or(key, 0);
  }
  Result<std::string> text_or(const char* key, const char* fallback) const {
    const json* value = find(key);
    if (!value) return std::string(fallback);
    if (!value->is_string()) return mismatch(key, *value, "a string");
    return value->get<std::string>();
  }

  enum class Default { kFalse, kTrue };
  Result<bool> flag_or(const char* key, Default fallback) const {
    const json* value = find(key);
    if (!value) return fallback == Default::kTrue;
    if (!value->is_boolean()) return mismatch(key, *value, "true or false");
    return value->get<bool>();
  }

 private:
  tl::unexpected<Error> mismatch(const char* key, const json& value, const char* expected) const {
    return make_error(ErrorCode::kBadData, "{}: {} is {}, expected {}", source_, key, value.type_name(), expected);
  }

  const json& object_;
  std::string source_;
};

tl::unexpected<Error> unsupported(const Object& object, const char* key, std::string_view value,
                                  const char* supported) {
  return make_error(ErrorCode::kUnsupported, "{}: {} is {}, supported is {}", object.source(), key, printable(value),
                    supported);
}

Status read_rope_scaling(const Object& scaling, RopeConfig& rope) {
  BF_ASSIGN_OR_RETURN(rope.base, scaling.number_or("rope_theta", rope.base));
  BF_ASSIGN_OR_RETURN(const std::string old_type, scaling.text_or("type", "default"));
  BF_ASSIGN_OR_RETURN(const std::string type, scaling.text_or("rope_type", old_type.c_str()));
  BF_ASSIGN_OR_RETURN(const float rotary, scaling.number_or("partial_rotary_factor", 1.0f));
  if (rotary != 1.0f) return unsupported(scaling, "partial_rotary_factor", fmt::format("{}", rotary), "1");
  if (type == "default") return {};
  if (type == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
    BF_ASSIGN_OR_RETURN(rope.factor, scaling.number("factor"));
    return {};
  }
  if (type != "llama3") return unsupported(scaling, "the rope type", type, "default, linear or llama3");
  rope.scaling = RopeConfig::Scaling::kLlama3;
  BF_ASSIGN_OR_RETURN(rope.factor, scaling.number("factor"));
  BF_ASSIGN_OR_RETURN(rope.low_freq_factor, scaling.number("low_freq_factor"));
  BF_ASSIGN_OR_RETURN(rope.high_freq_factor, scaling.number("high_freq_factor"));
  BF_ASSIGN_OR_RETURN(rope.original_context, scaling.integer("original_max_position_embeddings"));
  return {};
}

Status read_rope(const Object& object, ModelConfig& config) {
  config.rope.dim = config.head_dim;
  config.rope.pairs = config.architecture == "qwen2" ? RopePairs::kHalves : RopePairs::kAdjacent;
  BF_ASSIGN_OR_RETURN(config.rope.base, object.number_or("rope_theta", 10000.0f));
  // rope_parameters is the newer name and then also holds rope_theta.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* scaling = object.find(key);
    if (!scaling) continue;
    const std::string source = object.source() + ": " + key;
    if (!scaling->is_object())
      return make_error(ErrorCode::kBadData, "{} is {}, expected an object", source, scaling->type_name());
    BF_TRY(read_rope_scaling(Object(*scaling, source), config.rope));
  }
  return {};
}

Status read_llama_family(const Object& object, const std::string& model_type, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(config.model_dim, object.integer("hidden_size"));
  BF_ASSIGN_OR_RETURN(config.layers, object.integer("num_hidden_layers"));
  BF_ASSIGN_OR_RETURN(config.heads, object.integer("num_attention_heads"));
  BF_ASSIGN_OR_RETURN(config.kv_heads, object.integer_or("num_key_value_heads", config.heads));
  BF_ASSIGN_OR_RETURN(config.ff_dim, object.integer("intermediate_size"));
  BF_ASSIGN_OR_RETURN(config.vocab, object.integer("vocab_size"));
  BF_ASSIGN_OR_RETURN(config.context, object.integer_or("max_position_embeddings", 2048));
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, object.number_or("rms_norm_eps", 1e-6f));
  if (config.heads < 1)
    return make_error(ErrorCode::kBadData, "{}: num_attention_heads is {}, expected at least 1", object.source(),
                      config.heads);
  if (!object.find("head_dim") && config.model_dim % config.heads != 0) {
    return make_error(ErrorCode::kBadData, "{}: hidden_size {} does not divide into {} heads", object.source(),
                      config.model_dim, config.heads);
  }
  BF_ASSIGN_OR_RETURN(config.head_dim, object.integer_or("head_dim", config.model_dim / config.heads));
  BF_ASSIGN_OR_RETURN(const std::string activation, object.text_or("hidden_act", "silu"));
  if (activation != "silu") return unsupported(object, "hidden_act", activation, "silu");
  BF_ASSIGN_OR_RETURN(const bool attention_bias, object.flag_or("attention_bias", Object::Default::kFalse));
  BF_ASSIGN_OR_RETURN(config.mlp_bias, object.flag_or("mlp_bias", Object::Default::kFalse));
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", Object::Default::kFalse));
  const bool qwen2 = model_type == "qwen2";
  config.qkv_bias = qwen2 || attention_bias;
  config.attention_output_bias = !qwen2 && attention_bias;
  // Qwen2 files name a window that use_sliding_window switches on; other types use the window they name.
  BF_ASSIGN_OR_RETURN(const bool uses_window, object.flag_or("use_sliding_window", Object::Default::kFalse));
  if (qwen2 ? uses_window : object.find("sliding_window") != nullptr) {
    return unsupported(object, "sliding_window", "set", "null");
  }
  BF_ASSIGN_OR_RETURN(const float rotary, object.number_or("partial_rotary_factor", 1.0f));
  if (rotary != 1.0f) return unsupported(object, "partial_rotary_factor", fmt::format("{}", rotary), "1");
  return read_rope(object, config);
}

Status read_gpt2(const Object& object, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.activation = Activation::kGeluTanh;
  config.mlp = MlpKind::kPlain;
  config.position = PositionKind::kLearned;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = config.norm_bias = true;
  BF_ASSIGN_OR_RETURN(config.model_dim, object.integer("n_embd"));
  BF_ASSIGN_OR_RETURN(config.layers, object.integer("n_layer"));
  BF_ASSIGN_OR_RETURN(config.heads, object.integer("n_head"));
  BF_ASSIGN_OR_RETURN(config.vocab, object.integer("vocab_size"));
  BF_ASSIGN_OR_RETURN(config.context, object.integer("n_positions"));
  if (config.heads < 1 || config.model_dim % config.heads != 0) {
    return make_error(ErrorCode::kBadData, "{}: n_embd {} does not divide into {} heads", object.source(),
                      config.model_dim, config.heads);
  }
  config.kv_heads = config.heads;
  config.head_dim = config.model_dim / config.heads;
  const int default_ff = config.model_dim > INT_MAX / 4 ? INT_MAX : 4 * config.model_dim;
  BF_ASSIGN_OR_RETURN(config.ff_dim, object.integer_or("n_inner", default_ff));
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, object.number_or("layer_norm_epsilon", 1e-5f));
  BF_ASSIGN_OR_RETURN(const std::string activation, object.text_or("activation_function", "gelu_new"));
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    return unsupported(object, "activation_function", activation, "gelu_new");
  }
  BF_ASSIGN_OR_RETURN(const bool scaled, object.flag_or("scale_attn_weights", Object::Default::kTrue));
  if (!scaled) return unsupported(object, "scale_attn_weights", "false", "true");
  BF_ASSIGN_OR_RETURN(const bool by_layer, object.flag_or("scale_attn_by_inverse_layer_idx", Object::Default::kFalse));
  if (by_layer) return unsupported(object, "scale_attn_by_inverse_layer_idx", "true", "false");
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", Object::Default::kTrue));
  return {};
}

/// eos_token_id is an id or a list of them.
Status add_end_tokens(const json& object, const std::string& source, HuggingFaceConfig& config) {
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return {};
  const json list = found->is_array() ? *found : json::array({*found});
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= static_cast<std::uint64_t>(config.model.vocab)) {
      return make_error(ErrorCode::kBadData, "{}: an eos_token_id is {}, expected 0 to {}", source,
                        printable(dump_json(id, {.ascii = true})), config.model.vocab - 1);
    }
    const TokenId token{id.get<std::int32_t>()};
    auto& tokens = config.end_tokens;
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  return {};
}

Result<json> parse_object(const std::string& text, const std::string& source) {
  json object = parse_json(text);
  if (!object.is_object())
    return make_error(ErrorCode::kBadData, "{}: {} bytes that are no JSON object", source, text.size());
  return object;
}

}  // namespace

Result<HuggingFaceConfig> read_hugging_face_config(const std::string& config_json, const std::string& generation_json,
                                                   const std::string& source) {
  const std::string config_source = source + "/config.json";
  BF_ASSIGN_OR_RETURN(const json parsed, parse_object(config_json, config_source));
  const Object object(parsed, config_source);
  BF_ASSIGN_OR_RETURN(const std::string type, object.text_or("model_type", ""));
  if (object.find("quantization_config")) return unsupported(object, "quantization_config", "set", "null");
  HuggingFaceConfig result;
  ModelConfig& config = result.model;
  if (type == "llama" || type == "mistral" || type == "qwen2") {
    config.architecture = type == "qwen2" ? "qwen2" : "llama";
    BF_TRY(read_llama_family(object, type, config));
  } else if (type == "gpt2") {
    config.architecture = "gpt2";
    BF_TRY(read_gpt2(object, config));
  } else {
    return unsupported(object, "model_type", type.empty() ? "missing" : type, "llama, mistral, qwen2 or gpt2");
  }
  if (auto valid = validate(config); !valid) {
    return make_error(valid.error().code, "{}: {}", config_source, valid.error().message);
  }
  config.rope = with_explicit_factors(config.rope);
  BF_TRY(add_end_tokens(parsed, config_source, result));
  if (!generation_json.empty()) {
    const std::string generation_source = source + "/generation_config.json";
    BF_ASSIGN_OR_RETURN(const json generation, parse_object(generation_json, generation_source));
    BF_TRY(add_end_tokens(generation, generation_source, result));
  }
  BF_ASSIGN_OR_RETURN(const int bos, object.integer_or("bos_token_id", -1));
  if (bos < config.vocab) result.bos = TokenId{bos};
  return result;
}

}  // namespace butterfly
