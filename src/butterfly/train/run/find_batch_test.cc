#include "butterfly/train/run/find_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/base/sanitized_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

ModelConfig tiny(const std::string& name) {
  ModelConfig shape = *named_config(name);
  shape.layers = 2;
  shape.vocab = 100;
  return shape;
}

std::uint64_t bytes_of(const ModelConfig& shape, const TransformerOptions& options) {
  const auto transformer = TrainableTransformer::create(shape, options);
  EXPECT_TRUE(transformer) << transformer.error().message;
  const TrainingMemory memory = (*transformer)->memory();
  return memory.parameter_bytes + memory.gradient_bytes + memory.activation_bytes + memory.scratch_bytes +
         2 * static_cast<std::uint64_t>((*transformer)->parameters().padded_size()) * sizeof(float);
}

TEST(FindBatch, DoublesUntilThePredictionExceedsTheMemory) {
  if (kThreadsWatched) GTEST_SKIP() << "minutes, and one thread";
  const ModelConfig shape = tiny("tinytransformer-tiny");
  TransformerOptions transformer{.micro_batch = 4, .seq = 16};
  const std::uint64_t four = bytes_of(shape, transformer);
  std::vector<int> tried;
  const auto trials = find_batch(shape, {.transformer = transformer, .memory_bytes = four},
                                 [&](const BatchTrial& trial) { tried.push_back(trial.micro_batch); });
  ASSERT_TRUE(trials) << trials.error().message;
  EXPECT_THAT(tried, ::testing::ElementsAre(1, 2, 4, 8));
  ASSERT_EQ(trials->size(), 4u);
  EXPECT_TRUE((*trials)[2].fits);
  EXPECT_GT((*trials)[2].tokens_per_s, 0.0);
  EXPECT_FALSE((*trials)[3].fits);
  EXPECT_EQ((*trials)[2].predicted_bytes, four);
}

TEST(FindBatch, EndsAtTheLargestThatIsAskedFor) {
  if (kThreadsWatched) GTEST_SKIP() << "minutes, and one thread";
  const auto trials =
      find_batch(tiny("tinytransformer-tiny"),
                 {.transformer = {.seq = 16}, .memory_bytes = std::uint64_t{1} << 30, .micro_batch_max = 2}, {});
  ASSERT_TRUE(trials);
  EXPECT_EQ(trials->size(), 2u);
  EXPECT_TRUE(trials->back().fits);
}

TEST(FindBatch, AModelThatDoesNotFitAtAllIsRefusedWithBothSizes) {
  const auto trials =
      find_batch(tiny("tinytransformer-tiny"), {.transformer = {.seq = 16}, .memory_bytes = 1 << 20}, {});
  ASSERT_FALSE(trials);
  EXPECT_EQ(trials.error().code, ErrorCode::kNoMemory);
  EXPECT_THAT(trials.error().message, HasSubstr("a micro-batch of 1 needs "));
  EXPECT_THAT(trials.error().message, HasSubstr("1.0 MiB are free"));
}

TEST(TrainingFlops, AreThreeTimesThoseOfTheNetworksForwardPass) {
  if (kThreadsWatched) GTEST_SKIP() << "minutes, and one thread";
  for (const char* name : {"tinytransformer-tiny", "gpt2-124m", "qwen2-0.5b", "llama-1.1b"}) {
    ModelConfig shape = tiny(name);
    shape.context = 64;
    const auto transformer = TrainableTransformer::create(shape, {.seq = 64});
    ASSERT_TRUE(transformer) << transformer.error().message;
    EXPECT_DOUBLE_EQ(training_flops_per_token(shape, 64), 3.0 * (*transformer)->forward_flops_per_token()) << name;
  }
}

}  // namespace
}  // namespace butterfly
