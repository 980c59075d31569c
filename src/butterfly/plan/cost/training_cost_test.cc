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

PlanCluster measured_node(double training_gflops) {
  PlanCluster cluster = equal_cluster(1);
  cluster.nodes[0].training_gflops = training_gflops;
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
  const TrainOptions options{.batch = 4, .seq = 64};
  const TrainPrediction one = must_predict(measured_node(1.0), options);
  const double matmuls_s = one.flops / 3 / 1e9;
  const double touch_s = static_cast<double>(one.nodes[0].activation_bytes) / (0.8 * 10e9);
  EXPECT_NEAR(one.nodes[0].forward_s, matmuls_s + 2 * touch_s, 1e-6 * matmuls_s);
  EXPECT_NEAR(one.nodes[0].backward_s, 2 * matmuls_s + 3 * touch_s, 1e-6 * matmuls_s);
  EXPECT_GT(touch_s, 0.0);
}

TEST(TrainingCost, RingSendsTwoModelsForDdpAndThreeForSharded) {
  const PlanCluster cluster = equal_cluster(4);
  const TrainPrediction ddp = must_predict(cluster, {.strategy = TrainStrategy::kDdp, .batch = 8, .seq = 64});
  const TrainPrediction sharded = must_predict(cluster, {.strategy = TrainStrategy::kFullShard, .batch = 8, .seq = 64});
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
      must_predict(cluster, {.strategy = TrainStrategy::kFullShard, .batch = 8, .seq = 64}).nodes[0];
  EXPECT_EQ(ddp.gradient_bytes, ddp.weight_bytes);
  EXPECT_EQ(ddp.optimizer_bytes, 2 * ddp.weight_bytes);
  EXPECT_NEAR(static_cast<double>(ddp.weight_bytes) / static_cast<double>(sharded.weight_bytes), 4.0, 1e-3);
  EXPECT_LT(sharded.memory_bytes(), ddp.memory_bytes());
  EXPECT_LT(sharded.optimizer_s, ddp.optimizer_s);
  const TrainNodePrediction half =
      must_predict(cluster, {.strategy = TrainStrategy::kShardGradOp, .batch = 8, .seq = 64}).nodes[0];
  EXPECT_EQ(half.weight_bytes, ddp.weight_bytes);
  EXPECT_EQ(half.gradient_bytes, sharded.gradient_bytes);
}

TEST(TrainingCost, MissingMemoryIsCountedPerNode) {
  PlanCluster cluster = equal_cluster(2);
  const std::uint64_t needed = must_predict(cluster, {.batch = 2, .seq = 64}).nodes[1].memory_bytes();
  cluster.nodes[1].memory_bytes = needed - 5;
  const TrainPrediction prediction = must_predict(cluster, {.batch = 2, .seq = 64});
  EXPECT_EQ(prediction.nodes[0].missing_bytes, 0u);
  EXPECT_EQ(prediction.nodes[1].missing_bytes, 5u);
}

// Fails when nodes of unlike speed are given equal shares, which training does not do.
TEST(TrainingCost, BatchIsDividedBySpeedAndTheSlowestNodeDecides) {
  PlanCluster cluster = equal_cluster(3);
  cluster.nodes[2].fp32_gflops /= 5.0;
  cluster.nodes[2].memory_read_gb_per_s /= 5.0;
  const TrainPrediction prediction = must_predict(cluster, {.batch = 11, .seq = 64});
  ASSERT_EQ(prediction.nodes.size(), 3U);
  EXPECT_EQ(prediction.nodes[0].sequences, 5);
  EXPECT_EQ(prediction.nodes[1].sequences, 5);
  EXPECT_EQ(prediction.nodes[2].sequences, 1);
  EXPECT_EQ(prediction.step_s, prediction.nodes[2].step_s());
  // Where a rank would have none, as today: evenly, for a run needs one for each.
  EXPECT_EQ(must_predict(cluster, {.batch = 2, .seq = 64}).nodes[2].sequences, 1);
}

// Fails when a fast rank that computes several micro-batches at once is said to exchange after each, or to have memory
// for one.
TEST(TrainingCost, UnevenRanksExchangeAfterAPassOfSeveralMicroBatches) {
  PlanCluster even = equal_cluster(2), uneven = even;
  uneven.nodes[1].fp32_gflops /= 3.0;
  uneven.nodes[1].memory_read_gb_per_s /= 3.0;
  const TrainOptions options{.strategy = TrainStrategy::kFullShard, .batch = 16, .micro_batch = 1, .seq = 64};
  const TrainPrediction eight = must_predict(even, options), four = must_predict(uneven, options);
  EXPECT_EQ(four.nodes[0].sequences, 12);
  EXPECT_DOUBLE_EQ(four.bytes_sent_per_node, eight.bytes_sent_per_node / 2);
  EXPECT_EQ(four.nodes[0].activation_bytes, 3 * eight.nodes[0].activation_bytes);
  EXPECT_EQ(four.nodes[1].activation_bytes, eight.nodes[1].activation_bytes);
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
  EXPECT_FALSE(predict_training(config, equal_cluster(1), {.micro_batch = -1}).has_value());
  EXPECT_EQ(parse_train_strategy("sharded").value(), TrainStrategy::kFullShard);
  EXPECT_EQ(parse_train_strategy("zero2").value(), TrainStrategy::kShardGradOp);
  for (const TrainStrategy strategy : kTrainStrategies) {
    EXPECT_EQ(parse_train_strategy(to_string(strategy)).value(), strategy);
  }
  EXPECT_FALSE(parse_train_strategy("zero").has_value());
}

// By hand: 1000 parameters are 4000 bytes, k = 3/4. Fails when a half of a ring is forgotten, or sums of gradients are
// not scattered for each micro-batch.
TEST(TrainingCost, BytesSentAreThoseOfTheFormulas) {
  const auto bytes = [](TrainStrategy strategy, int micro_batches) {
    return train_communication(strategy, 4, 1000, micro_batches)->bytes_sent_per_node;
  };
  EXPECT_DOUBLE_EQ(bytes(TrainStrategy::kDdp, 1), 6000.0);
  EXPECT_DOUBLE_EQ(bytes(TrainStrategy::kZero1, 1), 6000.0);
  EXPECT_DOUBLE_EQ(bytes(TrainStrategy::kZero1, 2), 6000.0);
  EXPECT_DOUBLE_EQ(bytes(TrainStrategy::kShardGradOp, 1), 6000.0);
  EXPECT_DOUBLE_EQ(bytes(TrainStrategy::kFullShard, 1), 9000.0);
  EXPECT_DOUBLE_EQ(bytes(TrainStrategy::kDdp, 2), 6000.0);
  EXPECT_DOUBLE_EQ(bytes(TrainStrategy::kShardGradOp, 2), 9000.0);
  EXPECT_DOUBLE_EQ(bytes(TrainStrategy::kFullShard, 2), 18000.0);
  EXPECT_EQ(train_communication(TrainStrategy::kFullShard, 4, 1000)->messages, 9);
  EXPECT_FALSE(train_communication(TrainStrategy::kDdp, 4, 1000, 0).has_value());
}

// By hand, of 1000 parameters over 4 ranks: a share is 250 parameters, 1000 bytes.
TEST(TrainingCost, MemoryOfARankIsDividedAsTheStrategySays) {
  const RankWork work{.parameters = 1000, .largest_part_bytes = 300, .activation_bytes = 5000, .memory_bytes = 12'000};
  const auto rank = [&](TrainStrategy strategy) { return *predict_rank(strategy, 4, {}, work); };
  const TrainNodePrediction ddp = rank(TrainStrategy::kDdp);
  EXPECT_EQ(ddp.memory_bytes(), 4000u + 4000 + 8000 + 5000);
  EXPECT_EQ(ddp.missing_bytes, 9000u);
  EXPECT_EQ(rank(TrainStrategy::kZero1).memory_bytes(), 4000u + 4000 + 2000 + 5000);
  const TrainNodePrediction grad = rank(TrainStrategy::kShardGradOp);
  EXPECT_EQ(grad.memory_bytes(), 4000u + 1000 + 2000 + 5000 + 300);
  EXPECT_EQ(grad.missing_bytes, 300u);
  const TrainNodePrediction full = rank(TrainStrategy::kFullShard);
  EXPECT_EQ(full.memory_bytes(), 1000u + 1000 + 2000 + 5000 + 2 * 300);
  EXPECT_EQ(full.missing_bytes, 0u);
  // Alone, a rank divides nothing and gathers nothing.
  EXPECT_EQ(predict_rank(TrainStrategy::kFullShard, 1, {}, work)->memory_bytes(), 21'000u);
}

// By hand: a half of a ring is 3 messages of 1000 bytes at 1 MB/s, 3 ms. Fails when more is hidden than a pass lasts,
// or the interval leaves out what is predicted.
TEST(TrainingCost, TheIntervalReachesFromAllHiddenToNothingHidden) {
  const LinkDescriptor link{.latency_us = 0.0, .gb_per_s = 0.001};
  RankWork work{.forward_s = 0.001, .backward_s = 0.002, .optimizer_s = 0.004, .parameters = 1000};
  const auto rank = [&](TrainStrategy strategy) { return *predict_rank(strategy, 4, link, work); };
  EXPECT_NEAR(rank(TrainStrategy::kDdp).step_s(), 0.007 + 0.006, 1e-12);
  EXPECT_NEAR(rank(TrainStrategy::kDdp).step_low_s, 0.007 + (0.006 - 0.002), 1e-12);
  EXPECT_NEAR(rank(TrainStrategy::kZero1).step_s(), 0.003 + 0.001 + 0.006, 1e-12);
  EXPECT_NEAR(rank(TrainStrategy::kShardGradOp).step_s(), 0.003 + 0.001 + 0.006, 1e-12);
  EXPECT_NEAR(rank(TrainStrategy::kShardGradOp).step_low_s, 0.004 + 0.002 + 0.001, 1e-12);
  EXPECT_NEAR(rank(TrainStrategy::kFullShard).step_s(), 0.004 + 0.009, 1e-12);
  EXPECT_NEAR(rank(TrainStrategy::kFullShard).step_low_s, 0.004 + 0.002 + 0.004, 1e-12);
  // Sums begin with the last micro-batch of ddp alone.
  work.micro_batches = 2;
  EXPECT_NEAR(rank(TrainStrategy::kDdp).step_low_s, 0.007 + (0.006 - 0.001), 1e-12);
  work.uncertainty = 0.5;
  EXPECT_NEAR(rank(TrainStrategy::kDdp).step_low_s, 0.5 * 0.012, 1e-12);
  EXPECT_NEAR(rank(TrainStrategy::kDdp).step_high_s, 1.5 * 0.013, 1e-12);
}

// Fails when recomputation is free, or costs more than the forward pass that it repeats.
TEST(TrainingCost, WhatIsComputedAgainTakesTime) {
  const auto backward_s = [](Recompute recompute, int micro_batch) {
    const TrainOptions options{.batch = 16, .micro_batch = micro_batch, .seq = 64, .recompute = recompute};
    return must_predict(measured_node(1.0), options).nodes[0].backward_s;
  };
  const double none = backward_s(Recompute::kNone, 4);
  EXPECT_GT(backward_s(Recompute::kSelective, 4), none);
  EXPECT_GT(backward_s(Recompute::kBlock, 4), 1.2 * none);
  EXPECT_LT(backward_s(Recompute::kBlock, 4), 1.5 * none);
  // Beyond 64 MiB of logits, 333 rows of GPT-2's, the head is computed again.
  EXPECT_EQ(backward_s(Recompute::kNone, 1), none);
  EXPECT_GT(backward_s(Recompute::kNone, 16), 1.01 * none);
}

// Fails when memory holds more than one micro-batch, or its moving is counted for one alone.
TEST(TrainingCost, MicroBatchesDivideActivationsAndNotTheWork) {
  const TrainPrediction whole = must_predict(equal_cluster(1), {.batch = 8, .seq = 32});
  const TrainPrediction parts = must_predict(equal_cluster(1), {.batch = 8, .micro_batch = 2, .seq = 32});
  EXPECT_EQ(whole.nodes[0].activation_bytes, 4 * parts.nodes[0].activation_bytes);
  EXPECT_DOUBLE_EQ(whole.step_s, parts.step_s);
  EXPECT_LT(whole.step_low_s, whole.step_s);
  EXPECT_GT(whole.step_high_s, whole.step_s);
}

}  // namespace
}  // namespace butterfly
