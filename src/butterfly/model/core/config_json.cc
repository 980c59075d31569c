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
  static constexpr int count_of(DType) { return 6; }
  template <typename Enum>
  static constexpr int count_of(Enum) {
    return 2;
  }

  const nlohmann::json& json_;
  std::string bad_;
};

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
