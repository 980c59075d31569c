#include "butterfly/plan/cost/pipeline_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace butterfly {
namespace {

using ::testing::HasSubstr;

std::vector<int> layers_of(const std::vector<PipelineStage>& stages) {
  std::vector<int> layers;
  for (const PipelineStage& stage : stages) layers.push_back(stage.last_layer - stage.first_layer);
  return layers;
}

double share_of(const std::vector<PipelineStage>& stages, int rank) {
  return stages[static_cast<std::size_t>(stage_of(stages, rank))].flops_share;
}

// Fails when the head is not counted as work of the last stage: GPT-2's is as much as several layers.
TEST(PipelineDivision, TheStageWithTheHeadHasFewerLayers) {
  const ModelConfig config = *named_config("gpt2-124m");
  const auto stages = divide_pipeline(config, 256, {.stages = 4}).value();
  const std::vector<int> layers = layers_of(stages);
  EXPECT_LT(layers.back(), layers.front());
  EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), 0), config.layers);
  EXPECT_TRUE(stages.back().ends);
  double shares = 0.0;
  for (const PipelineStage& stage : stages) shares += stage.flops_share;
  EXPECT_NEAR(shares, 1.0, 1e-12);
}

TEST(PipelineDivision, FollowsSpeedsOrSharesOfTheState) {
  const ModelConfig config = *named_config("gpt2-124m");
  const std::vector<double> speeds{1.0, 3.0, 1.0};
  const auto fast = divide_pipeline(config, 256, {.stages = 3, .speeds = speeds}).value();
  EXPECT_GT(share_of(fast, 1), 2 * share_of(fast, 0));
  EXPECT_GT(share_of(fast, 1), 2 * share_of(fast, 2));
  const std::vector<double> shares{4.0, 1.0, 8.0};
  const auto full = divide_pipeline(config, 256, {.stages = 3, .speeds = speeds, .state_shares = shares}).value();
  EXPECT_GT(share_of(full, 2), 2 * share_of(full, 1));
}

// Fails when the head stays where it makes a slow rank the one that all wait for, or moves where it need not.
TEST(PipelineDivision, TheHeadGoesToARankThatIsFastEnoughForIt) {
  const ModelConfig config = *named_config("gpt2-124m");
  const std::vector<double> slow_at_the_end{1.0, 1.0, 0.25};
  const auto stages = divide_pipeline(config, 256, {.stages = 3, .speeds = slow_at_the_end}).value();
  EXPECT_NE(stages.back().rank, 2);
  EXPECT_EQ(stage_of(stages, stages.back().rank), 2);
  EXPECT_LT(pipeline_bubble(stages, slow_at_the_end, 64), 0.1);
  int layers = 0;
  for (const PipelineStage& stage : stages) {
    EXPECT_EQ(stage.first_layer, layers);
    layers = stage.last_layer;
  }
  EXPECT_EQ(layers, config.layers);
  const auto equal = divide_pipeline(config, 256, {.stages = 4}).value();
  for (int rank = 0; const PipelineStage& stage : equal) {
    EXPECT_EQ(stage.rank, rank++);
  }
}

TEST(PipelineDivision, EveryStageHasSomethingAndMoreAreRefused) {
  ModelConfig config = *named_config("gpt2-124m");
  config.layers = 3;
  EXPECT_EQ(layers_of(divide_pipeline(config, 16, {.stages = 4}).value()), (std::vector<int>{1, 1, 1, 0}));
  const auto refused = divide_pipeline(config, 16, {.stages = 5});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("at most 4"));
}

PlanCluster cluster_of_equals(int nodes) {
  PlanCluster cluster;
  for (int i = 0; i < nodes; ++i) {
    cluster.nodes.push_back({.threads = 1, .memory_read_gb_per_s = 16.0, .fp32_gflops = 200.0});
    cluster.nodes.back().memory_bytes = std::uint64_t{1} << 30;
  }
  cluster.default_link = {.latency_us = 100.0, .gb_per_s = 0.125};
  return cluster;
}

// Fails when bytes follow the parameters, or a node is charged for the state of others.
TEST(PipelinePrediction, BytesAreThoseOfRowsAndMemoryThatOfOnesOwnLayers) {
  const ModelConfig config = *named_config("gpt2-124m");
  const PlanCluster cluster = cluster_of_equals(4);
  TrainOptions options{.strategy = TrainStrategy::kPipeline, .batch = 16, .micro_batch = 1, .seq = 128};
  const TrainPrediction pipeline = predict_training(config, cluster, options).value();
  EXPECT_DOUBLE_EQ(pipeline.bytes_sent_per_node, 2.0 * 16 * 128 * config.model_dim * 4);
  EXPECT_GT(pipeline.bubble, 3.0 / 19.0 - 0.05);
  EXPECT_LT(pipeline.bubble, 0.5);
  std::uint64_t weights = 0;
  for (const TrainNodePrediction& node : pipeline.nodes) weights += node.weight_bytes;
  options.strategy = TrainStrategy::kDdp;
  const TrainPrediction ddp = predict_training(config, cluster, options).value();
  EXPECT_NEAR(static_cast<double>(weights), static_cast<double>(ddp.nodes[0].weight_bytes),
              0.01 * static_cast<double>(weights));
  EXPECT_LT(pipeline.bytes_sent_per_node, ddp.bytes_sent_per_node / 10.0);
  EXPECT_LT(pipeline.step_s, ddp.step_s) << "half a gigabyte of gradients over a gigabit";
}

TEST(PipelinePrediction, MoreMicroBatchesHaveASmallerBubble) {
  const ModelConfig config = *named_config("gpt2-124m");
  const auto bubble = [&](int micro_batch) {
    const TrainOptions options{
        .strategy = TrainStrategy::kPipeline, .batch = 16, .micro_batch = micro_batch, .seq = 128};
    return predict_training(config, cluster_of_equals(4), options)->bubble;
  };
  EXPECT_GT(bubble(4), bubble(1));
  EXPECT_DOUBLE_EQ(bubble(0), bubble(1)) << "four micro-batches for each node";
}

TEST(PipelinePrediction, IsNoneOfTheStrategiesForMoreNodesThanLayersAndAHead) {
  ModelConfig config = *named_config("gpt2-124m");
  config.layers = 2;
  EXPECT_EQ(strategies_for(config, 3).size(), kTrainStrategies.size());
  EXPECT_EQ(strategies_for(config, 4).size(), kTrainStrategies.size() - 1);
}

}  // namespace
}  // namespace butterfly
