#include "butterfly/cluster/control/model_config_message.h"

#include <tuple>
#include <type_traits>

#include "butterfly/cluster/control/model_config.pb.h"
#include "butterfly/tensor/sub_blocks.h"

namespace butterfly {
namespace {

constexpr std::size_t kNameBytesMax = 4096;

/// A number, a flag or a choice, where it is and how the message has it.
template <typename Config, typename Message, typename T, typename Wire>
struct Field {
  const char* name;
  T Config::*value;
  Wire (Message::*get)() const;
  void (Message::*set)(Wire);
  T last{};  // of a choice: its last enumerator
};
// clang 16 deduces no arguments of an aggregate by itself.
template <typename Config, typename Message, typename T, typename Wire>
Field(const char*, T Config::*, Wire (Message::*)() const, void (Message::*)(Wire), T = T{})
    -> Field<Config, Message, T, Wire>;

#define BF_FIELD(Config, field, ...)                                                                          \
  Field {                                                                                                     \
    #field, &Config::field, &control::Config::field, &control::Config::set_##field __VA_OPT__(, ) __VA_ARGS__ \
  }

// A new field of the configuration is a line here and one in model_config.proto; lists, texts and parts that are
// structs themselves have theirs below.
constexpr std::tuple kRopeFields{
    BF_FIELD(RopeConfig, base),
    BF_FIELD(RopeConfig, dim),
    BF_FIELD(RopeConfig, pairs, RopePairs::kHalves),
    BF_FIELD(RopeConfig, scaling, RopeConfig::Scaling::kLlama3),
    BF_FIELD(RopeConfig, factor),
    BF_FIELD(RopeConfig, low_freq_factor),
    BF_FIELD(RopeConfig, high_freq_factor),
    BF_FIELD(RopeConfig, original_context),
    BF_FIELD(RopeConfig, magnitude),
};

constexpr std::tuple kLatentFields{
    BF_FIELD(LatentConfig, dim),
    BF_FIELD(LatentConfig, query_rank),
    BF_FIELD(LatentConfig, value_dim),
    BF_FIELD(LatentConfig, norm_epsilon),
};

constexpr std::tuple kRelativeFields{
    BF_FIELD(RelativeConfig, buckets),
    BF_FIELD(RelativeConfig, distance),
    BF_FIELD(RelativeConfig, shared),
};

constexpr std::tuple kMoeFields{
    BF_FIELD(MoeConfig, experts),      BF_FIELD(MoeConfig, experts_used),
    BF_FIELD(MoeConfig, ff_dim),       BF_FIELD(MoeConfig, scores, MoeConfig::Scores::kSigmoid),
    BF_FIELD(MoeConfig, choice_bias),  BF_FIELD(MoeConfig, groups),
    BF_FIELD(MoeConfig, groups_used),  BF_FIELD(MoeConfig, group_score, MoeConfig::GroupScore::kTwoLargest),
    BF_FIELD(MoeConfig, renormalise),  BF_FIELD(MoeConfig, renormalise_epsilon),
    BF_FIELD(MoeConfig, weight_scale), BF_FIELD(MoeConfig, router_bias),
    BF_FIELD(MoeConfig, expert_bias),  BF_FIELD(MoeConfig, shared_ff_dim),
    BF_FIELD(MoeConfig, shared_gate),  BF_FIELD(MoeConfig, swiglu_limit),
};

constexpr std::tuple kModelFields{
    BF_FIELD(ModelConfig, layers),
    BF_FIELD(ModelConfig, model_dim),
    BF_FIELD(ModelConfig, heads),
    BF_FIELD(ModelConfig, kv_heads),
    BF_FIELD(ModelConfig, head_dim),
    BF_FIELD(ModelConfig, ff_dim),
    BF_FIELD(ModelConfig, vocab),
    BF_FIELD(ModelConfig, context),
    BF_FIELD(ModelConfig, norm, NormKind::kLayer),
    BF_FIELD(ModelConfig, norm_place, NormPlace::kBoth),
    BF_FIELD(ModelConfig, norm_epsilon),
    BF_FIELD(ModelConfig, activation, Activation::kRelu),
    BF_FIELD(ModelConfig, mlp, MlpKind::kPlain),
    BF_FIELD(ModelConfig, position, PositionKind::kNone),
    BF_FIELD(ModelConfig, qk_norm, QkNorm::kWidth),
    BF_FIELD(ModelConfig, attention_scale),
    BF_FIELD(ModelConfig, attention_cap),
    BF_FIELD(ModelConfig, logit_cap),
    BF_FIELD(ModelConfig, attention_sinks),
    BF_FIELD(ModelConfig, alibi_max_bias),
    BF_FIELD(ModelConfig, parallel_block),
    BF_FIELD(ModelConfig, shared_norm),
    BF_FIELD(ModelConfig, embedding_scale),
    BF_FIELD(ModelConfig, residual_scale),
    BF_FIELD(ModelConfig, logit_scale),
    BF_FIELD(ModelConfig, qkv_bias),
    BF_FIELD(ModelConfig, attention_output_bias),
    BF_FIELD(ModelConfig, mlp_bias),
    BF_FIELD(ModelConfig, norm_bias),
    BF_FIELD(ModelConfig, head_bias),
    BF_FIELD(ModelConfig, tied_head),
    BF_FIELD(ModelConfig, weight_type, DType::kInt8),
    BF_FIELD(ModelConfig, encoder_layers),
    BF_FIELD(ModelConfig, embedding_dim),
    BF_FIELD(ModelConfig, token_types),
    BF_FIELD(ModelConfig, embedding_norm),
    BF_FIELD(ModelConfig, skip_first_norm),
    BF_FIELD(ModelConfig, layer_groups),
    BF_FIELD(ModelConfig, head_transform),
    BF_FIELD(ModelConfig, head_transform_bias),
    BF_FIELD(ModelConfig, head_gelu),
    BF_FIELD(ModelConfig, output, OutputKind::kHidden),
    BF_FIELD(ModelConfig, decoder_start),
};
#undef BF_FIELD

template <typename Config, typename Message, typename... Fields>
void store_fields(const std::tuple<Fields...>& fields, const Config& config, Message& message) {
  const auto store_one = [&]<typename T, typename Wire>(const Field<Config, Message, T, Wire>& field) {
    (message.*field.set)(static_cast<Wire>(config.*field.value));
  };
  std::apply([&](const auto&... field) { (store_one(field), ...); }, fields);
}

template <typename Config, typename Message, typename T, typename Wire>
Status read_field(const Field<Config, Message, T, Wire>& field, const Message& message, Config& config) {
  const Wire said = (message.*field.get)();
  if constexpr (std::is_enum_v<T>) {
    if (said > static_cast<Wire>(field.last)) {
      return make_error(ErrorCode::kBadData, "a model's {} is number {} of its choices, the last one is {}", field.name,
                        said, static_cast<Wire>(field.last));
    }
  }
  config.*field.value = static_cast<T>(said);
  return {};
}

/// Errors: of the first field that has one.
template <typename Config, typename Message, typename... Fields>
Status read_fields(const std::tuple<Fields...>& fields, const Message& message, Config& config) {
  Status status;
  const auto read_one = [&](const auto& field) { return (status = read_field(field, message, config)).has_value(); };
  std::apply([&](const auto&... field) { static_cast<void>((read_one(field) && ...)); }, fields);
  return status;
}

template <typename T, typename List>
Status read_list(const char* name, const List& said, std::vector<T>& values) {
  if (said.size() > kLayersMax) {
    return make_error(ErrorCode::kBadData, "a model has {} {}, the limit is {}", said.size(), name, kLayersMax);
  }
  values.assign(said.begin(), said.end());
  return {};
}

Status read_text(const char* name, const std::string& said, std::string& text) {
  if (said.size() > kNameBytesMax) {
    return make_error(ErrorCode::kBadData, "a model's {} has {} bytes, the limit is {}", name, said.size(),
                      kNameBytesMax);
  }
  text = said;
  return {};
}

void store(const RopeConfig& rope, control::RopeConfig& message) {
  store_fields(kRopeFields, rope, message);
  message.mutable_factors()->Assign(rope.factors.begin(), rope.factors.end());
}

Status read_rope(const control::RopeConfig& message, RopeConfig& rope) {
  BF_TRY(read_fields(kRopeFields, message, rope));
  return read_list("rope factors", message.factors(), rope.factors);
}

}  // namespace

void store(const ModelConfig& config, control::ModelConfig& message) {
  store_fields(kModelFields, config, message);
  message.set_architecture(config.architecture);
  message.set_name(config.name);
  store(config.rope, *message.mutable_rope());
  store(config.local_rope, *message.mutable_local_rope());
  store_fields(kLatentFields, config.latent, *message.mutable_latent());
  store_fields(kRelativeFields, config.relative, *message.mutable_relative());
  store_fields(kMoeFields, config.moe, *message.mutable_moe());
  message.mutable_moe()->mutable_layers()->Assign(config.moe.layers.begin(), config.moe.layers.end());
  message.mutable_ropes()->Assign(config.ropes.begin(), config.ropes.end());
  message.mutable_windows()->Assign(config.windows.begin(), config.windows.end());
}

Result<ModelConfig> read_model_config(const control::ModelConfig& message) {
  ModelConfig config;
  BF_TRY(read_fields(kModelFields, message, config));
  if (has_sub_blocks(config.weight_type)) {
    return make_error(ErrorCode::kBadData, "a model's weight_type is number {} of its choices, which no file has",
                      message.weight_type());
  }
  BF_TRY(read_text("architecture", message.architecture(), config.architecture));
  BF_TRY(read_text("name", message.name(), config.name));
  BF_TRY(read_rope(message.rope(), config.rope));
  BF_TRY(read_rope(message.local_rope(), config.local_rope));
  BF_TRY(read_fields(kLatentFields, message.latent(), config.latent));
  BF_TRY(read_fields(kRelativeFields, message.relative(), config.relative));
  BF_TRY(read_fields(kMoeFields, message.moe(), config.moe));
  BF_TRY(read_list("kinds of MLP", message.moe().layers(), config.moe.layers));
  BF_TRY(read_list("kinds of rope", message.ropes(), config.ropes));
  BF_TRY(read_list("sliding windows", message.windows(), config.windows));
  BF_TRY(validate(config));
  return config;
}

}  // namespace butterfly
