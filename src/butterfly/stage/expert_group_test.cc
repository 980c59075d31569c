// Experts have a division of their own among the members of a tensor group: any of them may hold any, the bits are
// those of one process.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstring>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/stage/test_group_test.h"

namespace butterfly {
namespace {

/// One dense layer, then experts; the last of a group of choices is chosen with a bias.
ModelConfig experts(int count, int shared_ff_dim) {
  ModelConfig c = *named_config("llama-1.1b");
  c.layers = 3;
  c.model_dim = 128;
  c.heads = 8;
  c.kv_heads = 2;
  c.head_dim = 32;
  c.ff_dim = 736;
  c.vocab = 521;
  c.context = 256;
  c.rope.dim = 32;
  c.moe = {.experts = count,
           .experts_used = 3,
           .ff_dim = 96,
           .layers = {0, 1, 1},
           .choice_bias = true,
           .renormalise = true,
           .shared_ff_dim = shared_ff_dim,
           .shared_gate = shared_ff_dim > 0};
  return c;
}

/// How many slices, and how many slices of the experts, each member has.
struct Division {
  std::vector<int> slices, experts;
};
const std::vector<Division> kExpertDivisions{
    {{26, 6}, {4, 28}},  // few experts beside many slices
    {{5, 27}, {31, 1}},  // the other way
    {{32, 0}, {0, 32}},  // slices alone, experts alone
    {{0, 32}, {32, 0}},  // the leader has experts alone
    {{0, 11, 0, 21}, {7, 0, 9, 16}},
    {{12, 1, 19}, {0, 32, 0}},
};

Step step_of(int rows, int position, int vocab) {
  Step step;
  step.batch.runs.push_back({SequenceId(0), position, rows, rows - 1});
  step.tensor = *Tensor::allocate(*Pool::shared(), DType::kI32, {rows});
  const auto ids = step.tensor.mutable_view().values<std::int32_t>();
  for (int i = 0; i < rows; ++i) ids[static_cast<std::size_t>(i)] = ((position + i) * 131 + 7) % vocab;
  return step;
}

/// Logits of a prompt in two chunks, of which one has sums beyond what goes to everybody, and of three tokens.
Result<std::vector<float>> logits_of(TestGroup& group, int vocab) {
  std::vector<float> all;
  int position = 0;
  for (const int rows : {90, 5, 1, 1, 1}) {
    BF_ASSIGN_OR_RETURN(const Step out, group.forward(step_of(rows, position, vocab)));
    position += rows;
    const auto values = out.tensor.view().values<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

class DistExpertGroup : public testing::TestWithParam<std::tuple<int, int, DType>> {};

TEST_P(DistExpertGroup, LogitsHaveTheBitsOfOneProcessWhicheverMemberHoldsWhichExperts) {
  const auto& [count, shared_ff_dim, type] = GetParam();
  const Checkpoint checkpoint = *random_checkpoint(experts(count, shared_ff_dim), {.seed = 5, .type = type});
  const ModelConfig& config = checkpoint.config;
  const StageAssignment whole{.first_layer = 0, .last_layer = config.layers, .embedding = true, .head = true};
  TestGroup one(checkpoint, {.assignment = whole, .slices = {kReductionSlices}});
  const auto expected = logits_of(one, config.vocab);
  ASSERT_TRUE(expected) << expected.error().message;
  for (const Division& division : kExpertDivisions) {
    TestGroup group(checkpoint, {.assignment = whole,
                                 .slices = division.slices,
                                 .experts = division.experts,
                                 .isas = supported_isas(),
                                 .threads = 2});
    const auto logits = logits_of(group, config.vocab);
    ASSERT_TRUE(logits) << logits.error().message;
    ASSERT_EQ(logits->size(), expected->size());
    EXPECT_EQ(std::memcmp(logits->data(), expected->data(), logits->size() * sizeof(float)), 0)
        << fmt::format("slices {}, experts {}", fmt::join(division.slices, " "), fmt::join(division.experts, " "));
  }
}

// Fewer experts than slices, as many as give each slice some, and more, unevenly.
INSTANTIATE_TEST_SUITE_P(
    Experts, DistExpertGroup,
    testing::Combine(testing::ValuesIn(kSanitized ? std::vector{6} : std::vector{6, 40}), testing::Values(0, 160),
                     testing::ValuesIn(kSanitized ? std::vector{DType::kQ8_0}
                                                  : std::vector{DType::kF32, DType::kQ8_0, DType::kQ4_0})),
    [](const auto& parameter) {
      return fmt::format("{}_shared_{}_{}", std::get<0>(parameter.param), std::get<1>(parameter.param),
                         to_string(std::get<2>(parameter.param)));
    });

TEST(ExpertGroup, AMemberHoldsItsExpertsAndNoOthers) {
  const Checkpoint checkpoint = *random_checkpoint(experts(32, 0), {.seed = 5});
  const StageAssignment whole{.first_layer = 1, .last_layer = 2};
  const auto bytes = [&](const Division& division) {
    TestGroup group(checkpoint, {.assignment = whole, .slices = division.slices, .experts = division.experts});
    std::vector<std::uint64_t> held;
    for (const Stage* stage : group.stages()) held.push_back(stage->weight_bytes());
    return held;
  };
  const auto few = bytes({{16, 16}, {2, 30}}), many = bytes({{16, 16}, {12, 20}});
  const std::uint64_t expert = 3u * 128 * 96 * sizeof(float);
  EXPECT_EQ(many[0] - few[0], 10 * expert);
  EXPECT_EQ(few[1] - many[1], 10 * expert);
}

TEST(ExpertGroup, RunsOfExpertsThatLeaveAGapAreNoGroup) {
  const Checkpoint checkpoint = *random_checkpoint(experts(32, 0), {.seed = 5});
  auto exchange = make_inproc_exchange(2);
  std::vector<std::unique_ptr<Stage>> stages;
  for (const HeldSlices& held : {HeldSlices({0, 16}, {0, 8}), HeldSlices({16, 32}, {12, 32})}) {
    stages.push_back(
        *Stage::load(checkpoint.config, {.first_layer = 1, .last_layer = 2, .slices = held}, checkpoint.weights, {}));
  }
  Status other;
  std::jthread thread([&] { other = stages[1]->join(*exchange[1]); });
  const Status met = stages[0]->join(*exchange[0]);
  thread.join();
  ASSERT_FALSE(met);
  EXPECT_FALSE(other);
  EXPECT_EQ(met.error().message,
            "member 1 of the tensor group has slices 16 to 32 and experts' slices 12 to 32, expected them from 16 and "
            "8");
}

}  // namespace
}  // namespace butterfly
