#include "butterfly/model/core/config_json.h"

#include <limits>

#include "butterfly/base/json.h"

namespace butterfly {
namespace {

/// Writes fields into JSON and reads them back by the same list, so that the two cannot disagree.
class Writer {
 public:
  template <typename T>
  void operator()(const char* name, const T& value) {
    if constexpr (std::is_enum_v<T>) {
      json[name] = static_cast<int>(value);
    } else {
      json[name] = value;
    }
  }
  /// Left out where it is what it is without being written.
  template <typename T>
  void optional(const char* name, const T& value, const T& fallback) {
    if (value != fallback) (*this)(name, value);
  }
  nlohmann::ordered_json json;
};

class Reader {
 public:
  explicit Reader(const nlohmann::json& json) : json_(json) {}

  template <typename T>
  void operator()(const char* name, T& value) {
    const auto found = json_.find(name);
    if (found == json_.end() || !take(*found, value)) {
      if (bad_.empty()) bad_ = name;
    }
  }

  template <typename T>
  void optional(const char* name, T& value, const T&) {
    if (json_.contains(name)) (*this)(name, value);
  }

  const std::string& bad() const { return bad_; }

 private:
  static bool take(const nlohmann::json& j, std::string& value) {
    if (!j.is_string()) return false;
    value = j.get<std::string>();
    return true;
  }
  static bool take(const nlohmann::json& j, bool& value) {
    if (!j.is_boolean()) return false;
    value = j.get<bool>();
    return true;
  }
  static bool take(const nlohmann::json& j, float& value) {
    if (!j.is_number()) return false;
    value = j.get<float>();
    return true;
  }
  static bool take(const nlohmann::json& j, int& value) {
    if (!j.is_number_integer()) return false;
    const auto wide = j.get<std::int64_t>();
    if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) return false;
    value = static_cast<int>(wide);
    return true;
  }
  static bool take(const nlohmann::json& j, std::vector<int>& values) {
    if (!j.is_array()) return false;
    for (const auto& item : j) {
      if (!take(item, values.emplace_back())) return false;
    }
    return true;
  }
  static bool take(const nlohmann::json& j, std::vector<float>& values) {
    if (!j.is_array()) return false;
    for (const auto& item : j) {
      if (!item.is_number()) return false;
      values.push_back(item.get<float>());
    }
    return true;
  }
  template <typename Enum>
    requires std::is_enum_v<Enum>
  static bool take(const nlohmann::json& j, Enum& value) {
    int number = 0;
    if (!take(j, number) || number < 0 || number > count_of(value) - 1) return false;
    value = static_cast<Enum>(number);
    return true;
  }
  static constexpr int count_of(RopeConfig::Scaling) { return 3; }
  static constexpr int count_of(DType) { return static_cast<int>(kAllDTypes.size()); }
  static constexpr int count_of(NormPlace) { return 4; }
  static constexpr int count_of(QkNorm) { return 3; }
  static constexpr int count_of(Activation) { return 3; }
  static constexpr int count_of(PositionKind) { return 3; }
  static constexpr int count_of(MoeConfig::Scores) { return 3; }
  template <typename Enum>
  static constexpr int count_of(Enum) {
    return 2;
  }

  const nlohmann::json& json_;
  std::string bad_;
};

/// What only some families have. Left out where it is off, so that the text of the others stays what it was.
template <typename StatusClient, typename Config>
void visit_variants(StatusClient& field, Config& c) {
  const ModelConfig off;
  field.optional("rope_magnitude", c.rope.magnitude, off.rope.magnitude);
  field.optional("local_rope_base", c.local_rope.base, off.local_rope.base);
  field.optional("local_rope_dim", c.local_rope.dim, off.local_rope.dim);
  field.optional("local_rope_pairs", c.local_rope.pairs, off.local_rope.pairs);
  field.optional("local_rope_scaling", c.local_rope.scaling, off.local_rope.scaling);
  field.optional("local_rope_factor", c.local_rope.factor, off.local_rope.factor);
  field.optional("local_rope_factors", c.local_rope.factors, off.local_rope.factors);
  field.optional("local_rope_magnitude", c.local_rope.magnitude, off.local_rope.magnitude);
  field.optional("ropes", c.ropes, off.ropes);
  field.optional("windows", c.windows, off.windows);
  field.optional("qk_norm", c.qk_norm, off.qk_norm);
  field.optional("attention_scale", c.attention_scale, off.attention_scale);
  field.optional("attention_cap", c.attention_cap, off.attention_cap);
  field.optional("logit_cap", c.logit_cap, off.logit_cap);
  field.optional("alibi_max_bias", c.alibi_max_bias, off.alibi_max_bias);
  field.optional("parallel_block", c.parallel_block, off.parallel_block);
  field.optional("shared_norm", c.shared_norm, off.shared_norm);
  field.optional("embedding_scale", c.embedding_scale, off.embedding_scale);
  field.optional("residual_scale", c.residual_scale, off.residual_scale);
  field.optional("logit_scale", c.logit_scale, off.logit_scale);
  field.optional("head_bias", c.head_bias, off.head_bias);
}

template <typename StatusClient, typename Config>
void visit_experts(StatusClient& field, Config& c) {
  const MoeConfig off;
  field.optional("experts", c.experts, off.experts);
  field.optional("experts_used", c.experts_used, off.experts_used);
  field.optional("expert_ff_dim", c.ff_dim, off.ff_dim);
  field.optional("expert_layers", c.layers, off.layers);
  field.optional("expert_scores", c.scores, off.scores);
  field.optional("expert_choice_bias", c.choice_bias, off.choice_bias);
  field.optional("expert_groups", c.groups, off.groups);
  field.optional("expert_groups_used", c.groups_used, off.groups_used);
  field.optional("expert_group_score", c.group_score, off.group_score);
  field.optional("expert_renormalise", c.renormalise, off.renormalise);
  field.optional("expert_renormalise_epsilon", c.renormalise_epsilon, off.renormalise_epsilon);
  field.optional("expert_weight_scale", c.weight_scale, off.weight_scale);
  field.optional("router_bias", c.router_bias, off.router_bias);
  field.optional("expert_bias", c.expert_bias, off.expert_bias);
  field.optional("shared_ff_dim", c.shared_ff_dim, off.shared_ff_dim);
  field.optional("shared_gate", c.shared_gate, off.shared_gate);
  field.optional("swiglu_limit", c.swiglu_limit, off.swiglu_limit);
}

template <typename StatusClient, typename Config>
void visit(StatusClient& field, Config& c) {
  field("architecture", c.architecture);
  field("name", c.name);
  field("layers", c.layers);
  field("model_dim", c.model_dim);
  field("heads", c.heads);
  field("kv_heads", c.kv_heads);
  field("head_dim", c.head_dim);
  field("ff_dim", c.ff_dim);
  field("vocab", c.vocab);
  field("context", c.context);
  field("norm", c.norm);
  field("norm_place", c.norm_place);
  field("norm_epsilon", c.norm_epsilon);
  field("activation", c.activation);
  field("mlp", c.mlp);
  field("position", c.position);
  field("rope_base", c.rope.base);
  field("rope_dim", c.rope.dim);
  field("rope_pairs", c.rope.pairs);
  field("rope_scaling", c.rope.scaling);
  field("rope_factor", c.rope.factor);
  field("rope_low_freq_factor", c.rope.low_freq_factor);
  field("rope_high_freq_factor", c.rope.high_freq_factor);
  field("rope_original_context", c.rope.original_context);
  field("rope_factors", c.rope.factors);
  field("qkv_bias", c.qkv_bias);
  field("attention_output_bias", c.attention_output_bias);
  field("mlp_bias", c.mlp_bias);
  field("norm_bias", c.norm_bias);
  field("tied_head", c.tied_head);
  field("weight_type", c.weight_type);
  visit_variants(field, c);
  visit_experts(field, c.moe);
}

}  // namespace

std::string to_json(const ModelConfig& config) {
  Writer writer;
  visit(writer, config);
  return dump_json(writer.json);
}

Result<ModelConfig> parse_config(const std::string& text) {
  const auto json = parse_json(text);
  if (!json.is_object())
    return make_error(ErrorCode::kBadData, "a model's configuration of {} bytes is no JSON object", text.size());
  ModelConfig config;
  Reader reader(json);
  visit(reader, config);
  if (!reader.bad().empty()) {
    return make_error(ErrorCode::kBadData, "the field {} of a model's configuration is missing or of another type",
                      reader.bad());
  }
  BF_TRY(validate(config));
  return config;
}

}  // namespace butterfly
