// Two tiny models or more of every family as `transformers` writes them, against its logits (make_family_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/request/perplexity.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/format/convert.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/model/format/weight_error.h"
#include "golden_data.h"

namespace butterfly {
namespace {

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden::model("families"))) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

Result<Checkpoint> open_family(const std::string& name) {
  return open_checkpoint(golden::model("families/" + name), {.vocabulary_required = false});
}

/// The prompt of the script.
std::vector<std::int32_t> prompt(std::size_t tokens, int vocab) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<std::int32_t>((7 * i * i + 3 * i) % static_cast<std::size_t>(vocab)));
  }
  return ids;
}

/// logits[tokens, vocab] after each token, given in chunks of that size.
std::vector<float> logits_of(const Checkpoint& checkpoint, const std::vector<std::int32_t>& ids, std::size_t chunk,
                             const DeploymentConfig& config = {}) {
  auto deployment = Deployment::create(checkpoint, config);
  EXPECT_TRUE(deployment) << (deployment ? "" : deployment.error().message);
  if (!deployment) return {};
  std::vector<float> logits;
  for (std::size_t at = 0; at < ids.size(); at += chunk) {
    const auto rows = static_cast<std::int32_t>(std::min(chunk, ids.size() - at));
    Step step;
    step.batch.runs = {{SequenceId(0), static_cast<std::int32_t>(at), rows, 0}};
    step.tensor = *Tensor::allocate(*Pool::shared(), DType::kI32, {rows});
    std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(at), rows,
                step.tensor.mutable_view().values<std::int32_t>().begin());
    EXPECT_TRUE((*deployment)->pipeline().submit(std::move(step)));
    const auto done = (*deployment)->pipeline().next();
    EXPECT_TRUE(done) << (done ? "" : done.error().message);
    if (!done) return {};
    const auto values = done->tensor.view().values();
    logits.insert(logits.end(), values.begin(), values.end());
  }
  return logits;
}

float largest(const std::vector<float>& values) {
  float most = 0;
  for (float value : values) most = std::max(most, std::fabs(value));
  return most;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]));
  return worst;
}

class GoldenFamily : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto opened = open_family(GetParam());
    ASSERT_TRUE(opened) << opened.error().message;
    checkpoint_ = std::move(*opened);
    expected_ = golden::read_floats(golden::model("families/" + GetParam() + "/logits.f32"));
    ids_ = prompt(expected_.size() / static_cast<std::size_t>(checkpoint_.config.vocab), checkpoint_.config.vocab);
  }
  Checkpoint checkpoint_;
  std::vector<float> expected_;
  std::vector<std::int32_t> ids_;
};

TEST_P(GoldenFamily, LogitsAreThoseOfPyTorch) {
  // PyTorch's numbers are fp32 throughout, whatever the weights are stored as.
  const std::vector<float> logits = logits_of(checkpoint_, ids_, ids_.size(), {.compute = {.kv_type = DType::kF32}});
  ASSERT_EQ(logits.size(), expected_.size());
  const float relative = largest_difference(logits, expected_) / largest(expected_);
  // What MXFP4 weights are multiplied with is rounded to int8.
  EXPECT_LE(relative, GetParam().ends_with("_mxfp4") ? 2e-2f : 1e-4f);
  std::printf("%s: largest difference %.2g of the largest logit\n", GetParam().c_str(), static_cast<double>(relative));
}

TEST_P(GoldenFamily, ChunksInstructionSetsAndThreadsGiveTheSameBits) {
  const std::vector<float> whole = logits_of(checkpoint_, ids_, ids_.size());
  for (const Isa isa : supported_isas()) {
    for (const std::size_t chunk : {1, 7}) {
      const auto logits = logits_of(checkpoint_, ids_, chunk, {.compute = {.threads = 2, .isas = {isa}}});
      ASSERT_EQ(logits.size(), whole.size());
      EXPECT_EQ(std::memcmp(logits.data(), whole.data(), whole.size() * sizeof(float)), 0)
          << to_string(isa) << " " << chunk;
    }
  }
}

TEST_P(GoldenFamily, TwoNodesGiveTheBitsOfOne) {
  if (checkpoint_.config.layers < 2) GTEST_SKIP() << "one layer";
  const std::vector<float> whole = logits_of(checkpoint_, ids_, ids_.size());
  const std::vector<float> split = logits_of(checkpoint_, ids_, 11, {.nodes = 2});
  ASSERT_EQ(split.size(), whole.size());
  EXPECT_EQ(std::memcmp(split.data(), whole.data(), whole.size() * sizeof(float)), 0);
}

/// What a GGUF file of that architecture cannot say is refused; everything else comes back with every bit.
TEST_P(GoldenFamily, AGgufFileOfItGivesTheSameBits) {
  const std::string path = testing::TempDir() + "family_" + GetParam() + ".gguf";
  const auto report = convert(checkpoint_, path, {});
  const bool refused = GetParam() == "gemma2_scaled" || GetParam() == "qwen2_window" || GetParam() == "qwen2_moe_dense";
  ASSERT_EQ(report.has_value(), !refused) << (report ? "" : report.error().message);
  if (refused) {
    EXPECT_NE(report.error().message.find("cannot have"), std::string::npos) << report.error().message;
    return;
  }
  const auto file = open_checkpoint(path, {.vocabulary_required = false});
  std::filesystem::remove(path);
  ASSERT_TRUE(file) << file.error().message;
  const std::vector<float> expected = logits_of(checkpoint_, ids_, ids_.size());
  const std::vector<float> logits = logits_of(*file, ids_, ids_.size());
  ASSERT_EQ(logits.size(), expected.size());
  EXPECT_EQ(std::memcmp(logits.data(), expected.data(), expected.size() * sizeof(float)), 0);
}

/// Types of blocks of 256 and of 32 in one file, the embedding's another than the blocks'.
TEST(GoldenMix, AFileOfMixedTypesGivesTheSameBitsHoweverItRuns) {
  const std::string path = testing::TempDir() + "family_mix.gguf";
  const Checkpoint random = *random_checkpoint(*named_config("butterfly-demo"), {.seed = 5, .type = DType::kF32});
  for (const TypeMix mix : {TypeMix::kQ4KM, TypeMix::kQ5KM}) {
    const auto report = convert(random, path, {.mix = mix});
    ASSERT_TRUE(report) << report.error().message;
    const auto file = open_checkpoint(path);
    ASSERT_TRUE(file) << file.error().message;
    const auto ids = prompt(24, file->config.vocab);
    const std::vector<float> whole = logits_of(*file, ids, ids.size());
    const std::vector<float> exact = logits_of(random, ids, ids.size());
    const float error = largest_difference(whole, exact) / largest(exact);
    EXPECT_LT(error, 0.4f);  // random weights amplify what rounding does
    EXPECT_GT(error, 0.0f);
    const auto same = [&](const std::vector<float>& logits) {
      return logits.size() == whole.size() && std::memcmp(logits.data(), whole.data(), whole.size() * 4) == 0;
    };
    for (const Isa isa : supported_isas()) {
      if (isa == Isa::kReference) continue;  // slow here; the parity tests hold each type against it
      EXPECT_TRUE(same(logits_of(*file, ids, 5, {.compute = {.threads = 2, .isas = {isa}}}))) << to_string(isa);
    }
    EXPECT_TRUE(same(logits_of(*file, ids, 24, {.nodes = 3})));
  }
  std::filesystem::remove(path);
}

/// What `inspect --quality` prints.
TEST(GoldenMix, TheFinerMixIsCloserInItsWeightsAndInWhatItPredicts) {
  const std::string path = testing::TempDir() + "family_quality.gguf";
  const Checkpoint exact = *random_checkpoint(*named_config("butterfly-demo"), {.seed = 5, .type = DType::kF32});
  const auto ids = prompt(30, exact.config.vocab);
  const std::vector<TokenId> tokens(ids.begin(), ids.end());
  const auto pipeline_of = [](const Checkpoint& checkpoint) { return Deployment::create(checkpoint, {}).value(); };
  PerplexityOptions windows;
  windows.window = 16;
  const auto reference = pipeline_of(exact);
  const auto same = pipeline_of(exact);
  const auto none = divergence(same->pipeline(), reference->pipeline(), tokens, windows);
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_EQ(none->mean, 0.0);
  EXPECT_EQ(none->same_choice, 1.0);
  EXPECT_EQ(none->predicted, 28u) << "two windows, the first token of each is given";
  std::vector<double> of_weights, of_text;
  for (const TypeMix mix : {TypeMix::kQ4KM, TypeMix::kQ5KM}) {
    ASSERT_TRUE(convert(exact, path, {.mix = mix}));
    const auto file = open_checkpoint(path);
    ASSERT_TRUE(file) << file.error().message;
    const auto errors = weight_errors(*file, exact);
    ASSERT_TRUE(errors) << errors.error().message;
    const auto found = std::ranges::find(*errors, "blk.2.attn_q.weight", &WeightError::name);
    ASSERT_NE(found, errors->end());
    EXPECT_EQ(found->type, main_type(mix));
    of_weights.push_back(found->relative);
    const auto judged = pipeline_of(*file);
    const auto text = divergence(judged->pipeline(), reference->pipeline(), tokens, windows);
    ASSERT_TRUE(text) << text.error().message;
    of_text.push_back(text->mean);
  }
  std::filesystem::remove(path);
  EXPECT_GT(of_weights[1], 0.0);
  EXPECT_LT(of_weights[1], 0.7 * of_weights[0]);
  EXPECT_LT(of_weights[0], 0.1);
  EXPECT_GT(of_text[1], 0.0);
  EXPECT_LT(of_text[1], of_text[0]);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenFamily, testing::ValuesIn(families()),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace butterfly
