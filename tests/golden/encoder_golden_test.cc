// Tiny encoders, and encoders with decoders, as `transformers` writes them, against what PyTorch makes of a text
// (make_encoder_golden.py); and that what they give depends on nothing but model and text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/request/text_batches.h"
#include "butterfly/infer/scheduler/schedule.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/format/convert.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/stage/test_group_test.h"
#include "golden_data.h"

namespace butterfly {
namespace {

using Floats = std::vector<float>;

std::vector<std::string> encoders() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden::model("encoders"))) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

/// As the script makes texts.
std::vector<TokenId> text(std::size_t tokens, int vocab, int a, int b) {
  std::vector<TokenId> ids;
  for (int i = 0; i < static_cast<int>(tokens); ++i) ids.emplace_back(2 + (a * i * i + b * i) % (vocab - 2));
  return ids;
}

std::unique_ptr<Deployment> deploy(const Checkpoint& checkpoint, const DeploymentConfig& config) {
  auto deployment = Deployment::create(checkpoint, config);
  EXPECT_TRUE(deployment) << (deployment ? "" : deployment.error().message);
  return deployment ? std::move(*deployment) : nullptr;
}

/// What comes of each text, whole.
std::vector<Floats> encode(Pipeline& pipeline, const Checkpoint& checkpoint, const std::vector<WholeText>& texts,
                           int rows_max = 2048) {
  std::vector<Floats> results(texts.size());
  const TextBatchOptions options{.rows_max = rows_max, .context = checkpoint.config.context};
  const Status status = run_texts(pipeline, texts, options, [&](std::size_t index, std::span<const float> rows) {
    results[index].assign(rows.begin(), rows.end());
    return Status();
  });
  EXPECT_TRUE(status) << (status ? "" : status.error().message);
  return results;
}

Floats encode(const Checkpoint& checkpoint, const std::vector<TokenId>& tokens, const DeploymentConfig& config = {}) {
  const auto deployment = deploy(checkpoint, config);
  return deployment ? encode(deployment->pipeline(), checkpoint, {{.tokens = tokens}}).front() : Floats();
}

Step step_of(const std::vector<TokenId>& tokens, const SequenceRun& run, BatchKind kind) {
  Step step;
  step.batch = {.runs = {run}, .kind = kind};
  step.tensor = *Tensor::allocate(*Pool::shared(), DType::kI32, {static_cast<std::int64_t>(tokens.size())});
  std::ranges::transform(tokens, step.tensor.mutable_view().values<std::int32_t>().begin(), &TokenId::value);
  return step;
}

/// Steps that encode a text and then give a decoder its tokens in chunks.
std::vector<Step> decoding_steps(const std::vector<TokenId>& encoded, const std::vector<TokenId>& decoded,
                                 std::size_t chunk) {
  const auto rows = static_cast<std::int32_t>(encoded.size());
  std::vector<Step> steps{
      step_of(encoded, {.sequence = SequenceId(0), .rows = rows, .logits_from = rows}, BatchKind::kEncode)};
  for (std::size_t at = 0; at < decoded.size(); at += chunk) {
    const std::size_t count = std::min(chunk, decoded.size() - at);
    const auto first = decoded.begin() + static_cast<std::ptrdiff_t>(at);
    steps.push_back(step_of({first, first + static_cast<std::ptrdiff_t>(count)},
                            {.sequence = SequenceId(0),
                             .position = static_cast<std::int32_t>(at),
                             .rows = static_cast<std::int32_t>(count),
                             .encoder_rows = rows},
                            BatchKind::kContinue));
    steps.back().id = steps.size() - 1;
  }
  return steps;
}

Floats decode(const Checkpoint& checkpoint, const std::vector<TokenId>& encoded, const std::vector<TokenId>& decoded,
              std::size_t chunk, const DeploymentConfig& config = {}) {
  const auto deployment = deploy(checkpoint, config);
  Floats logits;
  for (Step& step : decoding_steps(encoded, decoded, chunk)) {
    EXPECT_TRUE(deployment->pipeline().submit(std::move(step)));
    const auto done = deployment->pipeline().next();
    EXPECT_TRUE(done) << (done ? "" : done.error().message);
    if (!done || done->batch.logit_rows() == 0) continue;
    const auto values = done->tensor.view().values();
    logits.insert(logits.end(), values.begin(), values.end());
  }
  return logits;
}

float relative_difference(const Floats& a, const Floats& b) {
  float worst = 0;
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(a[i] - b[i]));
    largest = std::max(largest, std::fabs(b[i]));
  }
  return worst / largest;
}

bool equal_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class GoldenEncoder : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto opened = open_checkpoint(golden::model("encoders/" + GetParam()), {.vocabulary_required = false});
    ASSERT_TRUE(opened) << opened.error().message;
    checkpoint_ = std::move(*opened);
    expected_ = file("hidden.f32");
    const ModelConfig& config = checkpoint_.config;
    tokens_ = text(expected_.size() / static_cast<std::size_t>(config.model_dim), config.vocab, 7, 3);
    logits_ = file("logits.f32");
    if (!config.has_decoder()) return;
    decoded_ = text(logits_.size() / static_cast<std::size_t>(config.vocab) - 1, config.vocab, 5, 1);
    decoded_.insert(decoded_.begin(), TokenId{config.decoder_start});
  }
  std::string path(const char* name) const { return golden::model("encoders/" + GetParam() + "/" + name); }
  Floats file(const char* name) const {
    return std::filesystem::exists(path(name)) ? golden::read_floats(path(name)) : Floats();
  }
  Checkpoint hidden() const {
    Checkpoint checkpoint = checkpoint_;
    checkpoint.config.output = OutputKind::kHidden;
    return checkpoint;
  }
  /// Hidden rows of an encoder; of one with a decoder the decoder's logits, in chunks.
  Floats answer(const DeploymentConfig& config, std::size_t chunk = 1000) const {
    if (checkpoint_.config.has_decoder()) return decode(checkpoint_, tokens_, decoded_, chunk, config);
    return encode(hidden(), tokens_, config);
  }

  Checkpoint checkpoint_;
  Floats expected_, logits_;
  std::vector<TokenId> tokens_, decoded_;
};

TEST_P(GoldenEncoder, HiddenRowsAreThoseOfPyTorch) {
  Checkpoint checkpoint = hidden();
  // The encoder alone of a model with a decoder: its last norm is then the model's.
  if (checkpoint.config.has_decoder()) GTEST_SKIP() << "seen through the decoder";
  const Floats rows = encode(checkpoint, tokens_);
  ASSERT_EQ(rows.size(), expected_.size());
  const float relative = relative_difference(rows, expected_);
  EXPECT_LE(relative, 1e-5f);
  std::printf("%s: largest difference %.2g of the largest element\n", GetParam().c_str(),
              static_cast<double>(relative));
}

TEST_P(GoldenEncoder, LogitsAreThoseOfPyTorch) {
  EXPECT_EQ(checkpoint_.config.output, logits_.empty() ? OutputKind::kHidden : OutputKind::kLogits)
      << "whether there is a head is seen from the files";
  if (logits_.empty()) return;
  const Floats logits = checkpoint_.config.has_decoder() ? decode(checkpoint_, tokens_, decoded_, decoded_.size())
                                                         : encode(checkpoint_, tokens_);
  ASSERT_EQ(logits.size(), logits_.size());
  const float relative = relative_difference(logits, logits_);
  EXPECT_LE(relative, 1e-5f);
  std::printf("%s: largest difference %.2g of the largest logit\n", GetParam().c_str(), static_cast<double>(relative));
}

TEST_P(GoldenEncoder, TheLikeliestTokensAreThoseOfPyTorch) {
  if (!checkpoint_.config.has_decoder()) GTEST_SKIP() << "no decoder";
  const auto deployment = deploy(checkpoint_, {});
  const auto expected = golden::read_numbers(path("greedy.txt"));
  Schedule schedule({.rows_max = 7, .depth = 1});
  const SequenceId sequence = schedule.add({TokenId{checkpoint_.config.decoder_start}}, tokens_);
  std::vector<std::int32_t> greedy;
  while (greedy.size() < expected.size()) {
    auto step = schedule.next_step();
    ASSERT_TRUE(step && *step);
    ASSERT_TRUE(deployment->pipeline().submit(std::move(**step)));
    const auto done = deployment->pipeline().next();
    ASSERT_TRUE(done) << done.error().message;
    schedule.completed(*done);
    if (done->batch.logit_rows() == 0) continue;
    const auto logits = done->tensor.view().values();
    greedy.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    schedule.append(sequence, TokenId{greedy.back()});
  }
  EXPECT_EQ(greedy, expected);
}

TEST_P(GoldenEncoder, InstructionSetsThreadsAndChunksGiveTheSameBits) {
  const Floats whole = answer({});
  for (const Isa isa : supported_isas()) {
    for (const std::size_t chunk : {1, 3}) {
      EXPECT_TRUE(equal_bits(answer({.compute = {.threads = 2, .isas = {isa}}}, chunk), whole))
          << to_string(isa) << " chunks of " << chunk;
    }
  }
}

TEST_P(GoldenEncoder, NodesGiveTheBitsOfOne) {
  const Floats whole = answer({});
  const auto isas = supported_isas();
  for (int nodes = 2; nodes <= std::min(checkpoint_.config.layers, 4); ++nodes) {
    EXPECT_TRUE(equal_bits(answer({.nodes = nodes, .compute = {.threads = 1, .isas = isas}}, 5), whole)) << nodes;
  }
}

/// The group's members hold parts of heads, MLP and vocabulary, one of them none.
TEST_P(GoldenEncoder, TensorGroupsGiveTheBitsOfOne) {
  const Checkpoint checkpoint = checkpoint_.config.has_decoder() ? checkpoint_ : hidden();
  const Floats whole = answer({.compute = {.kv_type = DType::kF32}});
  const auto isas = supported_isas();
  for (const std::vector<int>& slices : {std::vector{16, 16}, {1, 20, 11}, {5, 9, 1, 17}}) {
    TestGroup group(
        checkpoint,
        {.assignment = {.first_layer = 0, .last_layer = checkpoint.config.layers, .embedding = true, .head = true},
         .slices = slices,
         .isas = isas});
    Floats values;
    std::vector<Step> steps;
    if (checkpoint.config.has_decoder()) {
      steps = decoding_steps(tokens_, decoded_, 6);
    } else {
      steps.push_back(step_of(tokens_, {.sequence = SequenceId(0), .rows = static_cast<std::int32_t>(tokens_.size())},
                              BatchKind::kEncode));
    }
    for (const Step& step : steps) {
      const auto done = group.forward(step);
      ASSERT_TRUE(done) << done.error().message;
      if (done->batch.logit_rows() == 0) continue;
      const auto rows = done->tensor.view().values();
      values.insert(values.end(), rows.begin(), rows.end());
    }
    EXPECT_TRUE(equal_bits(values, whole)) << slices.size() << " members";
  }
}

/// Neighbours of any length, before it and behind it, in one step or several.
TEST_P(GoldenEncoder, WhatSharesAStepChangesNoBit) {
  if (checkpoint_.config.has_decoder()) GTEST_SKIP() << "schedules decide about decoders";
  const Checkpoint checkpoint = hidden();
  const Floats alone = encode(checkpoint, tokens_);
  const int vocab = checkpoint.config.vocab;
  const std::vector<WholeText> texts{{text(50, vocab, 3, 1)}, {tokens_},     {text(1, vocab, 1, 1)},
                                     {text(36, vocab, 2, 5)}, {tokens_, 30}, {text(16, vocab, 4, 2)},
                                     {tokens_, 3, 5}};
  const auto dim = static_cast<std::size_t>(checkpoint.config.model_dim);
  for (const int nodes : {1, 2}) {
    const auto deployment = deploy(checkpoint, {.nodes = nodes});
    for (const int rows_max : {1, 64, 2048}) {
      const auto rows = encode(deployment->pipeline(), checkpoint, texts, rows_max);
      EXPECT_TRUE(equal_bits(rows[1], alone)) << rows_max;
      EXPECT_TRUE(equal_bits(rows[4], Floats(alone.begin() + static_cast<std::ptrdiff_t>(30 * dim), alone.end())));
      EXPECT_TRUE(equal_bits(rows[6], Floats(alone.begin() + static_cast<std::ptrdiff_t>(3 * dim),
                                             alone.begin() + static_cast<std::ptrdiff_t>(5 * dim))));
    }
  }
}

/// What a GGUF file of that architecture cannot say is refused; everything else comes back with every bit.
TEST_P(GoldenEncoder, AGgufFileOfItGivesTheSameBits) {
  const std::string path = testing::TempDir() + "encoder_" + GetParam() + ".gguf";
  const auto report = convert(checkpoint_, path, {});
  const std::vector<std::string> refused{"albert", "bert_base", "bert_legacy", "electra", "mpnet",
                                         "t5",     "flan_t5",   "mt5",         "umt5",    "t5_encoder"};
  const bool refuses = std::ranges::find(refused, GetParam()) != refused.end();
  ASSERT_EQ(report.has_value(), !refuses) << (report ? "" : report.error().message);
  if (refuses) return;
  const auto file = open_checkpoint(path, {.vocabulary_required = false});
  std::filesystem::remove(path);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->config.output, OutputKind::kHidden);
  EXPECT_TRUE(equal_bits(encode(*file, tokens_), encode(hidden(), tokens_)));
}

/// With the distances that such files mean; tied with a scale, and not tied.
TEST(GoldenT5, AGgufFileOfItGivesTheSameBits) {
  for (const bool tied : {true, false}) {
    ModelConfig config = *named_config("t5-small");
    config.layers = 5;
    config.encoder_layers = 2;
    config.model_dim = 64;
    config.heads = config.kv_heads = 4;
    config.head_dim = 24;
    config.ff_dim = 96;
    config.vocab = 300;
    config.context = 4096;
    config.decoder_start = 3;
    config.tied_head = tied;
    config.logit_scale = tied ? 0.125f : 1.0f;
    if (!tied) config.mlp = MlpKind::kGated;
    if (!tied) config.activation = Activation::kGeluTanh;
    const Checkpoint random = *random_checkpoint(config, {.seed = 4, .type = DType::kF32});
    const std::string path = testing::TempDir() + "encoder_t5.gguf";
    const auto report = convert(random, path, {});
    ASSERT_TRUE(report) << report.error().message;
    const auto file = open_checkpoint(path);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->config.decoder_start, 3);
    const auto encoded = text(180, config.vocab, 7, 3);
    const auto decoded = text(20, config.vocab, 5, 1);
    EXPECT_TRUE(equal_bits(decode(*file, encoded, decoded, 7), decode(random, encoded, decoded, 20)));
    EXPECT_TRUE(equal_bits(decode(*file, encoded, decoded, 1, {.nodes = 3}), decode(random, encoded, decoded, 20)));
    std::filesystem::remove(path);
  }
}

/// A T5 of another project, in bf16, against NumPy.
TEST(GoldenT5, AFileOfAnotherProjectGivesItsLogits) {
  const auto path = golden::data("models/chronos-t5-dummy");
  if (!path) GTEST_SKIP() << golden::kNoData;
  const auto checkpoint = open_checkpoint(*path, {.vocabulary_required = false});
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  std::ifstream lines(*path + "/t5dummy_tokens.txt");
  std::vector<std::vector<TokenId>> tokens;
  for (std::string line; std::getline(lines, line);) {
    tokens.emplace_back();
    std::istringstream numbers(line);
    for (int number = 0; numbers >> number;) tokens.back().emplace_back(number);
  }
  ASSERT_EQ(tokens.size(), 2u);
  const Floats expected = golden::read_floats(*path + "/t5dummy_logits_24x32.f32");
  const DeploymentConfig exact{.compute = {.kv_type = DType::kF32}};
  const Floats logits = decode(*checkpoint, tokens[0], tokens[1], 24, exact);
  ASSERT_EQ(logits.size(), expected.size());
  float worst = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) worst = std::max(worst, std::fabs(logits[i] - expected[i]));
  EXPECT_LE(worst, 1e-4f);
  std::printf("chronos-t5-dummy: largest difference %.2g\n", static_cast<double>(worst));
  EXPECT_TRUE(equal_bits(decode(*checkpoint, tokens[0], tokens[1], 1, {.nodes = 2, .compute = exact.compute}), logits));
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenEncoder, testing::ValuesIn(encoders()),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace butterfly
