#include "butterfly/cluster/control/model_config_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <tuple>

#include "butterfly/cluster/control/model_config.pb.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

/// Every field of the struct. Does not compile when a field is new: it belongs here, into unlike_default(), and into
/// the message.
auto fields(const RopeConfig& config) {
  const auto& [base, dim, pairs, scaling, factor, low_freq_factor, high_freq_factor, original_context, factors,
               magnitude, yarn] = config;
  static_cast<void>(yarn);  // for files alone: the factors say it
  return std::tie(base, dim, pairs, scaling, factor, low_freq_factor, high_freq_factor, original_context, factors,
                  magnitude);
}

auto fields(const LatentConfig& config) {
  const auto& [dim, query_rank, value_dim, norm_epsilon] = config;
  return std::tie(dim, query_rank, value_dim, norm_epsilon);
}

auto fields(const RelativeConfig& config) {
  const auto& [buckets, distance, shared] = config;
  return std::tie(buckets, distance, shared);
}

auto fields(const MoeConfig& config) {
  const auto& [experts, experts_used, ff_dim, layers, scores, choice_bias, groups, groups_used, group_score,
               renormalise, renormalise_epsilon, weight_scale, router_bias, expert_bias, shared_ff_dim, shared_gate,
               swiglu_limit] = config;
  return std::tie(experts, experts_used, ff_dim, layers, scores, choice_bias, groups, groups_used, group_score,
                  renormalise, renormalise_epsilon, weight_scale, router_bias, expert_bias, shared_ff_dim, shared_gate,
                  swiglu_limit);
}

auto fields(const ModelConfig& config) {
  const auto& [architecture, name, layers, encoder_layers, model_dim, heads, kv_heads, head_dim, ff_dim, vocab, context,
               norm, norm_place, norm_epsilon, activation, mlp, position, rope, local_rope, ropes, windows, relative,
               qk_norm, attention_scale, attention_cap, logit_cap, attention_sinks, latent, alibi_max_bias,
               parallel_block, shared_norm, embedding_scale, residual_scale, logit_scale, qkv_bias,
               attention_output_bias, mlp_bias, norm_bias, head_bias, tied_head, embedding_dim, token_types,
               embedding_norm, skip_first_norm, layer_groups, head_transform, head_transform_bias, head_gelu, output,
               decoder_start, moe, weight_type] = config;
  return std::tuple_cat(
      std::tie(architecture, name, layers, model_dim, heads, kv_heads, head_dim, ff_dim, vocab, context, norm,
               norm_place, norm_epsilon, activation, mlp, position, ropes, windows, qk_norm, attention_scale,
               attention_cap, logit_cap, attention_sinks, alibi_max_bias, parallel_block, shared_norm, embedding_scale,
               residual_scale, logit_scale, qkv_bias, attention_output_bias, mlp_bias, norm_bias, head_bias, tied_head,
               weight_type, encoder_layers, embedding_dim, token_types, embedding_norm, skip_first_norm, layer_groups,
               head_transform, head_transform_bias, head_gelu, output, decoder_start),
      fields(rope), fields(local_rope), fields(latent), fields(relative), fields(moe));
}

RopeConfig unlike_default(float base, int dim) {
  return {.base = base,
          .dim = dim,
          .pairs = RopePairs::kHalves,
          .scaling = RopeConfig::Scaling::kLlama3,
          .factor = 8.1f,
          .low_freq_factor = 1.1f,
          .high_freq_factor = 4.1f,
          .original_context = 4096,
          .factors = std::vector<float>(static_cast<std::size_t>(dim / 2), 1.3f),
          .magnitude = 1.19f};
}

/// No field is what it is without being said. validate() refuses it.
ModelConfig unlike_default() {
  ModelConfig config;
  config.architecture = "gemma3";
  config.name = "made up";
  config.layers = 3;
  config.model_dim = 96;
  config.heads = 12;
  config.kv_heads = 4;
  config.head_dim = 16;
  config.ff_dim = 160;
  config.vocab = 1000;
  config.context = 2048;
  config.norm = NormKind::kLayer;
  config.norm_place = NormPlace::kBoth;
  config.norm_epsilon = 1.1e-6f;
  config.activation = Activation::kGeluTanh;
  config.mlp = MlpKind::kPlain;
  config.position = PositionKind::kLearned;
  config.rope = unlike_default(1e6f, 16);
  config.local_rope = unlike_default(5e5f, 8);
  config.ropes = {kMainRope, kLocalRope, kNoRope};
  config.windows = {0, 7, 9};
  config.qk_norm = QkNorm::kWidth;
  config.attention_scale = 0.1f;
  config.attention_cap = 50.0f;
  config.logit_cap = 30.0f;
  config.attention_sinks = true;
  config.latent = {.dim = 40, .query_rank = 24, .value_dim = 12, .norm_epsilon = 1e-6f};
  config.moe = {.experts = 8,
                .experts_used = 3,
                .ff_dim = 48,
                .layers = {0, 1, 1},
                .scores = MoeConfig::Scores::kSigmoid,
                .choice_bias = true,
                .groups = 4,
                .groups_used = 2,
                .group_score = MoeConfig::GroupScore::kTwoLargest,
                .renormalise = true,
                .renormalise_epsilon = 1e-20f,
                .weight_scale = 2.5f,
                .router_bias = true,
                .expert_bias = true,
                .shared_ff_dim = 96,
                .shared_gate = true,
                .swiglu_limit = 7.0f};
  config.encoder_layers = 2;
  config.relative = {.buckets = 16, .distance = 77, .shared = true};
  config.embedding_dim = 48;
  config.token_types = 2;
  config.embedding_norm = config.skip_first_norm = true;
  config.layer_groups = 3;
  config.head_transform = config.head_transform_bias = config.head_gelu = true;
  config.output = OutputKind::kHidden;
  config.decoder_start = 7;
  config.alibi_max_bias = 4.0f;
  config.parallel_block = config.shared_norm = true;
  config.embedding_scale = 16.0f;
  config.residual_scale = 0.22f;
  config.logit_scale = 0.125f;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = config.norm_bias = config.head_bias = true;
  config.tied_head = true;
  config.weight_type = DType::kMXFP4;
  return config;
}

/// One that validate() takes, with the fields of all the families that have any.
ModelConfig possible() {
  ModelConfig config = unlike_default();
  config.position = PositionKind::kRope;
  config.parallel_block = config.shared_norm = false;
  config.latent = {};
  config.moe = {};
  config.encoder_layers = config.layer_groups = 0;
  return config;
}

control::ModelConfig message_of(const ModelConfig& config) {
  control::ModelConfig message;
  store(config, message);
  return message;
}

template <typename Tuple, std::size_t... Index>
std::vector<std::size_t> equal_fields(const Tuple& a, const Tuple& b, std::index_sequence<Index...> /*all*/) {
  std::vector<std::size_t> same;
  ((std::get<Index>(a) == std::get<Index>(b) ? same.push_back(Index) : void()), ...);
  return same;
}

TEST(ModelConfigMessage, NoFieldIsForgotten) {
  const ModelConfig config = unlike_default(), fallback;
  using All = std::make_index_sequence<std::tuple_size_v<decltype(fields(config))>>;
  EXPECT_THAT(equal_fields(fields(config), fields(fallback), All()), ::testing::IsEmpty());
  // No model is all of this at once: six have all of it between them.
  const auto heard = read_model_config(message_of(possible()));
  ASSERT_TRUE(heard) << heard.error().message;
  EXPECT_EQ(fields(*heard), fields(possible()));
  ModelConfig learned = possible();
  learned.position = PositionKind::kLearned;
  learned.norm_place = NormPlace::kBefore;
  learned.parallel_block = learned.shared_norm = true;
  const auto other = read_model_config(message_of(learned));
  ASSERT_TRUE(other) << other.error().message;
  EXPECT_EQ(fields(*other), fields(learned));
  ModelConfig latent = possible();
  latent.latent = unlike_default().latent;
  latent.kv_heads = 1;
  latent.rope = unlike_default(1e6f, 8);
  latent.ropes.clear();
  latent.qk_norm = QkNorm::kNone;
  latent.qkv_bias = false;
  const auto third = read_model_config(message_of(latent));
  ASSERT_TRUE(third) << third.error().message;
  EXPECT_EQ(fields(*third), fields(latent));
  ModelConfig experts = possible();
  experts.moe = unlike_default().moe;
  experts.mlp = MlpKind::kGated;
  experts.norm_bias = false;
  const auto fourth = read_model_config(message_of(experts));
  ASSERT_TRUE(fourth) << fourth.error().message;
  EXPECT_EQ(fields(*fourth), fields(experts));
  ModelConfig encoder = possible();
  encoder.encoder_layers = encoder.layers;
  const auto fifth = read_model_config(message_of(encoder));
  ASSERT_TRUE(fifth) << fifth.error().message;
  EXPECT_EQ(fields(*fifth), fields(encoder));
  ModelConfig shared = encoder;
  shared.layer_groups = 3;
  shared.skip_first_norm = false;
  shared.windows.clear();
  shared.ropes.clear();
  const auto sixth = read_model_config(message_of(shared));
  ASSERT_TRUE(sixth) << sixth.error().message;
  EXPECT_EQ(fields(*sixth), fields(shared));
}

TEST(ModelConfigMessage, EveryNamedShapeSurvives) {
  for (const std::string& name : named_configs()) {
    const ModelConfig config = *named_config(name);
    const auto heard = read_model_config(message_of(config));
    ASSERT_TRUE(heard) << heard.error().message;
    EXPECT_EQ(fields(*heard), fields(config)) << name;
  }
}

TEST(ModelConfigMessage, ChoicesThatDoNotExistHereAreNamed) {
  const std::vector<std::pair<const char*, std::function<void(control::ModelConfig&)>>> spoilt{
      {"norm", [](auto& m) { m.set_norm(2); }},
      {"norm_place", [](auto& m) { m.set_norm_place(4); }},
      {"activation", [](auto& m) { m.set_activation(4); }},
      {"mlp", [](auto& m) { m.set_mlp(2); }},
      {"position", [](auto& m) { m.set_position(4); }},
      {"output", [](auto& m) { m.set_output(2); }},
      {"qk_norm", [](auto& m) { m.set_qk_norm(1u << 31); }},
      {"pairs", [](auto& m) { m.mutable_rope()->set_pairs(256); }},
      {"scaling", [](auto& m) { m.mutable_local_rope()->set_scaling(3); }},
      {"weight_type", [](auto& m) { m.set_weight_type(static_cast<std::uint32_t>(DType::kBytes16)); }},
  };
  for (const auto& [field, spoil] : spoilt) {
    control::ModelConfig message = message_of(possible());
    spoil(message);
    const auto heard = read_model_config(message);
    ASSERT_FALSE(heard) << field;
    EXPECT_THAT(heard.error().message, HasSubstr(fmt::format("a model's {} is number", field)));
  }
}

TEST(ModelConfigMessage, WhatNoModelCanBeIsRefused) {
  const std::vector<std::pair<const char*, std::function<void(control::ModelConfig&)>>> spoilt{
      {"layers", [](auto& m) { m.set_layers(-5); }},
      {"epsilon", [](auto& m) { m.set_norm_epsilon(std::numeric_limits<float>::quiet_NaN()); }},
      {"4 sliding windows for 3 layers", [](auto& m) { m.add_windows(1); }},
      {"16385 sliding windows, the limit is", [](auto& m) { m.mutable_windows()->Resize((1 << 14) + 1, 0); }},
      {"16385 kinds of rope, the limit is", [](auto& m) { m.mutable_ropes()->Resize((1 << 14) + 1, 0); }},
      {"rope factors, the limit is", [](auto& m) { m.mutable_rope()->mutable_factors()->Resize((1 << 14) + 1, 1); }},
      {"name has 4097 bytes", [](auto& m) { m.set_name(std::string(4097, 'a')); }},
      {"architecture has 4097 bytes", [](auto& m) { m.set_architecture(std::string(4097, 'a')); }},
  };
  for (const auto& [sentence, spoil] : spoilt) {
    control::ModelConfig message = message_of(possible());
    spoil(message);
    const auto heard = read_model_config(message);
    ASSERT_FALSE(heard) << sentence;
    EXPECT_THAT(heard.error().message, HasSubstr(sentence));
  }
  EXPECT_FALSE(read_model_config({})) << "nothing said";
}

}  // namespace
}  // namespace butterfly
