#include "butterfly/plan/cost/predict.h"

#include <gtest/gtest.h>

#include <cmath>

#include "butterfly/plan/partition/plan.h"

namespace butterfly {
namespace {

/// Two equal nodes over known links, a prompt of three chunks.
class Prediction2 : public testing::Test {
 protected:
  void SetUp() override {
    config_ = *named_config("butterfly-demo");
    config_.layers = 4;
    for (int i = 0; i < 2; ++i) cluster_.nodes.push_back({.memory_read_gb_per_s = 10.0, .fp32_gflops = 100.0});
    cluster_.default_link = {.latency_us = 100.0, .gb_per_s = 0.1};
    options_ = {.context = 256, .sequences = 4, .prompt = 96, .chunk = 32};
    input_ = *prediction_input(config_, cluster_, options_);
  }

  StageAssignment work(int first, int last, SliceRange slices = {}) const {
    return {.first_layer = first, .last_layer = last, .embedding = first == 0, .head = last == 4, .slices = slices};
  }

  ModelConfig config_;
  PlanCluster cluster_;
  PlanOptions options_;
  PredictionInput input_;
  const double latency_s_ = 100e-6;
  const double bytes_per_s_ = 0.1e9;
};

TEST_F(Prediction2, TokenIsStagesAndHops) {
  const std::vector<Share> shares{{.node = 0, .work = work(0, 2)}, {.node = 1, .work = work(2, 4)}};
  const PlanPrediction whole = predict(input_, shares).whole;
  const StepShape step = decode_shape({.context = 256, .sequences = 1});
  const double stages = share_s(input_.cost, shares[0].work, step, input_.rates[0]) +
                        share_s(input_.cost, shares[1].work, step, input_.rates[1]);
  const double bytes = 4.0 + 4.0 * config_.model_dim + 4.0 * config_.vocab;
  EXPECT_DOUBLE_EQ(whole.token_s, stages + 3 * latency_s_ + bytes / bytes_per_s_);
  EXPECT_DOUBLE_EQ(whole.hop_s, 3 * latency_s_ + bytes / bytes_per_s_);
  EXPECT_EQ(whole.exchange_s, 0.0);
  EXPECT_EQ(whole.hops, 3);
  EXPECT_EQ(whole.token_s, predicted_token_s(input_, shares));
  EXPECT_EQ(whole.tokens_per_s, predicted_tokens_per_s(input_, shares));
}

// A small model spends its time so: without these terms a token of the demo model is predicted twice as fast as it is.
TEST_F(Prediction2, EveryStepPaysForItsKernelsAndEveryMessageForWhoIsWoken) {
  const std::vector<Share> shares{{.node = 0, .work = work(0, 2)}, {.node = 1, .work = work(2, 4)}};
  const PlanPrediction free = predict(input_, shares).whole;
  cluster_.default_link.wake_us = 70.0;
  for (NodeDescriptor& node : cluster_.nodes) {
    node.dispatch_us = 3.0;
    node.wake_us = 20.0;
  }
  input_ = *prediction_input(config_, cluster_, options_);
  const PlanPrediction whole = predict(input_, shares).whole;
  const double kernels_s = (4 * kDispatchesOfBlock + 1) * 3e-6;
  const double wakes_s = 3 * 70e-6 + 2 * 20e-6;  // three messages, two teams
  EXPECT_NEAR(whole.hop_s - free.hop_s, wakes_s, 1e-12);
  EXPECT_NEAR(whole.token_s - free.token_s, kernels_s + wakes_s, 1e-12);
  EXPECT_NEAR(whole.ttft_s - free.ttft_s, 4 * 2 * kDispatchesOfBlock * 3e-6 + 3e-6 + wakes_s, 60e-6)
      << "three chunks over two stages of two blocks";
}

TEST_F(Prediction2, ChunksOfAPromptOverlapInThePipeline) {
  const std::vector<Share> one{{.node = 0, .work = work(0, 4)}};
  const std::vector<Share> two{{.node = 0, .work = work(0, 2)}, {.node = 1, .work = work(2, 4)}};
  cluster_.default_link = {.latency_us = 0.0, .gb_per_s = 1e6};
  const Prediction alone = predict(input_, one), divided = predict(input_, two);
  EXPECT_NEAR(alone.whole.ttft_s, alone.shares[0].prefill_s, 1e-9);
  // Three chunks over two stages: four turns instead of six.
  EXPECT_GT(divided.whole.ttft_s, 0.6 * alone.whole.ttft_s);
  EXPECT_LT(divided.whole.ttft_s, 0.75 * alone.whole.ttft_s);
}

TEST_F(Prediction2, ThroughputOfAFullPipelineIsBoundByTheSlowestAndOfAnEmptyOneByTheWholeWay) {
  const std::vector<Share> shares{{.node = 0, .work = work(0, 3)}, {.node = 1, .work = work(3, 4)}};
  cluster_.default_link = {.latency_us = 0.0, .gb_per_s = 1e6};
  const StepShape step = decode_shape({.context = 256, .sequences = 2});
  const double slowest = share_s(input_.cost, shares[0].work, step, input_.rates[0]);
  EXPECT_NEAR(predict(input_, shares).whole.tokens_per_s * slowest, 2.0, 1e-6);
  input_.load.sequences = 1;
  const PlanPrediction alone = predict(input_, shares).whole;
  EXPECT_DOUBLE_EQ(alone.tokens_per_s, 1.0 / alone.token_s);
}

TEST_F(Prediction2, GroupWaitsForItsSlowestMemberAndExchangesTwicePerLayer) {
  const std::vector<Share> group{{.node = 0, .work = work(0, 4, {0, 24})}, {.node = 1, .work = work(0, 4, {24, 32})}};
  const StepShape step = decode_shape({.context = 256, .sequences = 1});
  const GroupTime time = group_time(input_, group, step);
  EXPECT_DOUBLE_EQ(time.compute_s, share_s(input_.cost, group[0].work, step, input_.rates[0]));
  // Slices 0 to 23 are two subtrees, 24 to 31 one: the first member sends more. Direct beats two rounds here.
  const double row = 4.0 * config_.model_dim;
  const double one = exchange_s(input_, group, 1.0);
  EXPECT_DOUBLE_EQ(one, latency_s_ + kAssumedWakeS + 2 * row / bytes_per_s_);
  const double embedding = latency_s_ + kAssumedWakeS + row / bytes_per_s_;
  const double logits =
      latency_s_ + kAssumedWakeS + static_cast<double>(input_.cost.share({24, 32}).logit_bytes) / bytes_per_s_;
  EXPECT_DOUBLE_EQ(time.exchange_s, 8 * one + embedding + logits);
}

TEST_F(Prediction2, ManyRowsAreSummedInPartsWhereThatSendsLess) {
  const std::vector<Share> group{{.node = 0, .work = work(0, 4, {0, 28})}, {.node = 1, .work = work(0, 4, {28, 32})}};
  const double row = 4.0 * config_.model_dim;
  // Three subtrees to one peer; or half of them and half of the sums, twice the latency.
  EXPECT_DOUBLE_EQ(exchange_s(input_, group, 1.0), latency_s_ + kAssumedWakeS + 3 * row / bytes_per_s_);
  EXPECT_DOUBLE_EQ(exchange_s(input_, group, 1000.0), 2 * (latency_s_ + kAssumedWakeS) + 2 * 1000 * row / bytes_per_s_);
}

TEST_F(Prediction2, AGroupThatMeasuredItsExchangesIsPredictedWithTheirTimes) {
  const std::vector<Share> group{{.node = 0, .work = work(0, 4, {0, 16})}, {.node = 1, .work = work(0, 4, {16, 32})}};
  const double assumed = exchange_s(input_, group, 1.0), assumed_of_64 = exchange_s(input_, group, 64.0);
  const StepShape step = decode_shape({.context = 256, .sequences = 1});
  const double before = group_time(input_, group, step).exchange_s;
  cluster_.measured_groups = {{.nodes = {0, 1}, .times = {.one_row_s = 2e-3, .many_rows = 64, .many_rows_s = 50e-3}}};
  EXPECT_DOUBLE_EQ(exchange_s(input_, group, 1.0), 2e-3);
  EXPECT_DOUBLE_EQ(exchange_s(input_, group, 64.0), 50e-3);
  // Two exchanges a layer, and those of embedding and logits meet as late as they do.
  EXPECT_NEAR(group_time(input_, group, step).exchange_s - before, (2 * 4 + 2) * (2e-3 - assumed), 1e-9);
  // Between them it grows, beyond them as the links say.
  EXPECT_GT(exchange_s(input_, group, 20.0), exchange_s(input_, group, 10.0));
  EXPECT_LT(exchange_s(input_, group, 32.0), 50e-3);
  const double row = 4.0 * config_.model_dim;
  EXPECT_NEAR(exchange_s(input_, group, 564.0) - 50e-3, 500 * row / bytes_per_s_, 1e-9);
  cluster_.measured_groups[0].nodes = {1, 0};
  EXPECT_DOUBLE_EQ(exchange_s(input_, group, 64.0), assumed_of_64) << "of another group";
  cluster_.measured_groups[0] = {.nodes = {0, 1}, .times = {}};
  EXPECT_DOUBLE_EQ(exchange_s(input_, group, 1.0), assumed) << "nothing was measured";
}

// Fails when contention that the nodes' rates hold already is counted with the exchanges once more.
TEST_F(Prediction2, ABlockThatWasMeasuredIsPredictedAsItWasWhateverTheRatesSay) {
  const std::vector<Share> group{{.node = 0, .work = work(0, 4, {0, 16})}, {.node = 1, .work = work(0, 4, {16, 32})}};
  const StepShape step{.rows = 1.0, .past = 0.0, .sequences = 1.0, .logit_rows = 0.0};
  const double computing = group_time(input_, group, step).compute_s / 4.0;  // layers; the embedding is nothing beside
  cluster_.measured_groups = {{.nodes = {0, 1},
                               .times = {.one_row_s = 2e-3,
                                         .many_rows = 64,
                                         .many_rows_s = 50e-3,
                                         .one_row_block_s = computing + 1e-3,
                                         .many_rows_block_s = 1.0}}};
  EXPECT_NEAR(exchange_s(input_, group, 1.0), 0.5e-3, 0.02e-3);
  cluster_.measured_groups[0].times.one_row_block_s = 0.5 * computing;
  EXPECT_EQ(exchange_s(input_, group, 1.0), 0.0);
}

TEST_F(Prediction2, BytesOnLinksAreCounted) {
  const std::vector<Share> shares{{.node = 1, .work = work(0, 2)}, {.node = 0, .work = work(2, 4)}};
  const std::vector<LinkUse> links = predict(input_, shares).whole.links;
  ASSERT_EQ(links.size(), 3u);
  const double row = 4.0 * config_.model_dim;
  for (const LinkUse& link : links) {
    if (link.from == kCoordinator) {
      EXPECT_EQ(link.to, 1);
      EXPECT_EQ(link.decode_bytes, 4.0);
      EXPECT_EQ(link.prefill_bytes, 4.0 * 96);
    } else if (link.to == kCoordinator) {
      EXPECT_EQ(link.from, 0);
      EXPECT_EQ(link.prefill_bytes, 4.0 * config_.vocab);
    } else {
      EXPECT_EQ(link.from, 1);
      EXPECT_EQ(link.decode_bytes, row);
      EXPECT_EQ(link.prefill_bytes, 96 * row);
    }
  }
}

TEST_F(Prediction2, NodeWithTwoStagesIsAsBusyAsBothAndHoldsOneWorkspace) {
  const std::vector<Share> shares{
      {.node = 0, .work = work(0, 1)}, {.node = 1, .work = work(1, 3)}, {.node = 0, .work = work(3, 4)}};
  const Prediction prediction = predict(input_, shares);
  EXPECT_DOUBLE_EQ(prediction.whole.slowest_s, std::max(prediction.shares[0].decode_s + prediction.shares[2].decode_s,
                                                        prediction.shares[1].decode_s));
  const std::vector<ShareBytes> held = node_bytes(input_, shares);
  EXPECT_EQ(held[0].weights, prediction.shares[0].weight_bytes + prediction.shares[2].weight_bytes);
  EXPECT_EQ(held[0].activations,
            std::max(prediction.shares[0].activation_bytes, prediction.shares[2].activation_bytes));
}

TEST_F(Prediction2, LinkThatIsCutTakesForever) {
  cluster_.links = {{}, {}, {.latency_us = 1.0, .gb_per_s = 1.0}, {}};
  const std::vector<Share> shares{{.node = 0, .work = work(0, 2)}, {.node = 1, .work = work(2, 4)}};
  const PlanPrediction whole = predict(input_, shares).whole;
  EXPECT_TRUE(std::isinf(whole.token_s));
  EXPECT_EQ(whole.tokens_per_s, 0.0);
}

}  // namespace
}  // namespace butterfly
