// What a recording says of a step: every operation of every layer once, with FLOPs and bytes that follow from shapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "butterfly/model/core/random_weights.h"
#include "butterfly/stage/stage.h"
#include "butterfly/stage/test_group_test.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

using ::testing::ElementsAre;
using trace::Span;
using trace::Zone;

ModelConfig tiny_llama() {
  ModelConfig c = *named_config("llama-1.1b");
  c.layers = 2;
  c.model_dim = 64;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.ff_dim = 96;
  c.vocab = 512;
  c.context = 64;
  c.rope.dim = 16;
  return c;
}

ModelConfig tiny_experts() {
  ModelConfig c = tiny_llama();
  c.moe = {.experts = 4, .experts_used = 2, .ff_dim = 32, .layers = {0, 1}, .shared_ff_dim = 32, .shared_gate = true};
  return c;
}

Step tokens_at(int position, int rows, int vocab) {
  Step step;
  step.batch.runs.push_back({SequenceId(0), position, rows, rows - 1});
  step.tensor = *Tensor::allocate(*Pool::shared(), DType::kI32, {rows});
  const auto ids = step.tensor.mutable_view().values<std::int32_t>();
  for (int i = 0; i < rows; ++i) ids[static_cast<std::size_t>(i)] = ((position + i) * 131 + 7) % vocab;
  return step;
}

/// Spans of these steps, an outer one before those inside it.
std::vector<Span> record_steps(const ModelConfig& config, const RandomWeights& weights, const std::vector<int>& rows,
                               int threads = 1) {
  trace::reset();  // before anything is held: what a stage gives back was counted
  const Checkpoint checkpoint = *random_checkpoint(config, weights);
  const StageAssignment whole{.first_layer = 0, .last_layer = config.layers, .embedding = true, .head = true};
  const auto stage =
      Stage::load(checkpoint.config, whole, checkpoint.weights, {.threads = threads, .isa = Isa::kReference});
  EXPECT_TRUE(stage);
  trace::set_recording(true);
  int position = 0;
  std::vector<Span> spans;
  for (const int count : rows) {
    Step step = tokens_at(position, count, config.vocab);
    EXPECT_TRUE((*stage)->forward(step));
    position += count;
    for (const Span& span : trace::drain().spans) spans.push_back(span);
  }
  trace::set_recording(false);
  std::ranges::stable_sort(spans, [](const Span& a, const Span& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  return spans;
}

std::vector<Span> of_zone(const std::vector<Span>& spans, Zone zone) {
  std::vector<Span> found;
  std::ranges::copy_if(spans, std::back_inserter(found), [&](const Span& span) { return span.zone == zone; });
  return found;
}

std::map<std::string, int> counts(const std::vector<Span>& spans) {
  std::map<std::string, int> counted;
  for (const Span& span : spans) ++counted[std::string(to_string(span.zone))];
  return counted;
}

bool inside(const Span& inner, const Span& outer) {
  return inner.begin_ns >= outer.begin_ns && inner.end_ns <= outer.end_ns;
}

#ifndef BUTTERFLY_TINY  // whose rings hold 8 spans

TEST(StageZones, ALayerHasEachOfItsOperationsOnceInEachStep) {
  const auto spans = record_steps(tiny_llama(), {}, {5, 1, 1});
  constexpr int kSteps = 3;
  constexpr int kLayers = 2;
  auto counted = counts(spans);
  EXPECT_EQ(counted["prefill"], 1);
  EXPECT_EQ(counted["decode"], 2);
  EXPECT_EQ(counted["layer"], kLayers * kSteps);
  for (const char* name : {"qkv", "attention", "attention_output", "gate_up", "activation", "down"}) {
    EXPECT_EQ(counted[name], kLayers * kSteps) << name;
  }
  EXPECT_EQ(counted["norm"], (2 * kLayers + 1) * kSteps);
  EXPECT_EQ(counted["rotary"], (kLayers + 2) * kSteps) << "of each layer, of the step's angles, room in the cache";
  EXPECT_EQ(counted["embedding"], kSteps);
  EXPECT_EQ(counted["lm_head"], kSteps);
  EXPECT_EQ(counted["quantize"], 0);
  EXPECT_EQ(counted["matmul"], 0) << "a matmul that nobody named";
}

TEST(StageZones, QuantisedWeightsHaveRowsQuantisedBeforeEachOfTheirMatmuls) {
  const auto spans = record_steps(tiny_llama(), {.type = DType::kQ8_0}, {5});
  auto counted = counts(spans);
  EXPECT_EQ(counted["quantize"], 3 * 2 + 1) << "qkv, output and gate of two layers, and the head; down is quantised "
                                               "with its activation";
  const Span first = of_zone(spans, Zone::kQuantize).front();
  EXPECT_EQ(first.work.number, 5u);
  EXPECT_EQ(first.work.in, 64u);
  EXPECT_EQ(first.work.bytes, 5u * (64 * 4 + 64 + 64 / 32 * 12));
}

TEST(StageZones, OperationsLieInALayerOrInTheStepAndNeverInEachOther) {
  for (const ModelConfig& config : {tiny_llama(), tiny_experts()}) {
    const auto spans = record_steps(config, {.type = DType::kQ8_0}, {7, 1}, 2);
    const auto layers = of_zone(spans, Zone::kLayer);
    std::vector<Span> operations;
    for (const Span& span : spans) {
      EXPECT_EQ(span.thread, spans.front().thread) << to_string(span.zone) << ": members of a team tell nothing";
      if (kind_of(span.zone) == trace::ZoneKind::kOperation) operations.push_back(span);
    }
    for (std::size_t i = 1; i < operations.size(); ++i) {
      EXPECT_GE(operations[i].begin_ns, operations[i - 1].end_ns)
          << to_string(operations[i].zone) << " in " << to_string(operations[i - 1].zone);
    }
    for (const Span& span : operations) {
      const bool of_layer = std::ranges::any_of(layers, [&](const Span& layer) { return inside(span, layer); });
      const bool of_step = span.zone == Zone::kEmbedding || span.zone == Zone::kHead || span.zone == Zone::kRotary ||
                           span.zone == Zone::kNorm || span.zone == Zone::kQuantize;
      EXPECT_TRUE(of_layer || of_step) << to_string(span.zone);
    }
    ASSERT_EQ(layers.size(), 4u);
    EXPECT_EQ(layers[0].work.number, 0u);
    EXPECT_EQ(layers[1].work.number, 1u);
  }
}

TEST(StageZones, FlopsOfMatmulsAreTwiceTheirShapes) {
  const auto spans = record_steps(tiny_llama(), {}, {5, 1});
  const auto flops = [&](Zone zone) {
    std::vector<std::uint64_t> found;
    for (const Span& span : of_zone(spans, zone)) found.push_back(span.work.flops);
    return found;
  };
  // Heads 4 and 2 of 16: queries 64, keys and values 32 each.
  EXPECT_THAT(flops(Zone::kQkv), ElementsAre(2 * 5 * 64 * 128, 2 * 5 * 64 * 128, 2 * 64 * 128, 2 * 64 * 128));
  EXPECT_THAT(flops(Zone::kAttentionOutput), ElementsAre(2 * 5 * 64 * 64, 2 * 5 * 64 * 64, 2 * 64 * 64, 2 * 64 * 64));
  EXPECT_THAT(flops(Zone::kGateUp), ElementsAre(2 * 5 * 64 * 192, 2 * 5 * 64 * 192, 2 * 64 * 192, 2 * 64 * 192));
  EXPECT_THAT(flops(Zone::kDown), ElementsAre(2 * 5 * 96 * 64, 2 * 5 * 96 * 64, 2 * 96 * 64, 2 * 96 * 64));
  EXPECT_THAT(flops(Zone::kHead), ElementsAre(2 * 64 * 512, 2 * 64 * 512)) << "the last row of the prompt alone";
  // Rows see 1, 2, 3, 4, 5 keys, then 6: 15 and 6 pairs, each of 4 heads, each of 16 + 16 multiplications.
  EXPECT_THAT(flops(Zone::kAttention), ElementsAre(2 * 15 * 4 * 32, 2 * 15 * 4 * 32, 2 * 6 * 4 * 32, 2 * 6 * 4 * 32));
  for (const Span& span : spans) {
    if (is_matmul(span.zone)) {
      EXPECT_EQ(span.work.flops, 2ull * span.work.number * span.work.in * span.work.out) << to_string(span.zone);
    } else if (span.zone != Zone::kAttention) {
      EXPECT_EQ(span.work.flops, 0u) << to_string(span.zone);
    }
  }
}

TEST(StageZones, BytesAreThoseOfWeightsAndOfRows) {
  const auto spans = record_steps(tiny_llama(), {}, {5, 1});
  const Span qkv = of_zone(spans, Zone::kQkv).front();
  EXPECT_EQ(qkv.work.number, 5u);
  EXPECT_EQ(qkv.work.in, 64u);
  EXPECT_EQ(qkv.work.out, 128u);
  EXPECT_EQ(qkv.work.type, static_cast<std::uint8_t>(DType::kF32));
  EXPECT_EQ(qkv.work.bytes, 4u * (64 * 128 + 5 * 64 + 5 * 128));
  // The output is added to the residual stream, which is read and written.
  EXPECT_EQ(of_zone(spans, Zone::kAttentionOutput).front().work.bytes, 4u * (64 * 64 + 5 * 64 + 2 * 5 * 64));
  // A cache of floats: 5 keys and values of 2 heads of 16, and queries and results of 4 heads.
  EXPECT_EQ(of_zone(spans, Zone::kAttention).front().work.bytes, 4u * (5 * 2 * 32 + 5 * 4 * 32));
  EXPECT_EQ(of_zone(spans, Zone::kAttention).back().work.bytes, 4u * (6 * 2 * 32 + 4 * 32));
  EXPECT_EQ(of_zone(spans, Zone::kNorm).front().work.bytes, 4u * 2 * 5 * 64);
  EXPECT_EQ(of_zone(spans, Zone::kActivation).front().work.bytes, 4u * 3 * 5 * 96);
  // Eight bits a weight and a half of scale for 32 of them; rows have a float and two sums of 32 bits.
  const auto quantised = record_steps(tiny_llama(), {.type = DType::kQ8_0}, {5});
  EXPECT_EQ(of_zone(quantised, Zone::kQkv).front().work.bytes,
            64u * 128 + 64 / 32 * 128 * 2 + 5 * (64 + 64 / 32 * 12) + 4 * 5 * 128);
}

TEST(StageZones, ExpertsCountTheRowsThatEachGot) {
  const auto spans = record_steps(tiny_experts(), {}, {5});
  const auto experts = of_zone(spans, Zone::kExperts);
  ASSERT_EQ(experts.size(), 2u) << "up and gate together, then down";
  EXPECT_EQ(experts[0].work.number, 10u) << "two experts for each of five rows";
  EXPECT_EQ(experts[0].work.flops, 2u * 10 * 64 * 64);
  EXPECT_EQ(experts[1].work.flops, 2u * 10 * 32 * 64);
  EXPECT_EQ(of_zone(spans, Zone::kRouter).size(), 2u) << "of the experts, and the shared one's gate";
  EXPECT_EQ(of_zone(spans, Zone::kGather).size(), 2u);
}

TEST(StageZones, MembersOfAGroupTellOfTheirExchangesWithBytes) {
  const ModelConfig config = tiny_llama();
  const Checkpoint checkpoint = *random_checkpoint(config, {});
  trace::reset();
  TestGroup group(checkpoint, {.assignment = {.first_layer = 0, .last_layer = 2, .embedding = true, .head = true},
                               .slices = {16, 16}});
  trace::set_recording(true);
  ASSERT_TRUE(group.forward(tokens_at(0, 5, config.vocab)));
  trace::set_recording(false);
  const auto spans = trace::drain().spans;
  const auto exchanges = of_zone(spans, Zone::kGroupExchange);
  EXPECT_EQ(exchanges.size(), 2u * (1 + 2 * 2 + 1)) << "of two members: to begin, two a layer, the logits";
  EXPECT_EQ(of_zone(spans, Zone::kReduceSlices).size(), 2u * 2 * 2);
  for (const Span& span : exchanges) EXPECT_GT(span.work.bytes, 0u);
  std::uint64_t flops = 0;
  for (const Span& span : of_zone(spans, Zone::kDown)) flops += span.work.flops;
  EXPECT_EQ(flops, 2u * 2 * 5 * 96 * 64) << "together as much as one process";
}

#endif

TEST(StageZones, OwnersHoldWhatWasPackedAndCachedAndGiveItBack) {
  const ModelConfig config = tiny_llama();
  const Checkpoint checkpoint = *random_checkpoint(config, {});
  const std::uint64_t weights = trace::held(trace::Owner::kWeights);
  const std::uint64_t cache = trace::held(trace::Owner::kKvCache);
  const std::uint64_t activations = trace::held(trace::Owner::kActivations);
  {
    const StageAssignment whole{.first_layer = 0, .last_layer = 2, .embedding = true, .head = true};
    const auto stage =
        Stage::load(checkpoint.config, whole, checkpoint.weights, {.threads = 1, .isa = Isa::kReference});
    ASSERT_TRUE(stage);
    const std::uint64_t held = trace::held(trace::Owner::kWeights) - weights;
    EXPECT_LE(held, (*stage)->weight_bytes());
    EXPECT_GT(held, (*stage)->weight_bytes() * 98 / 100) << "all but the vectors";
    Step step = tokens_at(0, 5, config.vocab);
    ASSERT_TRUE((*stage)->forward(step));
    step = {};
    // One page of keys and values of floats, of 2 layers and 2 heads of 16.
    EXPECT_EQ(trace::held(trace::Owner::kKvCache) - cache,
              KvCache::page_bytes({.layers = 2, .kv_heads = 2, .head_dim = 16, .type = DType::kF32}));
    EXPECT_GT(trace::held(trace::Owner::kActivations), activations);
  }
  EXPECT_EQ(trace::held(trace::Owner::kWeights), weights);
  EXPECT_EQ(trace::held(trace::Owner::kKvCache), cache);
  EXPECT_EQ(trace::held(trace::Owner::kActivations), activations);
}

}  // namespace
}  // namespace butterfly
