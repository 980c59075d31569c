// Promise 1: logits and tokens depend on model and prompt alone. One process of `reference` is the oracle; every number
// of nodes, threads, chunk, neighbour and instruction set, mixed ones included, must equal it by memcmp.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "answers.h"
#include "butterfly/base/sanitized_test.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/format/convert.h"
#include "butterfly/model/format/open_checkpoint.h"

namespace butterfly {
namespace {

// Under a sanitizer the arithmetic is not the question and takes many times as long: a corner of the matrix will do.
// The portable set takes a minute for one case where a sanitizer looks at each of its steps.
const std::vector<Isa> kSets = kSanitized ? std::vector{supported_isas().back()} : supported_isas();
const Isa kJudge = kSets.front();
const std::vector<int> kNodes = kSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 4};
const std::vector<int> kThreads = kSanitized ? std::vector{2} : std::vector{1, 2};
const std::vector<int> kChunks = kSanitized ? std::vector{7} : std::vector{1, 7, 512};

Result<Checkpoint> demo_as(DType type) {
  BF_ASSIGN_OR_RETURN(const Checkpoint demo, open_checkpoint(BUTTERFLY_SOURCE_DIR "/models/demo.gguf"));
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("butterfly_one_answer_{}_{}.gguf", to_string(type), getpid());
  ConvertOptions options;
  options.type = type;
  BF_TRY(convert(demo, path.string(), options));
  auto opened = open_checkpoint(path.string());
  std::filesystem::remove(path);  // the mapping keeps it alive
  return opened;
}

/// Experts with groups, a bias of their choice, biases and a shared one; the first layer is dense.
Checkpoint experts_as(DType type) {
  ModelConfig config = named_config("butterfly-demo").value();
  config.model_dim = 128;
  config.head_dim = config.rope.dim = 16;
  config.ff_dim = 192;
  config.vocab = 512;
  config.moe = {.experts = 12,
                .experts_used = 4,
                .ff_dim = 96,
                .layers = {0, 1, 1, 1, 1},
                .scores = MoeConfig::Scores::kSigmoid,
                .choice_bias = true,
                .groups = 3,
                .groups_used = 2,
                .group_score = MoeConfig::GroupScore::kTwoLargest,
                .renormalise = true,
                .renormalise_epsilon = 1e-20f,
                .weight_scale = 2.5f,
                .router_bias = true,
                .expert_bias = true,
                .shared_ff_dim = 96};
  return random_checkpoint(config, {.seed = 5, .type = type}).value();
}

class DistOneAnswer : public testing::TestWithParam<DType> {};

TEST_P(DistOneAnswer, WhateverTheNodesThreadsChunksNeighboursAndInstructionSets) {
  const auto checkpoint = demo_as(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto expected = run(*checkpoint, {.isas = {kJudge}}, 12, 4);
  ASSERT_TRUE(expected) << expected.error().message;
  ASSERT_EQ(expected->tokens.size(), 4u);
  std::vector<std::vector<Isa>> isa_sets;
  for (const Isa isa : kSets) {
    if (!kSanitized) isa_sets.push_back({isa});
  }
  isa_sets.push_back(kSets);  // node i runs the i-th, in turn
  int runs = 0;
  for (const auto& isas : isa_sets) {
    for (const int nodes : kNodes) {
      for (std::size_t i = 0; i < kChunks.size(); ++i) {
        // Each pair of values of any two settings comes up; all combinations would only take longer.
        const std::size_t turn = static_cast<std::size_t>(nodes) + i;
        const int neighbours = (static_cast<std::size_t>(nodes / 2) + i) % 2 == 0 ? 0 : 3;
        const Case c{nodes, kThreads[turn % kThreads.size()], kChunks[i], neighbours, isas};
        const auto answer = run(*checkpoint, c, 12, 4);
        ASSERT_TRUE(answer) << answer.error().message;
        EXPECT_TRUE(*answer == *expected) << c.name();
        ++runs;
      }
    }
  }
  RecordProperty("runs", runs);
  std::printf("%d runs equal to reference, logits by memcmp\n", runs);
}

TEST_P(DistOneAnswer, WhateverTheMembersOfATensorGroupAndTheirSlices) {
  const auto checkpoint = demo_as(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto expected = run(*checkpoint, {.isas = {kJudge}}, 12, 4);
  ASSERT_TRUE(expected) << expected.error().message;
  std::vector<std::vector<int>> divisions{{16, 16}, {11, 10, 11}};
  if (!kSanitized) {
    divisions.insert(divisions.end(),
                     {{1, 9, 22}, {7, 6, 5, 8, 6}, {5, 4, 5, 4, 5, 4, 5}, {3, 2, 3, 3, 2, 3, 3, 2, 3, 3, 2, 3}});
  }
  for (const auto& slices : divisions) {
    const int threads = kThreads[slices.size() % kThreads.size()];
    for (const int chunk : kChunks) {
      const Case c{static_cast<int>(slices.size()), threads, chunk, 3, kSets};
      const StageAssignment all{
          .first_layer = 0, .last_layer = checkpoint->config.layers, .embedding = true, .head = true};
      GroupPipeline group(*checkpoint, {.assignment = all, .slices = slices, .isas = c.isas, .threads = threads});
      const auto answer = run_on(group, *checkpoint, c, 12, 4);
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_TRUE(*answer == *expected) << "a tensor group of " << c.name();
    }
  }
}

TEST_P(DistOneAnswer, OfExpertsWhateverTheNodesSlicesThreadsChunksNeighboursAndInstructionSets) {
  const Checkpoint checkpoint = experts_as(GetParam());
  const auto expected = run(checkpoint, {.isas = {kJudge}}, 12, 4);
  ASSERT_TRUE(expected) << expected.error().message;
  ASSERT_EQ(expected->tokens.size(), 4u);
  int runs = 0;
  std::vector<std::vector<Isa>> isa_sets{kSets};
  for (const Isa isa : kSets) {
    if (!kSanitized) isa_sets.push_back({isa});
  }
  for (const auto& isas : isa_sets) {
    for (const int nodes : {1, 3}) {
      for (std::size_t i = 0; i < kChunks.size(); ++i) {
        const std::size_t turn = static_cast<std::size_t>(nodes) + i;
        const int neighbours = (static_cast<std::size_t>(nodes / 2) + i) % 2 == 0 ? 0 : 3;
        const Case c{nodes, kThreads[turn % kThreads.size()], kChunks[i], neighbours, isas};
        const auto answer = run(checkpoint, c, 12, 4);
        ASSERT_TRUE(answer) << answer.error().message;
        EXPECT_TRUE(*answer == *expected) << c.name();
        ++runs;
      }
    }
  }
  const StageAssignment all{.last_layer = checkpoint.config.layers, .embedding = true, .head = true};
  const std::vector<std::pair<std::vector<int>, std::vector<int>>> divisions{
      {{16, 16}, {}}, {{11, 10, 11}, {}}, {{7, 6, 5, 8, 6}, {}}, {{24, 8}, {5, 27}}, {{0, 20, 12}, {19, 0, 13}}};
  for (const auto& [slices, experts] : divisions) {
    for (const int chunk : kChunks) {
      const Case c{static_cast<int>(slices.size()), kThreads.back(), chunk, 3, kSets};
      GroupPipeline group(
          checkpoint, {.assignment = all, .slices = slices, .experts = experts, .isas = c.isas, .threads = c.threads});
      const auto answer = run_on(group, checkpoint, c, 12, 4);
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_TRUE(*answer == *expected) << "a tensor group of " << c.name();
      ++runs;
    }
  }
  std::printf("%d runs equal to reference, logits by memcmp\n", runs);
}

TEST_P(DistOneAnswer, AcrossTheBordersOfAttentionSegmentsAndCachePages) {
  if (kSanitized) GTEST_SKIP() << "SKIPPED: the attention parity tests cover this under sanitizers";
  const auto checkpoint = demo_as(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  // 250 prompt tokens and 12 more cross position 256, where the second segment begins.
  const auto expected = run(*checkpoint, {.isas = {kJudge}}, 250, 12);
  ASSERT_TRUE(expected) << expected.error().message;
  for (const Isa isa : kSets) {
    if (isa == Isa::kReference) continue;
    for (const auto& [chunk, neighbours] : {std::pair{1, 0}, std::pair{64, 2}, std::pair{512, 2}}) {
      const Case c{2, 2, chunk, neighbours, {isa}};
      const auto answer = run(*checkpoint, c, 250, 12);
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_TRUE(*answer == *expected) << c.name();
    }
  }
}

TEST(DistOneAnswerOfACache, InQ8_0WhateverTheNodesThreadsChunksAndInstructionSets) {
  const auto checkpoint = demo_as(DType::kQ4_0);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const int prompt_tokens = kSanitized ? 12 : 250;
  const auto expected = run(*checkpoint, {.isas = {Isa::kReference}, .kv_type = DType::kQ8_0}, prompt_tokens, 12);
  const auto halves = run(*checkpoint, {.isas = {kSets.back()}}, prompt_tokens, 12);
  ASSERT_TRUE(expected && halves);
  EXPECT_FALSE(*expected == *halves) << "the cache's type shows in the bits";
  for (const Isa isa : kSets) {
    if (isa == Isa::kReference) continue;
    for (const auto& [nodes, chunk, neighbours] : {std::tuple{1, 512, 0}, {2, 64, 2}, {3, 1, 0}, {2, 7, 3}}) {
      const Case c{nodes,       kThreads[static_cast<std::size_t>(nodes) % kThreads.size()], chunk, neighbours, {isa},
                   DType::kQ8_0};
      const auto answer = run(*checkpoint, c, prompt_tokens, 12);
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_TRUE(*answer == *expected) << c.name();
    }
  }
}

TEST_P(DistOneAnswer, MoreNodesThanLayersLeaveTheRestStandingBy) {
  const auto checkpoint = demo_as(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto fast = kSets.back();
  const auto expected = run(*checkpoint, {.isas = {fast}}, 10, 3);
  const auto answer = run(*checkpoint, {.nodes = 9, .isas = {fast}}, 10, 3);
  ASSERT_TRUE(expected && answer);
  EXPECT_TRUE(*answer == *expected);
  const auto deployment = Deployment::create(*checkpoint, {.nodes = 9, .compute = {.threads = 1, .isas = {fast}}});
  ASSERT_TRUE(deployment);
  EXPECT_EQ((*deployment)->nodes().size() + (*deployment)->plan().standby_nodes.size(), 9u);
  EXPECT_FALSE((*deployment)->plan().standby_nodes.empty());
}

// answer_matrix runs every type.
INSTANTIATE_TEST_SUITE_P(Types, DistOneAnswer, testing::Values(DType::kF32, DType::kQ4_0),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

}  // namespace
}  // namespace butterfly
