// What the spans of a TrainableTransformer say, against numbers worked out by hand for a model of two blocks.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <utility>

#include "butterfly/model/training/training_model_test.h"
#include "butterfly/tensor/dtype.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

using trace::Owner;
using trace::Pass;
using trace::Zone;

struct Sum {
  int count = 0;
  std::uint64_t flops = 0, bytes = 0;
  trace::Work last{};
};
using Sums = std::map<std::pair<Zone, Pass>, Sum>;

constexpr TransformerOptions kOptions{.micro_batch = 2, .seq = 6, .threads = 2};  // 12 rows

std::vector<trace::Span> spans_of(TrainableTransformer& transformer) {
  trace::reset();
  trace::set_recording(true);
  forward_backward(transformer);
  trace::set_recording(false);
  const trace::Drained drained = trace::drain();
  EXPECT_EQ(drained.lost, 0U);
  return drained.spans;
}

Sums sums_of(const std::string& kind, const TransformerOptions& options) {
  const auto transformer = make_transformer(transformer_config(kind), options);
  Sums sums;
  for (const trace::Span& span : spans_of(*transformer)) {
    Sum& sum = sums[{span.zone, span.work.pass}];
    ++sum.count;
    sum.flops += span.work.flops;
    sum.bytes += span.work.bytes;
    sum.last = span.work;
  }
  return sums;
}

class TrainingZones : public testing::Test {
 protected:
  void SetUp() override {
    if (trace::kRingSpans < 4096) GTEST_SKIP() << "a ring of " << trace::kRingSpans << " spans is too small";
  }
  void TearDown() override { trace::reset(); }
};

TEST_F(TrainingZones, MatmulsSayTheirShapesFlopsAndBytes) {
  // 12 rows, model_dim 32, Q, K and V 32 + 16 + 16, ff_dim 48, vocab 61; twice but for the head.
  Sums sums = sums_of("llama", kOptions);
  for (const Pass pass : {Pass::kForward, Pass::kInputGradient, Pass::kWeightGradient}) {
    EXPECT_EQ((sums[{Zone::kQkv, pass}].flops), 2U * 2 * 12 * 32 * 64);
    EXPECT_EQ((sums[{Zone::kAttentionOutput, pass}].flops), 2U * 2 * 12 * 32 * 32);
    EXPECT_EQ((sums[{Zone::kGateUp, pass}].flops), 2U * 2 * 12 * 32 * 96);
    EXPECT_EQ((sums[{Zone::kDown, pass}].flops), 2U * 2 * 12 * 48 * 32);
    EXPECT_EQ((sums[{Zone::kHead, pass}].flops), 2U * 12 * 32 * 61);
  }
  const trace::Work forward = sums[{Zone::kQkv, Pass::kForward}].last;
  EXPECT_EQ(forward.number, 12U);
  EXPECT_EQ(forward.in, 32U);
  EXPECT_EQ(forward.out, 64U);
  EXPECT_EQ(forward.type, static_cast<std::uint8_t>(DType::kF32));
  EXPECT_EQ(forward.bytes, 4U * (12 * 32 + 32 * 64 + 12 * 64));
  const trace::Work input = sums[{Zone::kQkv, Pass::kInputGradient}].last;
  EXPECT_EQ(input.in, 64U);
  EXPECT_EQ(input.out, 32U);
  const trace::Work weight = sums[{Zone::kQkv, Pass::kWeightGradient}].last;
  EXPECT_EQ(weight.number, 64U);
  EXPECT_EQ(weight.in, 12U);
  EXPECT_EQ(weight.out, 32U);
}

TEST_F(TrainingZones, OperandsOfTwoBytesCountAsTwo) {
  TransformerOptions options = kOptions;
  options.precision = Precision::kBfloat16;
  const Sums sums = sums_of("llama", options);
  const trace::Work forward = sums.at({Zone::kQkv, Pass::kForward}).last;
  EXPECT_EQ(forward.type, static_cast<std::uint8_t>(DType::kBF16));
  EXPECT_EQ(forward.bytes, 2U * (12 * 32 + 32 * 64) + 4U * 12 * 64);
}

TEST_F(TrainingZones, FusedAttentionCountsThePairsThatAreSeen) {
  // 21 pairs of a sequence of 6, heads of 8 elements, 4 of them in 2 sequences and 2 blocks.
  Sums sums = sums_of("llama", kOptions);
  EXPECT_EQ((sums[{Zone::kAttention, Pass::kForward}].flops), 2U * (2 * 2 * 8 * 21 * 4 * 2));
  EXPECT_EQ((sums[{Zone::kAttention, Pass::kInputGradient}].flops), 2U * (5 * 2 * 8 * 21 * 4 * 2));
  // In a window of 4: 1 + 2 + 3 + 4 + 4 + 4.
  EXPECT_EQ((sums_of("both_norms", kOptions)[{Zone::kAttention, Pass::kForward}].flops), 2U * (2 * 2 * 8 * 18 * 4 * 2));
}

TEST_F(TrainingZones, WithoutFusionEachMatmulIsItsOwnAndAttentionComputesAllPairs) {
  TransformerOptions options = kOptions;
  options.fusion = *parse_fusion("none");
  Sums sums = sums_of("llama", options);
  EXPECT_EQ(sums.count({Zone::kQkv, Pass::kForward}) + sums.count({Zone::kGateUp, Pass::kForward}), 0U);
  EXPECT_EQ((sums[{Zone::kQuery, Pass::kForward}].flops), 2U * 2 * 12 * 32 * 32);
  EXPECT_EQ((sums[{Zone::kKey, Pass::kForward}].flops), 2U * 2 * 12 * 32 * 16);
  EXPECT_EQ((sums[{Zone::kValue, Pass::kWeightGradient}].flops), 2U * 2 * 12 * 32 * 16);
  EXPECT_EQ((sums[{Zone::kGate, Pass::kForward}].flops), 2U * 2 * 12 * 32 * 48);
  EXPECT_EQ((sums[{Zone::kUp, Pass::kForward}].flops), 2U * 2 * 12 * 32 * 48);
  EXPECT_EQ((sums[{Zone::kAttention, Pass::kForward}].flops), 2U * (2 * 2 * 8 * 36 * 4 * 2));
  EXPECT_EQ((sums[{Zone::kAttention, Pass::kInputGradient}].flops), 2U * (4 * 2 * 8 * 36 * 4 * 2));
  EXPECT_EQ((sums[{Zone::kRotary, Pass::kForward}].count), 2);
}

TEST_F(TrainingZones, AGradientIsAsManyFlopsAsItsMatmulForEveryKindOfModel) {
  for (const std::string& kind : network_kinds()) {
    std::map<Pass, std::uint64_t> flops;
    for (const auto& [key, sum] : sums_of(kind, kOptions)) {
      if (trace::is_matmul(key.first)) flops[key.second] += sum.flops;
    }
    EXPECT_GT(flops[Pass::kForward], 0U) << kind;
    EXPECT_EQ(flops[Pass::kInputGradient], flops[Pass::kForward]) << kind;
    EXPECT_EQ(flops[Pass::kWeightGradient], flops[Pass::kForward]) << kind;
    EXPECT_EQ(flops[Pass::kRecompute], 0U) << kind;
  }
}

TEST_F(TrainingZones, WhatIsComputedAgainSaysSo) {
  TransformerOptions options = kOptions;
  options.recompute = Recompute::kBlock;
  Sums sums = sums_of("llama", options);
  EXPECT_EQ((sums[{Zone::kQkv, Pass::kRecompute}].flops), (sums[{Zone::kQkv, Pass::kForward}].flops));
  EXPECT_EQ((sums[{Zone::kAttention, Pass::kRecompute}].count), 2);
  EXPECT_EQ(sums.count({Zone::kDown, Pass::kRecompute}), 0U);  // the backward pass does not need what it gives
}

TEST_F(TrainingZones, LayersHoldTheirOperations) {
  const auto transformer = make_transformer(transformer_config("llama"), kOptions);
  std::map<Zone, int> counts;
  std::vector<trace::Span> layers;
  const std::vector<trace::Span> spans = spans_of(*transformer);
  for (const trace::Span& span : spans) {
    if (span.zone == Zone::kLayer) layers.push_back(span);
    ++counts[span.zone];
  }
  ASSERT_EQ(layers.size(), 4U);  // as they ended: two forward, two backward
  EXPECT_EQ(layers[1].work.number, 1U);
  EXPECT_EQ(layers[2].work.number, 1U);
  EXPECT_EQ(layers[3].work.number, 0U);
  EXPECT_EQ(counts[Zone::kQkv], 2 * 3);
  EXPECT_EQ(counts[Zone::kAttention], 2 * 2);
  EXPECT_EQ(counts[Zone::kActivation], 2 * 2);
  EXPECT_EQ(counts[Zone::kNorm], 2 * 2 * 2 + 3);  // the last one once more in the backward pass, times the loss's scale
  EXPECT_EQ(counts[Zone::kEmbedding], 2);
  EXPECT_EQ(counts[Zone::kSoftmaxLoss], 1);
  for (const trace::Span& span : spans) {
    if (span.zone != Zone::kQkv && span.zone != Zone::kAttention && span.zone != Zone::kDown) continue;
    const auto holds = [&](const trace::Span& layer) {
      return layer.begin_ns <= span.begin_ns && span.end_ns <= layer.end_ns;
    };
    EXPECT_EQ(std::ranges::count_if(layers, holds), 1) << trace::to_string(span.zone);
  }
}

TEST_F(TrainingZones, RecordingChangesNoBit) {
  const auto watched = make_transformer(transformer_config("llama"), kOptions);
  const auto unwatched = make_transformer(transformer_config("llama"), kOptions);
  spans_of(*watched);
  forward_backward(*unwatched);
  const std::span<const float> a = watched->parameters().gradients(), b = unwatched->parameters().gradients();
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0);
}

TEST_F(TrainingZones, MemoryIsHeldByItsOwnerUntilItIsGivenBack) {
  trace::reset();
  {
    TransformerOptions options = kOptions;
    options.precision = Precision::kBfloat16;
    const auto transformer = make_transformer(transformer_config("llama"), options);
    const TrainingMemory memory = transformer->memory();
    EXPECT_EQ(trace::held(Owner::kWeights), memory.parameter_bytes);
    EXPECT_EQ(trace::held(Owner::kGradients), memory.gradient_bytes);
    EXPECT_EQ(trace::held(Owner::kActivations), memory.activation_bytes);
    EXPECT_EQ(trace::held(Owner::kBuffers), memory.scratch_bytes);
  }
  for (const Owner owner : {Owner::kWeights, Owner::kGradients, Owner::kActivations, Owner::kBuffers}) {
    EXPECT_EQ(trace::held(owner), 0U) << trace::to_string(owner);
  }
}

}  // namespace
}  // namespace butterfly
