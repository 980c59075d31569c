// A tensor group gives the bits of one process: any number of members, any division of the lanes, any family of model.
#include <gtest/gtest.h>

#include <cstring>

#include "butterfly/model/random_weights.h"
#include "butterfly/stage/test_group_test.h"

namespace butterfly {
namespace {

ModelConfig llama() {
  ModelConfig c = *named_config("llama-1.1b");
  c.layers = 2;
  c.model_dim = 128;
  c.heads = 16;
  c.kv_heads = 4;
  c.head_dim = 32;
  c.ff_dim = 352;  // 11 blocks of 32 over 8 lanes: uneven
  c.vocab = 521;   // over 8 lanes of whole panels: uneven, and the last panel is cut
  c.context = 1024;
  c.rope.dim = 32;
  return c;
}

ModelConfig many_heads() {
  ModelConfig c = llama();
  c.kv_heads = c.heads;
  return c;
}

ModelConfig one_kv_head() {
  ModelConfig c = llama();
  c.kv_heads = 1;  // every member needs it
  return c;
}

/// Heads of 8: an attention lane is a group of 4 heads, of which there are 3; most lanes are empty.
ModelConfig few_lanes() {
  ModelConfig c = llama();
  c.model_dim = 32;
  c.heads = 12;
  c.kv_heads = 3;
  c.head_dim = 8;
  c.rope.dim = 8;
  c.ff_dim = 96;
  c.vocab = 40;
  return c;
}

/// Groups of 3 heads for a key/value head: borders of lanes lie inside of them.
ModelConfig odd_groups() {
  ModelConfig c = llama();
  c.heads = 12;
  c.kv_heads = 4;
  return c;
}

ModelConfig gpt2() {
  ModelConfig c = many_heads();
  c.architecture = "gpt2";
  c.norm = NormKind::kLayer;
  c.activation = Activation::kGeluTanh;
  c.mlp = MlpKind::kPlain;
  c.position = PositionKind::kLearned;
  c.rope = {};
  c.qkv_bias = c.attention_output_bias = c.mlp_bias = c.norm_bias = c.tied_head = true;
  return c;
}

ModelConfig norm_after() {
  ModelConfig c = gpt2();
  c.norm_place = NormPlace::kAfter;
  return c;
}

struct Family {
  const char* name;
  ModelConfig (*config)();
};
constexpr Family kFamilies[] = {{"llama", llama},          {"many_heads", many_heads}, {"one_kv_head", one_kv_head},
                                {"few_lanes", few_lanes},  {"odd_groups", odd_groups}, {"gpt2", gpt2},
                                {"norm_after", norm_after}};

const std::vector<std::vector<int>> kDivisions = {{4, 4},       {3, 3, 2},       {1, 2, 5},
                                                  {2, 2, 2, 2}, {1, 2, 1, 3, 1}, {1, 1, 1, 1, 1, 1, 1, 1}};

Tensor tokens(const std::vector<std::int32_t>& values) {
  Tensor tensor = *Tensor::allocate(*Pool::shared(), DType::kI32, {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.mutable_view().bytes().data(), values.data(), values.size() * 4);
  return tensor;
}

/// Two texts in chunks of several sizes, decode of one beside the prefill of the other, a release in between. Chunks
/// of 150 rows have sums beyond what goes to everybody; the shorter ones are below.
std::vector<Step> script(const ModelConfig& config) {
  int at[2] = {};
  std::vector<Step> steps;
  const auto add = [&](std::vector<std::pair<int, int>> runs, int release = -1) {
    Step step;
    step.id = steps.size();
    if (release >= 0) {
      step.release = {SequenceId(release)};
      at[release] = 0;
    }
    std::vector<std::int32_t> ids;
    for (const auto& [sequence, rows] : runs) {
      step.batch.runs.push_back(
          {SequenceId(sequence), at[sequence], rows, rows > 1 && sequence == 1 ? rows : rows - 1});
      for (int i = 0; i < rows; ++i) ids.push_back(((at[sequence] + i) * 131 + sequence * 977 + 7) % config.vocab);
      at[sequence] += rows;
    }
    if (!ids.empty()) step.tensor = tokens(ids);
    steps.push_back(std::move(step));
  };
  add({{0, 150}});
  add({{0, 1}});
  add({{0, 1}, {1, 7}});
  add({{1, 1}, {0, 112}});
  add({{1, 1}, {0, 1}});
  add({}, 0);
  add({{0, 3}, {1, 1}}, 0);
  return steps;
}

/// Everything that the leader put out, in order.
Result<std::vector<float>> answer(TestGroup& group, const std::vector<Step>& steps) {
  std::vector<float> all;
  for (const Step& step : steps) {
    BF_ASSIGN_OR_RETURN(const Step out, group.forward(step));
    if (step.batch.runs.empty() || out.tensor.rank() == 0) continue;
    const auto values = out.tensor.view().values<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string text_of(const std::vector<int>& division) {
  std::string text;
  for (const int lanes : division) text += fmt::format("{} ", lanes);
  return text;
}

class DistTensorGroup : public testing::TestWithParam<std::tuple<Family, DType>> {
 protected:
  /// Norms and weights as of layer 1 on exist, but the last layers alone are a stage without ends.
  static StageAssignment whole(const ModelConfig& config) {
    return {.first_layer = 0, .last_layer = config.layers, .embedding = true, .head = true};
  }
};

TEST_P(DistTensorGroup, LogitsHaveTheBitsOfOneProcessForEveryDivisionOfLanes) {
  const auto& [family, type] = GetParam();
  const Checkpoint checkpoint = *random_checkpoint(family.config(), {.seed = 5, .type = type});
  const std::vector<Step> steps = script(checkpoint.config);
  TestGroup one(checkpoint, {.assignment = whole(checkpoint.config), .lanes = {kLanes}});
  const auto expected = answer(one, steps);
  ASSERT_TRUE(expected) << expected.error().message;
  const std::vector<Isa> isas = supported_isas();
  int threads = 1;
  for (const auto& division : kDivisions) {
    TestGroup group(checkpoint,
                    {.assignment = whole(checkpoint.config), .lanes = division, .isas = isas, .threads = threads});
    const auto logits = answer(group, steps);
    ASSERT_TRUE(logits) << logits.error().message;
    EXPECT_TRUE(same_bits(*logits, *expected)) << text_of(division) << threads << " threads";
    threads = 3 - threads;
  }
}

TEST_P(DistTensorGroup, HiddenStatesBetweenStagesHaveThemToo) {
  const auto& [family, type] = GetParam();
  const Checkpoint checkpoint = *random_checkpoint(family.config(), {.seed = 6, .type = type});
  const std::vector<Step> steps = script(checkpoint.config);
  const StageAssignment first{.first_layer = 0, .last_layer = 1, .embedding = true};
  const StageAssignment second{.first_layer = 1, .last_layer = checkpoint.config.layers};
  TestGroup one(checkpoint, {.assignment = first, .lanes = {kLanes}});
  TestGroup next(checkpoint, {.assignment = second, .lanes = {kLanes}});
  TestGroup group(checkpoint, {.assignment = first, .lanes = {2, 6}, .isas = supported_isas()});
  TestGroup group_next(checkpoint, {.assignment = second, .lanes = {5, 3}, .isas = supported_isas(), .threads = 2});
  for (const Step& step : steps) {
    auto expected = one.forward(step);
    auto states = group.forward(step);
    ASSERT_TRUE(expected && states) << (states ? "" : states.error().message);
    if (step.batch.runs.empty()) continue;
    const auto bits = [](const Result<Step>& s) {
      const auto values = s->tensor.view().values<float>();
      return std::vector<float>(values.begin(), values.end());
    };
    EXPECT_TRUE(same_bits(bits(states), bits(expected))) << "step " << step.id;
    expected = next.forward(*expected);
    states = group_next.forward(*states);
    ASSERT_TRUE(expected && states);
    EXPECT_TRUE(same_bits(bits(states), bits(expected))) << "step " << step.id;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DistTensorGroup,
                         testing::Combine(testing::ValuesIn(kFamilies),
                                          testing::Values(DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0)),
                         [](const auto& parameter) {
                           return fmt::format("{}_{}", std::get<0>(parameter.param).name,
                                              to_string(std::get<1>(parameter.param)));
                         });

}  // namespace
}  // namespace butterfly
