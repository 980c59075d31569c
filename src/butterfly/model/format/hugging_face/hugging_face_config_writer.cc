// ModelConfig as config.json: the inverse of hugging_face_config.cc.
#include <algorithm>
#include <cmath>
#include <optional>

#include "butterfly/base/json.h"
#include "butterfly/model/core/config_json.h"
#include "butterfly/model/core/rope_factors.h"
#include "butterfly/model/format/hugging_face/hugging_face_config.h"
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

/// The window that all layers have; 0: none; nothing where they differ.
std::optional<int> common_window(const ModelConfig& config) {
  if (config.windows.empty()) return 0;
  const int first = config.windows.front();
  const bool same = std::ranges::all_of(config.windows, [&](int window) { return window == first; });
  return same ? std::optional(first) : std::nullopt;
}

void add_experts(const ModelConfig& config, ordered_json& object) {
  const MoeConfig& moe = config.moe;
  const bool mixtral = config.architecture == "llama";
  object[mixtral ? "num_local_experts" : "num_experts"] = moe.experts;
  object["num_experts_per_tok"] = moe.experts_used;
  if (mixtral) return;
  object["norm_topk_prob"] = moe.renormalise;
  if (config.architecture == "olmoe") return;
  object["moe_intermediate_size"] = moe.ff_dim;
  if (config.architecture == "qwen2moe") object["shared_expert_intermediate_size"] = moe.shared_ff_dim;
  object["decoder_sparse_step"] = 1;
  object["mlp_only_layers"] = ordered_json::array();
  for (int layer = 0; layer < config.layers; ++layer) {
    if (!config.has_experts(layer)) object["mlp_only_layers"].push_back(layer);
  }
}

/// A family that config.json names otherwise than Llama.
struct WrittenFamily {
  std::string_view architecture;
  const char* model_type;
  const char* model_class;
  bool experts = false;
};
constexpr WrittenFamily kWrittenFamilies[] = {
    {"llama", "mistral", "MistralForCausalLM"},
    {"llama", "mixtral", "MixtralForCausalLM", true},
    {"qwen3", "qwen3", "Qwen3ForCausalLM"},
    {"qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", true},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", true},
    {"olmo2", "olmo2", "Olmo2ForCausalLM"},
    {"olmoe", "olmoe", "OlmoeForCausalLM", true},
};

/// Null for the first families, which have no windows, experts or norms of queries and keys.
const WrittenFamily* written_family(const ModelConfig& config) {
  const bool experts = config.moe.experts > 0;
  if (config.architecture == "llama" && !experts && common_window(config) == 0) return nullptr;
  for (const WrittenFamily& family : kWrittenFamilies) {
    if (family.architecture == config.architecture && family.experts == experts) return &family;
  }
  return nullptr;
}

/// What was written has to be read as it was: a choice that the family does not have is found so, whichever it is.
Status check_read_back(const ModelConfig& config, const ordered_json& object) {
  BF_ASSIGN_OR_RETURN(HuggingFaceConfig read, read_hugging_face_config(dump_json(object), "", config.name));
  ModelConfig wanted = config;
  wanted.name = read.model.name = "";
  wanted.weight_type = read.model.weight_type = DType::kF32;
  wanted.rope = with_explicit_factors(wanted.rope);
  if (!wanted.has_local_rope()) wanted.local_rope = read.model.local_rope;
  if (wanted.attention_scale == 1.0f / std::sqrt(static_cast<float>(config.head_dim))) wanted.attention_scale = 0.0f;
  if (common_window(wanted) == 0) wanted.windows.clear();
  if (to_json(wanted) == to_json(read.model)) return {};
  return refuse(config, "all of its choices: what would be written reads as another model");
}

Result<ordered_json> family_config(const ModelConfig& config, const WrittenFamily& family) {
  const bool olmoe = config.architecture == "olmoe" || config.architecture == "llama";
  ordered_json object{{"architectures", {family.model_class}},
                      {"model_type", family.model_type},
                      {"vocab_size", config.vocab},
                      {"hidden_size", config.model_dim},
                      {"intermediate_size", family.experts && olmoe ? config.moe.ff_dim : config.ff_dim},
                      {"num_hidden_layers", config.layers},
                      {"num_attention_heads", config.heads},
                      {"num_key_value_heads", config.kv_heads},
                      {"head_dim", config.head_dim},
                      {"max_position_embeddings", config.context},
                      {"hidden_act", "silu"},
                      {"rms_norm_eps", short_number(config.norm_epsilon)},
                      {"tie_word_embeddings", config.tied_head}};
  object[config.architecture == "qwen2moe" ? "qkv_bias" : "attention_bias"] = config.qkv_bias;
  if (family.experts) add_experts(config, object);
  const int window = common_window(config).value_or(0);
  const bool qwen = config.architecture.starts_with("qwen");
  if (qwen) object["use_sliding_window"] = window > 0;
  if (qwen && window > 0) object["max_window_layers"] = 0;
  if (qwen || config.architecture == "llama") object["sliding_window"] = window > 0 ? ordered_json(window) : nullptr;
  BF_TRY(add_rope(config, object));
  BF_TRY(check_read_back(config, object));
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
  const WrittenFamily* family = written_family(config);
  ordered_json object;
  if (family != nullptr) {
    BF_ASSIGN_OR_RETURN(object, family_config(config, *family));
  } else {
    if (config.norm_place != NormPlace::kBefore) return refuse(config, "norms after the blocks' sums");
    if (config.architecture != "llama" && config.architecture != "qwen2" && config.architecture != "gpt2") {
      return make_error(
          ErrorCode::kUnsupported,
          "{}: the architecture is \"{}\", supported are llama, mistral, mixtral, qwen2, qwen3, qwen2_moe, "
          "qwen3_moe, olmo2, olmoe and gpt2",
          config.name, config.architecture);
    }
    BF_TRY(check_plain(config));
    BF_ASSIGN_OR_RETURN(object, config.architecture == "gpt2" ? gpt2_config(config) : llama_config(config));
  }
  object["tie_word_embeddings"] = config.tied_head;
  object["torch_dtype"] = torch_type(type);
  // Without these, readers assume the ids of the models that the architectures are named for.
  const Vocabulary& vocabulary = checkpoint.vocabulary;
  object["bos_token_id"] = vocabulary.bos.value < 0 ? ordered_json() : ordered_json(vocabulary.bos.value);
  object["eos_token_id"] = vocabulary.eos.value < 0 ? ordered_json() : ordered_json(vocabulary.eos.value);
  return dump_json(object, {.indent = 2}) + "\n";
}

}  // namespace butterfly
