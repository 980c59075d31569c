// Tiny models of many families, as transformers writes them, against the gradients of transformers' own classes
// (tools/make_family_gradients.py says what the file has).
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "butterfly/base/json.h"
#include "butterfly/kernel/training/training_dispatch.h"
#include "butterfly/model/core/parameter_weights.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/model/training/training_model_test.h"

namespace butterfly {
namespace {

constexpr std::size_t kSketches = 4;
using Sketch = std::array<double, kSketches>;

const nlohmann::json& golden_gradients() {
  static const nlohmann::json json = parse_json(read_file(BUTTERFLY_SOURCE_DIR "/tests/golden/training_families.json"));
  return json;
}

std::vector<std::string> golden_families() {
  std::vector<std::string> names;
  for (const auto& [name, content] : golden_gradients()["models"].items()) names.push_back(name);
  return names;
}

/// Inner products with vectors of random signs.
Sketch sketch_of(std::span<const float> gradient) {
  Sketch sketch{};
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    for (std::size_t k = 0; k < kSketches; ++k) sketch[k] += (z >> k & 1) != 0 ? gradient[i] : -gradient[i];
  }
  return sketch;
}

class FamilyGradients : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto checkpoint =
        open_checkpoint(BUTTERFLY_SOURCE_DIR "/tests/golden/families/" + GetParam(), {.vocabulary_required = false});
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    checkpoint_ = std::move(*checkpoint);
  }

  std::unique_ptr<TrainableTransformer> make(Isa isa, const Fusion& fusion) const {
    auto made = TrainableTransformer::create(checkpoint_->config, {.fusion = fusion,
                                                                   .micro_batch = golden_gradients()["batch"],
                                                                   .seq = golden_gradients()["seq"],
                                                                   .threads = 2,
                                                                   .isa = isa,
                                                                   .router_aux_loss = aux()});
    EXPECT_TRUE(made) << made.error().message;
    if (!made) return nullptr;
    EXPECT_TRUE(load_weights(*checkpoint_->weights, (*made)->parameters()));
    (*made)->weights_changed();
    return std::move(*made);
  }

  /// The tokens of the script.
  TransformerInput input() const {
    TransformerInput input;
    const int batch = golden_gradients()["batch"], seq = golden_gradients()["seq"];
    const auto token = [&](int b, int i) { return TokenId((7 * i * i + 3 * i + 5 * b) % checkpoint_->config.vocab); };
    for (int b = 0; b < batch; ++b) {
      for (int i = 0; i < seq; ++i) {
        input.tokens.push_back(token(b, i));
        input.targets.push_back(token(b, i + 1));
      }
    }
    return input;
  }

  const nlohmann::json& expected() const { return golden_gradients()["models"][GetParam()]; }
  /// transformers has no load-balance loss for routers with a bias of their choice.
  double aux() const { return checkpoint_->config.moe.choice_bias ? 0.0 : golden_gradients()["aux"].get<double>(); }

  std::optional<Checkpoint> checkpoint_;
};

/// Of all parameters; the lengths of gradients that are nothing but rounding are measured by the largest.
double largest_length(const nlohmann::json& gradients) {
  double largest = 0.0;
  for (const auto& [name, numbers] : gradients.items()) largest = std::max(largest, numbers[0].get<double>());
  return largest;
}

void expect_gradients(const ParameterSet& parameters, const nlohmann::json& gradients) {
  const double largest = largest_length(gradients);
  std::size_t compared = 0;
  for (const Parameter& parameter : parameters.list()) {
    if (parameter.frozen) continue;
    ASSERT_TRUE(gradients.contains(parameter.name)) << parameter.name;
    const nlohmann::json& numbers = gradients[parameter.name];
    const Sketch sketch = sketch_of(ParameterSet::part(parameters.gradients(), parameter));
    double squares = 0.0;
    for (std::size_t k = 0; k < kSketches; ++k) {
      squares += std::pow(sketch[k] - numbers[k + 1].get<double>(), 2) / kSketches;
    }
    const double length = std::max(numbers[0].get<double>(), 1e-2 * largest);
    EXPECT_LT(std::sqrt(squares), 1e-5 * length) << parameter.name;
    ++compared;
  }
  EXPECT_EQ(compared, gradients.size());
}

TEST_P(FamilyGradients, AreThoseOfTransformersForEveryParameter) {
  const TransformerInput input = this->input();
  const float scale = 1.0f / static_cast<float>(input.targets.size());
  for (const Isa isa : supported_isas()) {
    for (const char* fusion : {"all", "none"}) {
      SCOPED_TRACE(std::string(to_string(isa)) + " " + fusion);
      const auto transformer = make(isa, *parse_fusion(fusion));
      ASSERT_TRUE(transformer);
      const double loss = *transformer->forward(input.tokens, input.targets) * static_cast<double>(scale);
      EXPECT_NEAR(loss, expected()["loss"], 2e-6 * loss);
      if (aux() > 0) {
        const double balance = expected()["balance_loss"];
        EXPECT_NEAR(transformer->router_report().balance_loss, balance, 2e-6 * balance);
      }
      ASSERT_TRUE(transformer->backward(scale, {}));
      expect_gradients(transformer->parameters(), expected()["gradients"]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyGradients, testing::ValuesIn(golden_families()),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace butterfly
