#include "butterfly/plan/cost/training_cost.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

PlanCluster equal_cluster(int nodes) {
  PlanCluster cluster;
  for (int i = 0; i < nodes; ++i) {
    cluster.nodes.push_back({.memory_read_gb_per_s = 10.0, .fp32_gflops = 200.0});
  }
  cluster.default_link = {.latency_us = 100.0, .gb_per_s = 1.0};
  return cluster;
}

TrainPrediction must_predict(const PlanCluster& cluster, const TrainOptions& options) {
  const auto prediction = predict_training(*named_config("gpt2-124m"), cluster, options);
  EXPECT_TRUE(prediction.has_value());
  return prediction ? *prediction : TrainPrediction{};
}

TEST(TrainingCost, StepIsAboutSixOperationsPerParameterAndToken) {
  const TrainPrediction one = must_predict(equal_cluster(1), {.batch = 4, .seq = 64});
  // The embedding is no matmul, the tied head is one: what counts once counts once.
  EXPECT_NEAR(one.flops / (6.0 * 124e6 * 4 * 64), 1.0, 0.03);
  EXPECT_EQ(one.nodes[0].communication_s, 0.0);
  EXPECT_DOUBLE_EQ(one.tokens_per_s, 4 * 64 / one.step_s);
}

// Fails when the backward pass is not two forward passes of matmuls, or activations move for nothing.
TEST(TrainingCost, MatmulsAndActivationsAreCountedApart) {
  const TrainOptions options{.batch = 4, .seq = 64, .matmuls_gflops = 1.0};
  const TrainPrediction one = must_predict(equal_cluster(1), options);
  const double matmuls_s = one.flops / 3 / 1e9;
  const double touch_s = static_cast<double>(one.nodes[0].activation_bytes) / (0.8 * 10e9);
  EXPECT_NEAR(one.nodes[0].forward_s, matmuls_s + 2 * touch_s, 1e-6 * matmuls_s);
  EXPECT_NEAR(one.nodes[0].backward_s, 2 * matmuls_s + 3 * touch_s, 1e-6 * matmuls_s);
  EXPECT_GT(touch_s, 0.0);
}

TEST(TrainingCost, RingSendsTwoModelsForDdpAndThreeForSharded) {
  const PlanCluster cluster = equal_cluster(4);
  const TrainPrediction ddp = must_predict(cluster, {.strategy = TrainStrategy::kDdp, .batch = 8, .seq = 64});
  const TrainPrediction sharded = must_predict(cluster, {.strategy = TrainStrategy::kSharded, .batch = 8, .seq = 64});
  const double model = static_cast<double>(ddp.nodes[0].weight_bytes);
  EXPECT_DOUBLE_EQ(ddp.bytes_sent_per_node, 2.0 * 0.75 * model);
  EXPECT_DOUBLE_EQ(sharded.bytes_sent_per_node, 3.0 * 0.75 * model);
  EXPECT_NEAR(ddp.nodes[0].communication_s, 2 * 3 * (100e-6 + model / 4 / 1e9), 1e-9);
  EXPECT_NEAR(sharded.nodes[0].communication_s, 1.5 * ddp.nodes[0].communication_s, 1e-9);
}

TEST(TrainingCost, ShardsDivideWeightsGradientsAndMoments) {
  const PlanCluster cluster = equal_cluster(4);
  const TrainNodePrediction ddp = must_predict(cluster, {.batch = 8, .seq = 64}).nodes[0];
  const TrainNodePrediction sharded =
      must_predict(cluster, {.strategy = TrainStrategy::kSharded, .batch = 8, .seq = 64}).nodes[0];
  EXPECT_EQ(ddp.gradient_bytes, ddp.weight_bytes);
  EXPECT_EQ(ddp.optimizer_bytes, 2 * ddp.weight_bytes);
  EXPECT_NEAR(static_cast<double>(ddp.weight_bytes) / static_cast<double>(sharded.weight_bytes), 4.0, 1e-3);
  EXPECT_LT(sharded.memory_bytes(), ddp.memory_bytes());
  EXPECT_LT(sharded.optimizer_s, ddp.optimizer_s);
}

TEST(TrainingCost, MissingMemoryIsCountedPerNode) {
  PlanCluster cluster = equal_cluster(2);
  const std::uint64_t needed = must_predict(cluster, {.batch = 2, .seq = 64}).nodes[1].memory_bytes();
  cluster.nodes[1].memory_bytes = needed - 5;
  const TrainPrediction prediction = must_predict(cluster, {.batch = 2, .seq = 64});
  EXPECT_EQ(prediction.nodes[0].missing_bytes, 0u);
  EXPECT_EQ(prediction.nodes[1].missing_bytes, 5u);
}

TEST(TrainingCost, BatchIsDividedEvenlyAndTheSlowestNodeDecides) {
  PlanCluster cluster = equal_cluster(3);
  cluster.nodes[2].fp32_gflops = 20.0;
  const TrainPrediction prediction = must_predict(cluster, {.batch = 7, .seq = 64});
  int sequences = 0;
  for (const TrainNodePrediction& node : prediction.nodes) sequences += node.sequences;
  EXPECT_EQ(sequences, 7);
  EXPECT_EQ(prediction.step_s, prediction.nodes[2].step_s());
}

// Fails when every expert is counted for every token, or the experts' weights are left out of memory.
TEST(TrainingCost, ATokenCostsTheExpertsThatItGoesThroughAndMemoryHoldsThemAll) {
  const ModelConfig config = *named_config("qwen3-30b-a3b");
  const auto prediction = predict_training(config, equal_cluster(1), {.batch = 1, .seq = 64});
  ASSERT_TRUE(prediction) << prediction.error().message;
  // "30B-A3B": 3.3e9 of 30.5e9 parameters are active, of which the embedding of 3.1e8 is no matmul.
  EXPECT_NEAR(prediction->flops / (6.0 * (3.35e9 - 3.1e8) * 64), 1.0, 0.03);
  EXPECT_EQ(prediction->nodes[0].weight_bytes, 4 * parameter_count(config));
  ModelConfig wide = config;
  wide.moe.experts_used *= 2;
  EXPECT_GT(predict_training(wide, equal_cluster(1), {.batch = 1, .seq = 64})->nodes[0].activation_bytes,
            prediction->nodes[0].activation_bytes);
}

TEST(TrainingCost, WhatCannotBeTrainedIsNamed) {
  ModelConfig config = *named_config("llama-1.1b");
  config.attention_sinks = true;
  const auto refused = predict_training(config, equal_cluster(1), {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("attention sinks have no backward pass"), std::string::npos);
}

TEST(TrainingCost, ImpossibleSizesAndNamesAreErrors) {
  const ModelConfig config = *named_config("gpt2-124m");
  EXPECT_FALSE(predict_training(config, {}, {}).has_value());
  EXPECT_FALSE(predict_training(config, equal_cluster(1), {.batch = 0}).has_value());
  EXPECT_FALSE(predict_training(config, equal_cluster(1), {.seq = 100'000}).has_value());
  EXPECT_EQ(parse_train_strategy("sharded").value(), TrainStrategy::kSharded);
  EXPECT_EQ(parse_train_strategy("ddp").value(), TrainStrategy::kDdp);
  EXPECT_FALSE(parse_train_strategy("zero").has_value());
}

}  // namespace
}  // namespace butterfly
