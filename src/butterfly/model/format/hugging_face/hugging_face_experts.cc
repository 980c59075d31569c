#include "butterfly/model/format/hugging_face/hugging_face_experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "butterfly/model/format/hugging_face/hugging_face_names.h"

namespace butterfly {
namespace {

/// What the keys of a family are called, and what holds where a key is missing.
struct ExpertKeys {
  const char* experts = "num_experts";
  const char* experts_later = "num_local_experts";  // as transformers 5 calls it
  int usual_experts = 0;
  int usual_used = 0;
  const char* ff_dim = "moe_intermediate_size";
};

Status read_counts(const JsonObject& object, const ExpertKeys& keys, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  const char* count = object.find(keys.experts) ? keys.experts : keys.experts_later;
  BF_ASSIGN_OR_RETURN(moe.experts, object.integer_or(count, keys.usual_experts));
  BF_ASSIGN_OR_RETURN(moe.experts_used, object.integer_or("num_experts_per_tok", keys.usual_used));
  BF_ASSIGN_OR_RETURN(moe.ff_dim, object.integer(keys.ff_dim));
  return {};
}

/// Qwen: which layers have experts.
Status read_sparse_layers(const JsonObject& object, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const int step, object.integer_or("decoder_sparse_step", 1));
  BF_ASSIGN_OR_RETURN(const auto dense, object.numbers("mlp_only_layers"));
  if (step < 1) {
    return make_error(ErrorCode::kBadData, "{}: decoder_sparse_step is {}, expected at least 1", object.source(), step);
  }
  for (int layer = 0; layer < std::min(config.layers, kLayersMax); ++layer) {
    const bool named = std::ranges::find(dense, static_cast<float>(layer)) != dense.end();
    config.moe.layers.push_back(!named && (layer + 1) % step == 0 ? 1 : 0);
  }
  if (std::ranges::all_of(config.moe.layers, [](int kind) { return kind == 1; })) config.moe.layers.clear();
  return {};
}

/// DeepSeek and GLM: the first layers are dense.
Status read_first_dense(const JsonObject& object, int usual, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const int dense, object.integer_or("first_k_dense_replace", usual));
  if (dense == 0) return {};
  for (int layer = 0; layer < std::min(config.layers, kLayersMax); ++layer) {
    config.moe.layers.push_back(layer < dense ? 0 : 1);
  }
  return {};
}

Status read_mixtral_experts(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_counts(
      object, {.experts = "num_local_experts", .usual_experts = 8, .usual_used = 2, .ff_dim = "intermediate_size"},
      config));
  config.moe.renormalise = true;
  return {};
}

Status read_granite_experts(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_mixtral_experts(object, config));
  config.moe.renormalise = false;
  config.moe.scores = MoeConfig::Scores::kSoftmaxOfChosen;
  return {};
}

Status read_qwen2_experts(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_counts(object, {.usual_experts = 60, .usual_used = 4}, config));
  BF_ASSIGN_OR_RETURN(config.moe.renormalise, object.flag_or("norm_topk_prob", JsonObject::Default::kFalse));
  BF_ASSIGN_OR_RETURN(config.moe.shared_ff_dim, object.integer_or("shared_expert_intermediate_size", 5632));
  config.moe.shared_gate = true;
  return read_sparse_layers(object, config);
}

Status read_qwen3_experts(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_counts(object, {.usual_experts = 128, .usual_used = 8}, config));
  BF_ASSIGN_OR_RETURN(config.moe.renormalise, object.flag_or("norm_topk_prob", JsonObject::Default::kFalse));
  return read_sparse_layers(object, config);
}

Status read_olmoe_experts(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_counts(object, {.usual_experts = 64, .usual_used = 8, .ff_dim = "intermediate_size"}, config));
  BF_ASSIGN_OR_RETURN(config.moe.renormalise, object.flag_or("norm_topk_prob", JsonObject::Default::kFalse));
  return {};
}

Status read_gpt_oss_experts(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_counts(
      object, {.experts = "num_local_experts", .usual_experts = 128, .usual_used = 4, .ff_dim = "intermediate_size"},
      config));
  MoeConfig& moe = config.moe;
  moe.scores = MoeConfig::Scores::kSoftmaxOfChosen;
  moe.router_bias = moe.expert_bias = true;
  BF_ASSIGN_OR_RETURN(moe.swiglu_limit, object.number_or("swiglu_limit", 7.0f));
  BF_ASSIGN_OR_RETURN(const float alpha, object.number_or("swiglu_alpha", 1.702f));
  if (alpha != 1.702f) return unsupported(object, "swiglu_alpha", fmt::format("{}", alpha), "1.702");
  return {};
}

/// Groups, shared experts and scales, as DeepSeek began them.
Status read_deepseek_experts(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_counts(object, {.experts = "n_routed_experts", .usual_experts = 64, .usual_used = 6}, config));
  MoeConfig& moe = config.moe;
  BF_ASSIGN_OR_RETURN(const int shared, object.integer_or("n_shared_experts", 0));
  if (shared > 0 && moe.ff_dim > INT_MAX / shared) {
    return make_error(ErrorCode::kBadData, "{}: {} shared experts of width {} are too many", object.source(), shared,
                      moe.ff_dim);
  }
  moe.shared_ff_dim = shared * moe.ff_dim;
  BF_ASSIGN_OR_RETURN(const int each, object.integer_or("moe_layer_freq", 1));
  if (each != 1) return unsupported(object, "moe_layer_freq", fmt::format("{}", each), "1");
  BF_ASSIGN_OR_RETURN(moe.weight_scale, object.number_or("routed_scaling_factor", 1.0f));
  BF_ASSIGN_OR_RETURN(moe.groups, object.integer_or("n_group", 1));
  BF_ASSIGN_OR_RETURN(moe.groups_used, object.integer_or("topk_group", 1));
  if (config.architecture == "deepseek2" && object.find("topk_method")) {
    BF_ASSIGN_OR_RETURN(const std::string method, object.text_or("topk_method", ""));
    if (method == "greedy") moe.groups = moe.groups_used = 1;
    if (method != "greedy" && method != "group_limited_greedy" && method != "noaux_tc") {
      return unsupported(object, "topk_method", method, "greedy, group_limited_greedy or noaux_tc");
    }
  }
  return {};
}

Status read_deepseek2_experts(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_deepseek_experts(object, config));
  BF_ASSIGN_OR_RETURN(const bool renormalised, object.flag_or("norm_topk_prob", JsonObject::Default::kFalse));
  if (renormalised) return unsupported(object, "norm_topk_prob", "true", "false");
  return read_first_dense(object, 0, config);
}

Status read_deepseek3_experts(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_deepseek_experts(object, config));
  MoeConfig& moe = config.moe;
  moe.scores = MoeConfig::Scores::kSigmoid;
  moe.group_score = MoeConfig::GroupScore::kTwoLargest;
  moe.choice_bias = true;
  BF_ASSIGN_OR_RETURN(moe.renormalise, object.flag_or("norm_topk_prob", JsonObject::Default::kTrue));
  moe.renormalise_epsilon = 1e-20f;
  return read_first_dense(object, config.architecture == "glm4moe" ? 1 : 3, config);
}

struct HfExperts {
  std::string_view model_type;
  Status (*read)(const JsonObject&, ModelConfig&);
};
constexpr HfExperts kHfExperts[] = {
    {"mixtral", read_mixtral_experts},       {"granitemoe", read_granite_experts},
    {"qwen2_moe", read_qwen2_experts},       {"qwen3_moe", read_qwen3_experts},
    {"olmoe", read_olmoe_experts},           {"gpt_oss", read_gpt_oss_experts},
    {"glm4_moe", read_deepseek3_experts},    {"deepseek_v2", read_deepseek2_experts},
    {"deepseek_v3", read_deepseek3_experts},
};

}  // namespace

Status read_hugging_face_experts(const JsonObject& object, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const std::string type, object.text_or("model_type", ""));
  const auto* family = std::ranges::find(kHfExperts, std::string_view(type), &HfExperts::model_type);
  if (family == std::end(kHfExperts)) return {};
  BF_TRY(family->read(object, config));
  const bool all_dense = !config.moe.layers.empty() && std::ranges::count(config.moe.layers, 1) == 0;
  if (config.moe.experts == 0 || all_dense) config.moe = {};
  return {};
}

StackedExperts stacked_experts(std::string_view canonical, std::string_view architecture) {
  const WeightNameParts parts = split_weight_name(canonical);
  if (parts.expert.empty()) return {};
  const bool down = parts.stem == "ffn_down_exps";
  if (architecture == "granitemoe") {
    return {.name = fmt::format("model.layers.{}.block_sparse_moe.{}.weight", parts.layer,
                                down ? "output_linear" : "input_linear"),
            .of_gate_and_up = !down};
  }
  const bool oss = architecture == "gpt-oss";
  return {.name = fmt::format("model.layers.{}.mlp.experts.{}{}", parts.layer, down ? "down_proj" : "gate_up_proj",
                              parts.kind == "bias" ? "_bias" : ""),
          .of_gate_and_up = !down,
          .transposed = oss,
          .interleaved = oss && !down};
}

}  // namespace butterfly
