// ModelConfig as config.json: the inverse of hugging_face_config.cc.
#include <algorithm>
#include <cmath>

#include "butterfly/base/json.h"
#include "butterfly/model/format/hugging_face/hugging_face_writer.h"

namespace butterfly {
namespace {

using nlohmann::ordered_json;

/// "0.1" as 0.1, not as the float next to it.
double short_number(float value) {
  return std::stod(fmt::format("{}", value));
}

tl::unexpected<Error> refuse(const ModelConfig& config, const char* what) {
  return make_error(ErrorCode::kUnsupported, "{}: a Hugging Face directory of architecture {} cannot have {}",
                    config.name, config.architecture, what);
}

Result<ordered_json> gpt2_config(const ModelConfig& config) {
  if (config.norm != NormKind::kLayer || !config.norm_bias)
    return refuse(config, "a norm other than LayerNorm with bias");
  if (config.mlp != MlpKind::kPlain || config.activation != Activation::kGeluTanh) return refuse(config, "another MLP");
  if (config.position != PositionKind::kLearned) return refuse(config, "rotary positions");
  if (!config.qkv_bias || !config.attention_output_bias || !config.mlp_bias) {
    return refuse(config, "projections without bias");
  }
  if (config.kv_heads != config.heads || config.q_dim() != config.model_dim) return refuse(config, "other heads");
  return ordered_json{{"architectures", {"GPT2LMHeadModel"}},
                      {"model_type", "gpt2"},
                      {"vocab_size", config.vocab},
                      {"n_positions", config.context},
                      {"n_embd", config.model_dim},
                      {"n_layer", config.layers},
                      {"n_head", config.heads},
                      {"n_inner", config.ff_dim},
                      {"activation_function", "gelu_new"},
                      {"layer_norm_epsilon", short_number(config.norm_epsilon)}};
}

Status add_rope(const ModelConfig& config, ordered_json& object) {
  const RopeConfig& rope = config.rope;
  if (rope.dim != config.head_dim) return refuse(config, "heads that are rotated in part");
  if (!rope.factors.empty()) return refuse(config, "a factor for each rotary frequency");
  object["rope_theta"] = short_number(rope.base);
  if (rope.scaling == RopeConfig::Scaling::kLinear) {
    object["rope_scaling"] = {{"rope_type", "linear"}, {"factor", short_number(rope.factor)}};
  } else if (rope.scaling == RopeConfig::Scaling::kLlama3) {
    object["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", short_number(rope.factor)},
                              {"low_freq_factor", short_number(rope.low_freq_factor)},
                              {"high_freq_factor", short_number(rope.high_freq_factor)},
                              {"original_max_position_embeddings", rope.original_context}};
  }
  return {};
}

Result<ordered_json> llama_config(const ModelConfig& config) {
  const bool qwen2 = config.architecture == "qwen2";
  if (config.norm != NormKind::kRms || config.norm_bias) return refuse(config, "a norm other than RMSNorm");
  if (config.mlp != MlpKind::kGated || config.activation != Activation::kSilu) return refuse(config, "another MLP");
  if (config.position != PositionKind::kRope) return refuse(config, "learned positions");
  const bool biases = qwen2 ? config.qkv_bias && !config.attention_output_bias && !config.mlp_bias
                            : config.qkv_bias == config.attention_output_bias;
  if (!biases) return refuse(config, "biases in these projections alone");
  ordered_json object{{"architectures", {qwen2 ? "Qwen2ForCausalLM" : "LlamaForCausalLM"}},
                      {"model_type", qwen2 ? "qwen2" : "llama"},
                      {"vocab_size", config.vocab},
                      {"hidden_size", config.model_dim},
                      {"intermediate_size", config.ff_dim},
                      {"num_hidden_layers", config.layers},
                      {"num_attention_heads", config.heads},
                      {"num_key_value_heads", config.kv_heads},
                      {"head_dim", config.head_dim},
                      {"max_position_embeddings", config.context},
                      {"hidden_act", "silu"},
                      {"rms_norm_eps", short_number(config.norm_epsilon)}};
  if (!qwen2) {
    object["attention_bias"] = config.qkv_bias;
    object["mlp_bias"] = config.mlp_bias;
  }
  BF_TRY(add_rope(config, object));
  return object;
}

/// What only families have that this library does not write.
Status check_plain(const ModelConfig& config) {
  const auto any = [](const std::vector<int>& values, int usual) {
    return std::ranges::any_of(values, [&](int value) { return value != usual; });
  };
  if (any(config.windows, 0)) return refuse(config, "sliding windows");
  if (any(config.ropes, kMainRope)) return refuse(config, "other positions in some layers");
  if (config.rope.magnitude != 1) return refuse(config, "a magnitude of rotated elements");
  if (config.qk_norm != QkNorm::kNone) return refuse(config, "norms of queries and keys");
  if (config.moe.experts > 0) return refuse(config, "experts");
  if (config.parallel_block) return refuse(config, "parallel blocks");
  if (config.attention_cap != 0 || config.logit_cap != 0) return refuse(config, "caps");
  if (config.head_bias) return refuse(config, "a bias of the head");
  const float usual = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  const bool scaled = config.attention_scale != 0 && config.attention_scale != usual;
  if (scaled || config.embedding_scale != 1 || config.residual_scale != 1 || config.logit_scale != 1) {
    return refuse(config, "scales");
  }
  return {};
}

const char* torch_type(DType type) {
  return type == DType::kF16 ? "float16" : type == DType::kBF16 ? "bfloat16" : "float32";
}

}  // namespace

Result<std::string> hugging_face_config_json(const Checkpoint& checkpoint, DType type) {
  const ModelConfig& config = checkpoint.config;
  if (config.norm_place != NormPlace::kBefore) return refuse(config, "norms after the blocks' sums");
  if (config.architecture != "llama" && config.architecture != "qwen2" && config.architecture != "gpt2") {
    return make_error(ErrorCode::kUnsupported, "{}: the architecture is \"{}\", supported are llama, qwen2 and gpt2",
                      config.name, config.architecture);
  }
  BF_TRY(check_plain(config));
  BF_ASSIGN_OR_RETURN(ordered_json object, config.architecture == "gpt2" ? gpt2_config(config) : llama_config(config));
  object["tie_word_embeddings"] = config.tied_head;
  object["torch_dtype"] = torch_type(type);
  // Without these, readers assume the ids of the models that the architectures are named for.
  const Vocabulary& vocabulary = checkpoint.vocabulary;
  object["bos_token_id"] = vocabulary.bos.value < 0 ? ordered_json() : ordered_json(vocabulary.bos.value);
  object["eos_token_id"] = vocabulary.eos.value < 0 ? ordered_json() : ordered_json(vocabulary.eos.value);
  return dump_json(object, {.indent = 2}) + "\n";
}

}  // namespace butterfly
