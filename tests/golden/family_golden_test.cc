// Tiny models of every family as `transformers` writes them, against its logits (tools/make_family_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/model/format/convert.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "golden_data.h"

namespace butterfly {
namespace {

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden::committed("families"))) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

Result<Checkpoint> open_family(const std::string& name) {
  return open_checkpoint(golden::committed("families/" + name), {.vocabulary_required = false});
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
                             const DeploymentOptions& options = {}) {
  auto deployment = Deployment::create(checkpoint, options);
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
    expected_ = golden::read_floats(golden::committed("families/" + GetParam() + "/logits.f32"));
    ids_ = prompt(expected_.size() / static_cast<std::size_t>(checkpoint_.config.vocab), checkpoint_.config.vocab);
  }
  Checkpoint checkpoint_;
  std::vector<float> expected_;
  std::vector<std::int32_t> ids_;
};

TEST_P(GoldenFamily, LogitsAreThoseOfPyTorch) {
  const std::vector<float> logits = logits_of(checkpoint_, ids_, ids_.size());
  ASSERT_EQ(logits.size(), expected_.size());
  const float relative = largest_difference(logits, expected_) / largest(expected_);
  EXPECT_LE(relative, 1e-4f);
  std::printf("%s: largest difference %.2g of the largest logit\n", GetParam().c_str(), static_cast<double>(relative));
}

TEST_P(GoldenFamily, ChunksInstructionSetsAndThreadsGiveTheSameBits) {
  const std::vector<float> whole = logits_of(checkpoint_, ids_, ids_.size());
  for (const Isa isa : supported_isas()) {
    for (const std::size_t chunk : {1, 7}) {
      const auto logits = logits_of(checkpoint_, ids_, chunk, {.threads = 2, .isas = {isa}});
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
  const bool refused = GetParam() == "llama_yarn" || GetParam() == "gemma2_scaled" || GetParam() == "qwen2_window" ||
                       GetParam() == "qwen2_moe_dense";
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

INSTANTIATE_TEST_SUITE_P(All, GoldenFamily, testing::ValuesIn(families()),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace butterfly
