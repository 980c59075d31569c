// A tensor group gives the bits of one process: any number of members, any division of the slices, any family of model.
#include <gtest/gtest.h>

#include <cstring>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/base/units.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/stage/run_stage.h"
#include "butterfly/stage/test_group_test.h"
#include "butterfly/wire/channel/inproc.h"

namespace butterfly {
namespace {

ModelConfig llama() {
  ModelConfig c = *named_config("llama-1.1b");
  c.layers = 2;
  c.model_dim = 128;
  c.heads = 16;
  c.kv_heads = 4;
  c.head_dim = 32;
  c.ff_dim = 736;  // 12 units over 32 slices: uneven, and the last is cut
  c.vocab = 521;   // over 32 slices of whole panels: uneven, and the last panel is cut
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

/// Heads of 8: an attention unit is a group of 8 heads, of which there are 2; most slices are empty.
ModelConfig few_slices() {
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

/// Groups of 3 heads for a key/value head: borders of slices lie inside of them.
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

/// Norms before and after, of each head, windows, two ropes, scales and caps.
ModelConfig gemma() {
  ModelConfig c = llama();
  c.norm_place = NormPlace::kBoth;
  c.activation = Activation::kGeluTanh;
  c.qk_norm = QkNorm::kHead;
  c.windows = {40, 0};
  c.ropes = {kLocalRope, kMainRope};
  c.local_rope = c.rope;
  c.local_rope.base = 500.0f;
  c.embedding_scale = 11.3f;
  c.residual_scale = 0.7f;
  c.attention_scale = 0.2f;
  c.attention_cap = 5.0f;
  c.logit_scale = 0.5f;
  c.logit_cap = 3.0f;
  return c;
}

/// A norm over all queries, of which a member has some alone.
ModelConfig full_width_norms() {
  ModelConfig c = llama();
  c.norm_place = NormPlace::kOutput;
  c.qk_norm = QkNorm::kWidth;
  return c;
}

/// A parallel block with slopes instead of positions and a bias of the head.
ModelConfig parallel() {
  ModelConfig c = odd_groups();
  c.norm = NormKind::kLayer;
  c.activation = Activation::kGeluErf;
  c.mlp = MlpKind::kPlain;
  c.position = PositionKind::kAlibi;
  c.rope = {};
  c.parallel_block = c.shared_norm = c.head_bias = true;
  return c;
}

struct Family {
  const char* name;
  ModelConfig (*config)();
};
constexpr Family kFamilies[] = {
    {"llama", llama},           {"many_heads", many_heads}, {"one_kv_head", one_kv_head},
    {"few_slices", few_slices}, {"odd_groups", odd_groups}, {"gpt2", gpt2},
    {"norm_after", norm_after}, {"gemma", gemma},           {"full_width_norms", full_width_norms},
    {"parallel", parallel}};

// Under a sanitizer the arithmetic is not the question and takes many times as long: a corner of the matrix will do.

const std::vector<std::vector<int>> kDivisions = {
    {16, 16}, {11, 10, 11}, {1, 9, 22}, {4, 7, 5, 12, 4}, {5, 4, 5, 4, 5, 4, 5}, {3, 2, 3, 3, 2, 3, 3, 2, 3, 3, 2, 3}};

Tensor tokens(const std::vector<std::int32_t>& values) {
  Tensor tensor = *Tensor::allocate(*Pool::shared(), DType::kI32, {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.mutable_view().bytes().data(), values.data(), values.size() * 4);
  return tensor;
}

/// Two texts in chunks of several sizes, decode of one beside the prefill of the other, a release in between. Chunks
/// of 90 rows have sums beyond what goes to everybody; the shorter ones are below.
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
  add({{0, 90}});
  add({{0, 1}});
  add({{0, 1}, {1, 7}});
  add({{1, 1}, {0, 32}});
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
  for (const int slices : division) text += fmt::format("{} ", slices);
  return text;
}

class DistTensorGroup : public testing::TestWithParam<std::tuple<Family, DType>> {
 protected:
  static StageAssignment whole(const ModelConfig& config) {
    return {.first_layer = 0, .last_layer = config.layers, .embedding = true, .head = true};
  }
};

TEST_P(DistTensorGroup, LogitsHaveTheBitsOfOneProcessForEveryDivisionOfSlices) {
  const auto& [family, type] = GetParam();
  const Checkpoint checkpoint = *random_checkpoint(family.config(), {.seed = 5, .type = type});
  const std::vector<Step> steps = script(checkpoint.config);
  TestGroup one(checkpoint, {.assignment = whole(checkpoint.config), .slices = {kReductionSlices}});
  const auto expected = answer(one, steps);
  ASSERT_TRUE(expected) << expected.error().message;
  int threads = 1;
  for (const auto& division : kDivisions) {
    if (kSanitized ? division.size() != 3 : division.size() > 5 && type != DType::kF32) continue;
    TestGroup group(
        checkpoint,
        {.assignment = whole(checkpoint.config), .slices = division, .isas = supported_isas(), .threads = threads});
    const auto logits = answer(group, steps);
    ASSERT_TRUE(logits) << logits.error().message;
    EXPECT_TRUE(same_bits(*logits, *expected)) << text_of(division) << threads << " threads";
    threads = 3 - threads;
  }
}

class DistTensorGroupStages : public DistTensorGroup {};

TEST_P(DistTensorGroupStages, HiddenStatesBetweenStagesHaveThemToo) {
  const auto& [family, type] = GetParam();
  const Checkpoint checkpoint = *random_checkpoint(family.config(), {.seed = 6, .type = type});
  const std::vector<Step> steps = script(checkpoint.config);
  const StageAssignment first{.first_layer = 0, .last_layer = 1, .embedding = true};
  const StageAssignment second{.first_layer = 1, .last_layer = checkpoint.config.layers};
  TestGroup one(checkpoint, {.assignment = first, .slices = {kReductionSlices}});
  TestGroup next(checkpoint, {.assignment = second, .slices = {kReductionSlices}});
  TestGroup group(checkpoint, {.assignment = first, .slices = {8, 24}, .isas = supported_isas()});
  TestGroup group_next(checkpoint, {.assignment = second, .slices = {20, 12}, .isas = supported_isas(), .threads = 2});
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

TEST(TensorGroupSteps, ACacheThatIsFullAtOneMemberFailsTheStepAtAllAndTheGroupGoesOn) {
  const Checkpoint checkpoint = *random_checkpoint(llama(), {.seed = 7});
  const StageAssignment assignment{.first_layer = 0, .last_layer = 2, .embedding = true, .head = true};
  // A page of the second member's cache, and nothing more.
  const std::uint64_t page =
      KvCache::page_bytes({.layers = 2, .kv_heads = 3, .head_dim = 32, .type = DType::kF32, .bytes_max = 0});
  TestGroup group(checkpoint, {.assignment = assignment, .slices = {12, 20}, .kv_bytes_max = {0, page}});
  TestGroup one(checkpoint, {.assignment = assignment, .slices = {kReductionSlices}});
  const auto step = [&](int sequence, int position, std::vector<SequenceId> release = {}) {
    Step made;
    made.batch.runs = {{SequenceId(sequence), position, 1, 0}};
    made.release = std::move(release);
    made.tensor = tokens({position + sequence});
    return made;
  };
  ASSERT_TRUE(group.forward(step(0, 0)));
  const auto full = group.forward(step(1, 0));
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(full.error().message.substr(0, 70),
            "member 1 of the tensor group: the key/value cache is limited to " + format_bytes(page).substr(0, 6))
      << full.error().message;
  for (const auto& stage : group.stages()) EXPECT_FALSE(stage->broken());
  const auto again = group.forward(step(1, 0, {SequenceId(0)}));
  const auto expected = one.forward(step(1, 0));
  ASSERT_TRUE(again && expected) << again.error().message;
  EXPECT_EQ(std::memcmp(again->tensor.bytes().data(), expected->tensor.bytes().data(), 521 * sizeof(float)), 0);
}

TEST(TensorGroupSteps, WhatNoMemberCanRunIsRefusedWithoutAnExchange) {
  const Checkpoint checkpoint = *random_checkpoint(llama(), {.seed = 7});
  TestGroup group(checkpoint,
                  {.assignment = {.first_layer = 0, .last_layer = 1, .embedding = true}, .slices = {16, 16}});
  Step step;
  step.batch.runs = {{SequenceId(0), 0, 1, 1}};
  step.tensor = tokens({521});
  // One member alone: it would wait for the other for ever.
  const Status refused = group.stages()[1]->forward(step);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "token 521 is outside the vocabulary of 521");
  EXPECT_FALSE(group.stages()[1]->broken());
}

TEST(TensorGroupSteps, AMemberThatIsGoneBreaksTheGroupAndNobodyWaits) {
  const Checkpoint checkpoint = *random_checkpoint(llama(), {.seed = 7});
  TestGroup group(checkpoint,
                  {.assignment = {.first_layer = 0, .last_layer = 1, .embedding = true}, .slices = {12, 12, 8}});
  Step step;
  step.batch.runs = {{SequenceId(0), 0, 1, 1}};
  step.tensor = tokens({5});
  group.exchange()[2].reset();
  std::jthread second([&, step]() mutable { EXPECT_FALSE(group.stages()[1]->forward(step)); });
  const Status failed = group.stages()[0]->forward(step);
  second.join();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(group.stages()[0]->broken() && group.stages()[1]->broken());
}

TEST(TensorGroupSteps, AStageWhoseGroupIsBrokenEndsItsLoopWithoutAnAnswer) {
  const Checkpoint checkpoint = *random_checkpoint(llama(), {.seed = 7});
  TestGroup group(checkpoint,
                  {.assignment = {.first_layer = 0, .last_layer = 1, .embedding = true}, .slices = {16, 16}});
  auto [coordinator, input] = make_inproc_pair();
  auto [output, reader] = make_inproc_pair();
  Step step;
  step.batch.runs = {{SequenceId(0), 0, 1, 1}};
  step.tensor = tokens({5});
  ASSERT_TRUE(coordinator->send(encode_step(std::move(step)), after_ms(1000)));
  group.exchange()[1]->abort();
  EXPECT_TRUE(run_stage(*group.paced()[0], {.input = input.get(), .output = output.get()}, {}));
  output->close();
  const auto answer = reader->receive({}, after_ms(1000));
  ASSERT_FALSE(answer) << "an error here would end a request that the next epoch can answer";
}

TEST(TensorGroupMeeting, MembersWithOtherSlicesOrLayersAreNoGroup) {
  const Checkpoint checkpoint = *random_checkpoint(llama(), {.seed = 7});
  const auto meet = [&](const StageAssignment& first, const StageAssignment& second) {
    auto exchange = make_inproc_exchange(2);
    std::vector<std::unique_ptr<Stage>> stages;
    for (const auto& assignment : {first, second}) {
      stages.push_back(*Stage::load(checkpoint.config, assignment, checkpoint.weights, {}));
    }
    Status other;
    std::jthread thread([&] { other = stages[1]->join(*exchange[1]); });
    const Status met = stages[0]->join(*exchange[0]);
    thread.join();
    EXPECT_FALSE(other);
    return met ? std::string() : met.error().message;
  };
  EXPECT_EQ(
      meet({.first_layer = 0, .last_layer = 1, .slices = {0, 12}},
           {.first_layer = 0, .last_layer = 1, .slices = {16, 32}}),
      "member 1 of the tensor group has slices 16 to 32 and experts' slices 16 to 32, expected them from 12 and 12");
  EXPECT_EQ(meet({.first_layer = 0, .last_layer = 1, .slices = {0, 12}},
                 {.first_layer = 0, .last_layer = 1, .slices = {12, 28}}),
            "the members of the tensor group have slices up to 28 and experts' slices up to 28 of 32");
  EXPECT_EQ(meet({.first_layer = 0, .last_layer = 1, .slices = {0, 12}},
                 {.first_layer = 1, .last_layer = 2, .slices = {12, 32}}),
            "member 1 of the tensor group has layers 1 to 2 (cache type 0), member 0 has 0 to 1 (0)");
}

TEST(TensorGroupMeeting, SlicesThatMetNobodyRunNothing) {
  const Checkpoint checkpoint = *random_checkpoint(llama(), {.seed = 7});
  const auto stage =
      Stage::load(checkpoint.config, {.first_layer = 0, .last_layer = 1, .embedding = true, .slices = {0, 16}},
                  checkpoint.weights, {});
  ASSERT_TRUE(stage);
  Step step;
  step.batch.runs = {{SequenceId(0), 0, 1, 1}};
  step.tensor = tokens({5});
  const Status status = (*stage)->forward(step);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "slices 0 to 16 were given a step before they met the other members");
}

/// Counts what passes through an exchange, and how many bytes the largest message had.
class CountedExchange final : public Exchange {
 public:
  explicit CountedExchange(Exchange& inner) : inner_(&inner) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void abort() override { inner_->abort(); }
  Status exchange(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) override {
    ++count;
    for (const ByteSpan one : to) bytes_max = std::max(bytes_max, one.size());
    return inner_->exchange(to, from);
  }
  std::atomic<int> count = 0;
  std::size_t bytes_max = 0;

 private:
  Exchange* inner_;
};

TEST(TensorGroupSteps, ADecodeStepTakesTwoExchangesALayerAndOneAtEachEnd) {
  const Checkpoint checkpoint = *random_checkpoint(llama(), {.seed = 7});
  auto exchange = make_inproc_exchange(2);
  CountedExchange counted[] = {CountedExchange(*exchange[0]), CountedExchange(*exchange[1])};
  std::vector<std::unique_ptr<Stage>> stages;
  for (const SliceRange& slices : {SliceRange{0, 16}, SliceRange{16, 32}}) {
    stages.push_back(*Stage::load(
        checkpoint.config, {.first_layer = 0, .last_layer = 2, .embedding = true, .head = true, .slices = slices},
        checkpoint.weights, {}));
  }
  const auto member = [&](std::size_t i) {
    EXPECT_TRUE(stages[i]->join(counted[i]));
    counted[i].count = 0;
    Step step;
    step.batch.runs = {{SequenceId(0), 0, 1, 0}};
    step.tensor = tokens({5});
    EXPECT_TRUE(stages[i]->forward(step));
    EXPECT_EQ(counted[i].count, 1 + 2 * 2 + 1);
    counted[i].count = 0;
    step = {};
    step.batch.runs = {{SequenceId(0), 1, 200, 200}};
    step.tensor = tokens(std::vector<std::int32_t>(200, 3));
    EXPECT_TRUE(stages[i]->forward(step));
    EXPECT_EQ(counted[i].count, 1 + 2 * 4) << "many rows: to their owners and back; no logits asked for";
  };
  std::jthread other(member, 1);
  member(0);
}

TEST(TensorGroupMeasurement, MovesTheSumsOfStepsAndLeavesNothingBehind) {
  const Checkpoint checkpoint = *random_checkpoint(llama(), {.seed = 7});
  const StageAssignment whole{.first_layer = 0, .last_layer = 2, .embedding = true, .head = true};
  TestGroup one(checkpoint, {.assignment = whole, .slices = {32}});
  TestGroup group(checkpoint, {.assignment = whole, .slices = {12, 20}});
  const std::uint64_t memory_bytes = group.stages()[1]->memory_bytes();
  ExchangeTimes times[2];
  group.on_members([&](std::size_t i) {
    const auto measured = group.paced()[i]->measure_exchanges();
    ASSERT_TRUE(measured) << measured.error().message;
    times[i] = *measured;
  });
  EXPECT_EQ(times[0], times[1]);
  EXPECT_EQ(times[0].many_rows, 64);
  EXPECT_GT(group.stages()[1]->memory_bytes(), memory_bytes) << "it did work";
  Step step;
  step.batch.runs = {{SequenceId(0), 0, 3, 2}};
  step.tensor = tokens({5, 6, 7});
  Step same = step;
  const auto got = group.forward(step);
  const auto expected = one.forward(same);
  ASSERT_TRUE(got && expected) << got.error().message;
  EXPECT_EQ(std::memcmp(got->tensor.bytes().data(), expected->tensor.bytes().data(), 521 * sizeof(float)), 0);
}

TEST(TensorGroupMeasurement, SendsWhatOneRowAndManyRowsSend) {
  ModelConfig config = llama();
  config.model_dim = 1024;
  const Checkpoint checkpoint = *random_checkpoint(config, {.seed = 7});
  auto exchange = make_inproc_exchange(2);
  CountedExchange counted[] = {CountedExchange(*exchange[0]), CountedExchange(*exchange[1])};
  const auto member = [&](std::size_t i) {
    const SliceRange slices = i == 0 ? SliceRange{0, 16} : SliceRange{16, 32};
    PacedStage stage(*Stage::load(checkpoint.config, {.first_layer = 0, .last_layer = 1, .slices = slices},
                                  checkpoint.weights, {.isa = supported_isas().back()}),
                     {});
    EXPECT_TRUE(stage.join(counted[i]));
    EXPECT_TRUE(stage.measure_exchanges());
    EXPECT_EQ(counted[i].bytes_max, 32u * 1024 * sizeof(float)) << "half of 64 rows goes to its owner";
    EXPECT_GT(counted[i].count, 2 * 2 + 4 * 2);
  };
  std::jthread other(member, 1);
  member(0);
}

TEST(TensorGroupMeasurement, AMemberThatIsGoneBreaksTheGroupAndNobodyWaits) {
  const Checkpoint checkpoint = *random_checkpoint(llama(), {.seed = 7});
  TestGroup group(checkpoint, {.assignment = {.first_layer = 0, .last_layer = 1}, .slices = {12, 12, 8}});
  group.exchange()[2].reset();
  std::jthread second([&] { EXPECT_FALSE(group.paced()[1]->measure_exchanges()); });
  const auto measured = group.paced()[0]->measure_exchanges();
  second.join();
  ASSERT_FALSE(measured);
  EXPECT_EQ(measured.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(group.stages()[0]->broken() && group.stages()[1]->broken());
}

TEST(TensorGroupMeasurement, ACacheWithoutRoomAtOneMemberLeavesTheTimesUnknown) {
  const Checkpoint checkpoint = *random_checkpoint(llama(), {.seed = 7});
  TestGroup group(checkpoint,
                  {.assignment = {.first_layer = 0, .last_layer = 1}, .slices = {16, 16}, .kv_bytes_max = {0, 1}});
  group.on_members([&](std::size_t i) {
    const auto measured = group.paced()[i]->measure_exchanges();
    ASSERT_TRUE(measured) << measured.error().message;
    EXPECT_FALSE(measured->measured());
    EXPECT_FALSE(group.stages()[i]->broken());
  });
}

std::string name_of(const testing::TestParamInfo<DistTensorGroup::ParamType>& parameter) {
  return fmt::format("{}_{}", std::get<0>(parameter.param).name, to_string(std::get<1>(parameter.param)));
}

INSTANTIATE_TEST_SUITE_P(Families, DistTensorGroup,
                         testing::Combine(testing::ValuesIn(kFamilies),
                                          testing::Values(DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Families, DistTensorGroupStages,
                         testing::Combine(testing::ValuesIn(kFamilies), testing::Values(DType::kF32, DType::kQ4_0)),
                         name_of);

}  // namespace
}  // namespace butterfly
