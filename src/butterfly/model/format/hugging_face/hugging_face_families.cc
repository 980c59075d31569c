#include "butterfly/model/format/hugging_face/hugging_face_families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "butterfly/model/format/hugging_face/hugging_face_encoders.h"
#include "butterfly/model/format/hugging_face/hugging_face_experts.h"

namespace butterfly {
namespace {

/// What the keys of a family are called.
struct ShapeKeys {
  const char* model_dim = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";
  const char* context = "max_position_embeddings";
  const char* epsilon = "rms_norm_eps";
  float usual_epsilon = 1e-6f;
};

Status read_heads(const JsonObject& object, const ShapeKeys& keys, ModelConfig& config) {
  if (config.heads < 1) {
    return make_error(ErrorCode::kBadData, "{}: {} is {}, expected at least 1", object.source(), keys.heads,
                      config.heads);
  }
  if (!object.find("head_dim") && config.model_dim % config.heads != 0) {
    return make_error(ErrorCode::kBadData, "{}: {} {} does not divide into {} heads", object.source(), keys.model_dim,
                      config.model_dim, config.heads);
  }
  BF_ASSIGN_OR_RETURN(config.head_dim, object.integer_or("head_dim", config.model_dim / config.heads));
  return {};
}

Status read_shape(const JsonObject& object, const ShapeKeys& keys, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(config.model_dim, object.integer(keys.model_dim));
  BF_ASSIGN_OR_RETURN(config.layers, object.integer(keys.layers));
  BF_ASSIGN_OR_RETURN(config.heads, object.integer(keys.heads));
  BF_ASSIGN_OR_RETURN(config.kv_heads, object.integer_or(keys.kv_heads, config.heads));
  BF_ASSIGN_OR_RETURN(config.vocab, object.integer("vocab_size"));
  BF_ASSIGN_OR_RETURN(config.context, object.integer_or(keys.context, 2048));
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, object.number_or(keys.epsilon, keys.usual_epsilon));
  return read_heads(object, keys, config);
}

Status read_activation(const JsonObject& object, const char* key, const char* usual, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const std::string name, object.text_or(key, usual));
  const bool gated = config.mlp == MlpKind::kGated;
  if (name == "silu" || name == "swish") {
    config.activation = Activation::kSilu;
  } else if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") {
    config.activation = Activation::kGeluTanh;
  } else if (name == "gelu") {
    config.activation = Activation::kGeluErf;
  } else if (name == "relu" && !gated) {
    config.activation = Activation::kRelu;
  } else {
    return unsupported(object, key, name, gated ? "silu, gelu or gelu_new" : "silu, gelu, gelu_new or relu");
  }
  return {};
}

/// layer_types names the layers with a window; without it `slides` says which they are.
template <typename Slides>
Status read_windows(const JsonObject& object, const Slides& slides, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const int window, object.integer_or("sliding_window", 0));
  BF_ASSIGN_OR_RETURN(const auto types, object.texts("layer_types"));
  if (config.layers > kLayersMax) return {};  // validate() refuses them
  if (!types.empty() && types.size() != static_cast<std::size_t>(config.layers)) {
    return make_error(ErrorCode::kBadData, "{}: {} layer_types for {} layers", object.source(), types.size(),
                      config.layers);
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    bool sliding = types.empty() && slides(layer);
    if (!types.empty()) {
      const std::string& type = types[static_cast<std::size_t>(layer)];
      if (type != "sliding_attention" && type != "full_attention") {
        return unsupported(object, "a layer type", type, "sliding_attention or full_attention");
      }
      sliding = type == "sliding_attention";
    }
    config.windows.push_back(sliding ? window : 0);
  }
  if (std::ranges::all_of(config.windows, [](int tokens) { return tokens == 0; })) config.windows.clear();
  return {};
}

constexpr auto kEveryLayer = [](int) { return true; };

/// RMS norms, SwiGLU, rope over the whole head: what most families begin with.
Status read_llama_like(const JsonObject& object, JsonObject::Default tied, ModelConfig& config) {
  BF_TRY(read_shape(object, {}, config));
  BF_ASSIGN_OR_RETURN(config.ff_dim, object.integer("intermediate_size"));
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", tied));
  return {};
}

Status refuse_partial_rotation(const JsonObject& object, const ModelConfig& config) {
  if (config.rope.dim == config.head_dim) return {};
  const float rotary = static_cast<float>(config.rope.dim) / static_cast<float>(config.head_dim);
  return unsupported(object, "partial_rotary_factor", fmt::format("{}", rotary), "1");
}

Status read_llama(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_llama_like(object, JsonObject::Default::kFalse, config));
  BF_TRY(read_activation(object, "hidden_act", "silu", config));
  BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("attention_bias", JsonObject::Default::kFalse));
  config.attention_output_bias = config.qkv_bias;
  BF_ASSIGN_OR_RETURN(config.mlp_bias, object.flag_or("mlp_bias", JsonObject::Default::kFalse));
  BF_TRY(read_hugging_face_rope(object, {}, config));
  // The rows of these families' queries and keys are put into another order.
  BF_TRY(refuse_partial_rotation(object, config));
  return read_windows(object, kEveryLayer, config);
}

Status read_smollm3(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_llama(object, config));
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", JsonObject::Default::kTrue));
  BF_ASSIGN_OR_RETURN(const bool window, object.flag_or("use_sliding_window", JsonObject::Default::kFalse));
  if (!window) config.windows.clear();
  BF_ASSIGN_OR_RETURN(const int interval, object.integer_or("no_rope_layer_interval", 4));
  BF_ASSIGN_OR_RETURN(const auto with_rope, object.numbers("no_rope_layers"));
  if (interval < 1 || (!with_rope.empty() && with_rope.size() != static_cast<std::size_t>(config.layers))) {
    return make_error(ErrorCode::kBadData, "{}: {} no_rope_layers, each {}th without rope, for {} layers",
                      object.source(), with_rope.size(), interval, config.layers);
  }
  for (int layer = 0; layer < std::min(config.layers, kLayersMax); ++layer) {
    const bool rotates =
        with_rope.empty() ? (layer + 1) % interval != 0 : with_rope[static_cast<std::size_t>(layer)] != 0;
    config.ropes.push_back(rotates ? kMainRope : kNoRope);
  }
  return {};
}

Status read_granite(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_llama(object, config));
  BF_ASSIGN_OR_RETURN(config.embedding_scale, object.number_or("embedding_multiplier", 1.0f));
  BF_ASSIGN_OR_RETURN(config.residual_scale, object.number_or("residual_multiplier", 1.0f));
  BF_ASSIGN_OR_RETURN(config.attention_scale, object.number_or("attention_multiplier", 1.0f));
  BF_ASSIGN_OR_RETURN(const float divisor, object.number_or("logits_scaling", 1.0f));
  config.logit_scale = 1.0f / divisor;
  return {};
}

/// Qwen2 and 3 name a window that use_sliding_window switches on, for layers from max_window_layers on.
Status read_qwen(const JsonObject& object, ModelConfig& config) {
  const bool third = config.architecture.starts_with("qwen3");
  BF_TRY(read_llama_like(object, JsonObject::Default::kFalse, config));
  BF_TRY(read_activation(object, "hidden_act", "silu", config));
  BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("qkv_bias", JsonObject::Default::kTrue));
  if (third) {
    if (!object.find("head_dim") && config.architecture == "qwen3") config.head_dim = 128;
    config.qk_norm = QkNorm::kHead;
    BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("attention_bias", JsonObject::Default::kFalse));
    config.attention_output_bias = config.qkv_bias;
  }
  BF_TRY(read_hugging_face_rope(object, {}, config));
  BF_ASSIGN_OR_RETURN(const bool window, object.flag_or("use_sliding_window", JsonObject::Default::kFalse));
  if (!window) return {};
  BF_ASSIGN_OR_RETURN(const int full, object.integer_or("max_window_layers", 28));
  return read_windows(
      object, [&](int layer) { return layer >= full; }, config);
}

Status read_olmo2(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_llama_like(object, JsonObject::Default::kFalse, config));
  BF_TRY(read_activation(object, "hidden_act", "silu", config));
  config.norm_place = NormPlace::kOutput;
  config.qk_norm = QkNorm::kWidth;
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, object.number_or("rms_norm_eps", 1e-5f));
  BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("attention_bias", JsonObject::Default::kFalse));
  config.attention_output_bias = config.qkv_bias;
  return read_hugging_face_rope(object, {}, config);
}

Status read_olmoe(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_olmo2(object, config));
  config.norm_place = NormPlace::kBefore;
  return object.find("clip_qkv") ? unsupported(object, "clip_qkv", "set", "null") : Status{};
}

Status read_phi3(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_llama_like(object, JsonObject::Default::kFalse, config));
  BF_TRY(read_activation(object, "hidden_act", "silu", config));
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, object.number_or("rms_norm_eps", 1e-5f));
  BF_TRY(read_hugging_face_rope(object, {}, config));
  return read_windows(object, kEveryLayer, config);
}

Status read_gemma(const JsonObject& object, ModelConfig& config) {
  const bool first = config.architecture == "gemma";
  const bool third = config.architecture == "gemma3";
  BF_TRY(read_llama_like(object, JsonObject::Default::kTrue, config));
  if (!object.find("head_dim")) config.head_dim = 256;
  const char* key = object.find("hidden_activation") ? "hidden_activation" : "hidden_act";
  BF_TRY(read_activation(object, key, "gelu_pytorch_tanh", config));
  // The first files said "gelu" and meant its approximation.
  if (first && config.activation == Activation::kGeluErf) config.activation = Activation::kGeluTanh;
  BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("attention_bias", JsonObject::Default::kFalse));
  config.attention_output_bias = config.qkv_bias;
  config.embedding_scale = std::sqrt(static_cast<float>(config.model_dim));
  BF_TRY(read_hugging_face_rope(object, {.base = third ? 1e6f : 10000.0f}, config));
  if (first) return {};
  config.norm_place = NormPlace::kBoth;
  if (third) config.qk_norm = QkNorm::kHead;
  BF_ASSIGN_OR_RETURN(const float scalar, object.number_or("query_pre_attn_scalar", 256.0f));
  config.attention_scale = 1.0f / std::sqrt(scalar);
  BF_ASSIGN_OR_RETURN(config.attention_cap, object.number_or("attn_logit_softcapping", 0.0f));
  BF_ASSIGN_OR_RETURN(config.logit_cap, object.number_or("final_logit_softcapping", 0.0f));
  BF_ASSIGN_OR_RETURN(const int pattern, object.integer_or("sliding_window_pattern", third ? 6 : 2));
  if (pattern < 1) {
    return make_error(ErrorCode::kBadData, "{}: sliding_window_pattern is {}, expected at least 1", object.source(),
                      pattern);
  }
  BF_TRY(read_windows(
      object, [&](int layer) { return (layer + 1) % pattern != 0; }, config));
  if (!third) return {};
  if (!object.find("rope_local_base_freq") && !object.find("rope_parameters")) config.local_rope.base = 10000.0f;
  for (int window : config.windows) config.ropes.push_back(window > 0 ? kLocalRope : kMainRope);
  return {};
}

Status read_glm(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_llama_like(object, JsonObject::Default::kFalse, config));
  BF_TRY(read_activation(object, "hidden_act", "silu", config));
  config.norm_place = config.architecture == "glm4" ? NormPlace::kBoth : NormPlace::kBefore;
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, object.number_or("rms_norm_eps", 1.5625e-7f));
  BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("attention_bias", JsonObject::Default::kTrue));
  return read_hugging_face_rope(object, {.rotary = 0.5f}, config);
}

Status read_glm4_moe(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_llama_like(object, JsonObject::Default::kFalse, config));
  BF_TRY(read_activation(object, "hidden_act", "silu", config));
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, object.number_or("rms_norm_eps", 1e-5f));
  BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("attention_bias", JsonObject::Default::kFalse));
  BF_ASSIGN_OR_RETURN(const bool qk_norm, object.flag_or("use_qk_norm", JsonObject::Default::kFalse));
  if (qk_norm) config.qk_norm = QkNorm::kHead;
  return read_hugging_face_rope(object, {.rotary = 0.5f}, config);
}

void use_layer_norm(ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  config.mlp = MlpKind::kPlain;
}

Status read_starcoder2(const JsonObject& object, ModelConfig& config) {
  use_layer_norm(config);
  BF_TRY(read_shape(object, {.epsilon = "norm_epsilon", .usual_epsilon = 1e-5f}, config));
  BF_ASSIGN_OR_RETURN(config.ff_dim, object.integer("intermediate_size"));
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", JsonObject::Default::kTrue));
  BF_TRY(read_activation(object, "hidden_act", "gelu_pytorch_tanh", config));
  BF_ASSIGN_OR_RETURN(const bool bias, object.flag_or("use_bias", JsonObject::Default::kTrue));
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = bias;
  BF_TRY(read_hugging_face_rope(object, {}, config));
  return read_windows(object, kEveryLayer, config);
}

Status read_gpt_neox(const JsonObject& object, ModelConfig& config) {
  use_layer_norm(config);
  BF_TRY(read_shape(object, {.kv_heads = "num_attention_heads", .epsilon = "layer_norm_eps", .usual_epsilon = 1e-5f},
                    config));
  BF_ASSIGN_OR_RETURN(config.ff_dim, object.integer("intermediate_size"));
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", JsonObject::Default::kFalse));
  BF_TRY(read_activation(object, "hidden_act", "gelu", config));
  BF_ASSIGN_OR_RETURN(config.parallel_block, object.flag_or("use_parallel_residual", JsonObject::Default::kTrue));
  BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("attention_bias", JsonObject::Default::kTrue));
  config.attention_output_bias = config.qkv_bias;
  config.mlp_bias = true;
  return read_hugging_face_rope(object, {.rotary = 0.25f, .base_key = "rotary_emb_base", .rotary_key = "rotary_pct"},
                                config);
}

Status read_phi(const JsonObject& object, ModelConfig& config) {
  use_layer_norm(config);
  BF_TRY(read_shape(object, {.epsilon = "layer_norm_eps", .usual_epsilon = 1e-5f}, config));
  BF_ASSIGN_OR_RETURN(config.ff_dim, object.integer("intermediate_size"));
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", JsonObject::Default::kFalse));
  BF_TRY(read_activation(object, "hidden_act", "gelu_new", config));
  BF_ASSIGN_OR_RETURN(const bool qk_norm, object.flag_or("qk_layernorm", JsonObject::Default::kFalse));
  if (qk_norm) return unsupported(object, "qk_layernorm", "true", "false");
  config.parallel_block = config.shared_norm = true;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = config.head_bias = true;
  return read_hugging_face_rope(object, {.rotary = 0.5f}, config);
}

Status read_falcon(const JsonObject& object, ModelConfig& config) {
  use_layer_norm(config);
  BF_TRY(read_shape(object, {.kv_heads = "num_kv_heads", .epsilon = "layer_norm_epsilon", .usual_epsilon = 1e-5f},
                    config));
  const int default_ff = config.model_dim > INT_MAX / 4 ? INT_MAX : 4 * config.model_dim;
  BF_ASSIGN_OR_RETURN(config.ff_dim, object.integer_or("ffn_hidden_size", default_ff));
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", JsonObject::Default::kTrue));
  BF_TRY(read_activation(object, "activation", "gelu", config));
  BF_ASSIGN_OR_RETURN(const bool alibi, object.flag_or("alibi", JsonObject::Default::kFalse));
  if (alibi) return unsupported(object, "alibi", "true", "false");
  BF_ASSIGN_OR_RETURN(const bool bias, object.flag_or("bias", JsonObject::Default::kFalse));
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = bias;
  BF_ASSIGN_OR_RETURN(const bool grouped, object.flag_or("new_decoder_architecture", JsonObject::Default::kFalse));
  BF_ASSIGN_OR_RETURN(const bool multi_query, object.flag_or("multi_query", JsonObject::Default::kTrue));
  if (!grouped) config.kv_heads = multi_query ? 1 : config.heads;
  BF_ASSIGN_OR_RETURN(config.parallel_block, object.flag_or("parallel_attn", JsonObject::Default::kTrue));
  if (grouped && !config.parallel_block) return unsupported(object, "parallel_attn", "false", "true");
  BF_ASSIGN_OR_RETURN(const int norms, object.integer_or("num_ln_in_parallel_attn", grouped ? 2 : 1));
  config.shared_norm = config.parallel_block && (!grouped || norms == 1);
  return read_hugging_face_rope(object, {}, config);
}

Status read_mpt(const JsonObject& object, ModelConfig& config) {
  use_layer_norm(config);
  config.norm_bias = false;
  config.activation = Activation::kGeluErf;
  config.position = PositionKind::kAlibi;
  BF_TRY(read_shape(object,
                    {.model_dim = "d_model",
                     .layers = "n_layers",
                     .heads = "n_heads",
                     .kv_heads = "n_heads",
                     .context = "max_seq_len",
                     .epsilon = "layer_norm_epsilon",
                     .usual_epsilon = 1e-5f},
                    config));
  BF_ASSIGN_OR_RETURN(const int ratio, object.integer_or("expansion_ratio", 4));
  config.ff_dim = config.model_dim > INT_MAX / std::max(ratio, 1) ? INT_MAX : ratio * config.model_dim;
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", JsonObject::Default::kTrue));
  BF_ASSIGN_OR_RETURN(const bool no_bias, object.flag_or("no_bias", JsonObject::Default::kTrue));
  if (!no_bias) return unsupported(object, "no_bias", "false", "true");
  if (object.find("logit_scale")) return unsupported(object, "logit_scale", "set", "null");
  const nlohmann::json none = nlohmann::json::object();
  const nlohmann::json* attention = object.find("attn_config");
  if (attention && !attention->is_object()) return unsupported(object, "attn_config", "no object", "an object");
  const JsonObject inner(attention ? *attention : none, object.source() + ": attn_config");
  BF_ASSIGN_OR_RETURN(const bool alibi, inner.flag_or("alibi", JsonObject::Default::kTrue));
  if (!alibi) return unsupported(inner, "alibi", "false", "true");
  BF_ASSIGN_OR_RETURN(const bool qk_norm, inner.flag_or("qk_ln", JsonObject::Default::kFalse));
  if (qk_norm) return unsupported(inner, "qk_ln", "true", "false");
  if (inner.find("clip_qkv")) return unsupported(inner, "clip_qkv", "set", "null");
  BF_ASSIGN_OR_RETURN(config.alibi_max_bias, inner.number_or("alibi_bias_max", 8.0f));
  BF_ASSIGN_OR_RETURN(config.attention_scale, inner.number_or("softmax_scale", 0.0f));
  return {};
}

Status read_gpt_oss(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_llama_like(object, JsonObject::Default::kFalse, config));
  BF_TRY(read_activation(object, "hidden_act", "silu", config));
  if (!object.find("head_dim")) config.head_dim = 64;
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, object.number_or("rms_norm_eps", 1e-5f));
  BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("attention_bias", JsonObject::Default::kTrue));
  config.attention_output_bias = config.qkv_bias;
  config.attention_sinks = true;
  BF_TRY(read_hugging_face_rope(object, {.base = 150000.0f}, config));
  return read_windows(
      object, [](int layer) { return layer % 2 == 0; }, config);
}

Status read_deepseek(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_llama_like(object, JsonObject::Default::kFalse, config));
  BF_TRY(read_activation(object, "hidden_act", "silu", config));
  return read_hugging_face_latent(object, config);
}

Status read_cohere(const JsonObject& object, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  BF_TRY(read_shape(object, {.epsilon = "layer_norm_eps", .usual_epsilon = 1e-5f}, config));
  BF_ASSIGN_OR_RETURN(config.ff_dim, object.integer("intermediate_size"));
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", JsonObject::Default::kTrue));
  BF_TRY(read_activation(object, "hidden_act", "silu", config));
  config.parallel_block = config.shared_norm = true;
  BF_ASSIGN_OR_RETURN(const bool qk_norm, object.flag_or("use_qk_norm", JsonObject::Default::kFalse));
  if (qk_norm) return unsupported(object, "use_qk_norm", "true", "false");
  BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("attention_bias", JsonObject::Default::kFalse));
  config.attention_output_bias = config.qkv_bias;
  BF_ASSIGN_OR_RETURN(config.logit_scale, object.number_or("logit_scale", 0.0625f));
  return read_hugging_face_rope(object, {}, config);
}

Status read_gpt2(const JsonObject& object, ModelConfig& config) {
  use_layer_norm(config);
  config.position = PositionKind::kLearned;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
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
  BF_TRY(read_activation(object, "activation_function", "gelu_new", config));
  BF_ASSIGN_OR_RETURN(const bool scaled, object.flag_or("scale_attn_weights", JsonObject::Default::kTrue));
  if (!scaled) return unsupported(object, "scale_attn_weights", "false", "true");
  BF_ASSIGN_OR_RETURN(const bool by_layer,
                      object.flag_or("scale_attn_by_inverse_layer_idx", JsonObject::Default::kFalse));
  if (by_layer) return unsupported(object, "scale_attn_by_inverse_layer_idx", "true", "false");
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", JsonObject::Default::kTrue));
  return {};
}

struct Family {
  std::string_view model_type;
  std::string_view architecture;
  RopePairs pairs;
  Status (*read)(const JsonObject&, ModelConfig&);
};
constexpr std::array kFamilies{
    Family{"llama", "llama", RopePairs::kAdjacent, read_llama},
    Family{"mistral", "llama", RopePairs::kAdjacent, read_llama},
    Family{"mixtral", "llama", RopePairs::kAdjacent, read_llama},
    Family{"qwen2_moe", "qwen2moe", RopePairs::kHalves, read_qwen},
    Family{"qwen3_moe", "qwen3moe", RopePairs::kHalves, read_qwen},
    Family{"olmoe", "olmoe", RopePairs::kHalves, read_olmoe},
    Family{"granitemoe", "granitemoe", RopePairs::kAdjacent, read_granite},
    Family{"glm4_moe", "glm4moe", RopePairs::kHalves, read_glm4_moe},
    Family{"qwen2", "qwen2", RopePairs::kHalves, read_qwen},
    Family{"qwen3", "qwen3", RopePairs::kHalves, read_qwen},
    Family{"smollm3", "smollm3", RopePairs::kAdjacent, read_smollm3},
    Family{"granite", "granite", RopePairs::kAdjacent, read_granite},
    Family{"olmo2", "olmo2", RopePairs::kHalves, read_olmo2},
    Family{"phi3", "phi3", RopePairs::kHalves, read_phi3},
    Family{"gemma", "gemma", RopePairs::kHalves, read_gemma},
    Family{"gemma2", "gemma2", RopePairs::kHalves, read_gemma},
    Family{"gemma3_text", "gemma3", RopePairs::kHalves, read_gemma},
    Family{"glm", "chatglm", RopePairs::kAdjacent, read_glm},
    Family{"glm4", "glm4", RopePairs::kAdjacent, read_glm},
    Family{"starcoder2", "starcoder2", RopePairs::kHalves, read_starcoder2},
    Family{"gpt_neox", "gptneox", RopePairs::kHalves, read_gpt_neox},
    Family{"phi", "phi2", RopePairs::kHalves, read_phi},
    Family{"falcon", "falcon", RopePairs::kHalves, read_falcon},
    Family{"mpt", "mpt", RopePairs::kHalves, read_mpt},
    Family{"cohere", "command-r", RopePairs::kAdjacent, read_cohere},
    Family{"gpt_oss", "gpt-oss", RopePairs::kHalves, read_gpt_oss},
    Family{"deepseek_v2", "deepseek2", RopePairs::kAdjacent, read_deepseek},
    Family{"deepseek_v3", "deepseek2", RopePairs::kAdjacent, read_deepseek},
    Family{"gpt2", "gpt2", RopePairs::kAdjacent, read_gpt2},
};

}  // namespace

Result<ModelConfig> read_hugging_face_family(const JsonObject& object) {
  BF_ASSIGN_OR_RETURN(const std::string type, object.text_or("model_type", ""));
  for (const Family& family : kFamilies) {
    if (family.model_type != type) continue;
    ModelConfig config;
    config.architecture = family.architecture;
    config.rope.pairs = family.pairs;
    BF_TRY(family.read(object, config));
    BF_TRY(read_hugging_face_experts(object, config));
    return config;
  }
  std::vector<std::string_view> known;
  for (const Family& family : kFamilies) known.push_back(family.model_type);
  for (const EncoderFamily& family : hugging_face_encoders()) {
    known.push_back(family.model_type);
    if (family.model_type != type) continue;
    ModelConfig config;
    config.architecture = family.architecture;
    config.rope.pairs = RopePairs::kHalves;
    BF_TRY(family.read(object, config));
    return config;
  }
  return unsupported(object, "model_type", type.empty() ? "missing" : type,
                     fmt::format("one of {}", fmt::join(known, ", ")).c_str());
}

}  // namespace butterfly
