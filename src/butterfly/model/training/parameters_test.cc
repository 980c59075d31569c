#include "butterfly/model/core/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "butterfly/model/core/weights.h"
#include "butterfly/model/training/training_model_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

TEST(Parameters, AreTheWeightsOfTheModelInForwardOrder) {
  for (const std::string& kind : network_kinds()) {
    const ModelConfig config = transformer_config(kind);
    const auto set = ParameterSet::create(config);
    ASSERT_TRUE(set) << set.error().message;
    std::set<std::string> names;
    std::int64_t end = 0;
    for (const Parameter& parameter : set->list()) {
      names.insert(parameter.name);
      EXPECT_EQ(parameter.offset % 16, 0) << parameter.name;
      EXPECT_GE(parameter.offset, end);
      EXPECT_LT(parameter.offset, end + 16);
      end = parameter.offset + parameter.size();
    }
    EXPECT_EQ(set->padded_size(), (end + 15) / 16 * 16);
    EXPECT_EQ(static_cast<std::uint64_t>(set->parameter_count()), parameter_count(config));
    std::set<std::string> expected;
    for (const WeightInfo& weight :
         expected_weights(config, {.first_layer = 0, .last_layer = 2, .embedding = true, .head = true})) {
      expected.insert(weight.name);
    }
    EXPECT_EQ(names, expected) << kind;
    EXPECT_EQ(set->list().front().name, "token_embd.weight");
    EXPECT_TRUE(set->list().back().name.starts_with("output"));
  }
}

TEST(Parameters, OfOneMatmulLieBehindOneAnother) {
  for (const std::string& kind : network_kinds()) {
    const auto set = ParameterSet::create(transformer_config(kind));
    const auto end_of = [&](const std::string& name) {
      const Parameter& parameter = **set->find(name);
      return parameter.offset + parameter.size();
    };
    const auto begin_of = [&](const std::string& name) { return (*set->find(name))->offset; };
    for (const char* part : {".weight", ".bias"}) {
      if (!set->find(std::string("blk.1.attn_q") + part)) continue;
      EXPECT_EQ(end_of(std::string("blk.1.attn_q") + part), begin_of(std::string("blk.1.attn_k") + part)) << kind;
      EXPECT_EQ(end_of(std::string("blk.1.attn_k") + part), begin_of(std::string("blk.1.attn_v") + part)) << kind;
      if (!set->find(std::string("blk.1.ffn_gate") + part)) continue;
      EXPECT_EQ(end_of(std::string("blk.1.ffn_gate") + part), begin_of(std::string("blk.1.ffn_up") + part)) << kind;
    }
  }
}

TEST(Parameters, DecayMatricesAlone) {
  const auto set = ParameterSet::create(transformer_config("gpt2"));
  for (const Parameter& parameter : set->list()) {
    const bool matrix = parameter.name.ends_with(".weight") && parameter.name.find("norm") == std::string::npos;
    EXPECT_EQ(parameter.decay, matrix ? DecayGroup::kDecayed : DecayGroup::kNotDecayed) << parameter.name;
  }
}

TEST(Parameters, AreFrozenByNameAndByPrefix) {
  auto set = ParameterSet::create(transformer_config("llama"));
  ASSERT_TRUE(set->freeze({"blk.0.", "output_norm.weight"}));
  for (const Parameter& parameter : set->list()) {
    EXPECT_EQ(parameter.frozen, parameter.name.starts_with("blk.0.") || parameter.name == "output_norm.weight")
        << parameter.name;
  }
  for (const char* nothing : {"blk.7.", ""}) {
    const auto status = set->freeze({nothing});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(status.error().message, HasSubstr(std::string("\"") + nothing + "\" freezes nothing"));
  }
}

TEST(Parameters, HashIsThatOfTheWeights) {
  auto set = ParameterSet::create(transformer_config("llama"));
  const std::string zero = set->hash();
  EXPECT_EQ(zero.size(), 64u);
  set->gradients().back() = 1.0f;
  EXPECT_EQ(set->hash(), zero);
  set->weights()[5] = 1.0f;
  EXPECT_NE(set->hash(), zero);
}

TEST(Parameters, NameWhatIsNotThere) {
  const auto set = ParameterSet::create(transformer_config("llama"));
  EXPECT_THAT(set->find("blk.0.attn_q.bias").error().message, HasSubstr("no parameter blk.0.attn_q.bias"));
  ModelConfig broken = transformer_config("llama");
  broken.kv_heads = 3;
  EXPECT_THAT(ParameterSet::create(broken).error().message, HasSubstr("4 heads cannot share 3"));
}

}  // namespace
}  // namespace butterfly
