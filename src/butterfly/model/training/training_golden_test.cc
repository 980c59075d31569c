// Tiny models against PyTorch's autograd and AdamW (tools/make_training_golden.py).
#include <gtest/gtest.h>

#include <cstring>

#include "butterfly/base/json.h"
#include "butterfly/kernel/training/training_dispatch.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/training/training_model_test.h"

namespace butterfly {
namespace {

class TrainingGolden {
 public:
  explicit TrainingGolden(const std::string& name)
      : index_(parse_json(read_file(path(name) + ".json"))), data_(read_file(path(name) + ".bin")) {}

  ModelConfig config() const {
    const nlohmann::json& j = index_["config"];
    ModelConfig c;
    c.architecture = j["architecture"];
    c.layers = j["layers"];
    c.model_dim = j["model_dim"];
    c.heads = j["heads"];
    c.kv_heads = j["kv_heads"];
    c.head_dim = j["head_dim"];
    c.ff_dim = j["ff_dim"];
    c.vocab = j["vocab"];
    c.context = j["context"];
    c.norm = j["norm"] == "rms" ? NormKind::kRms : NormKind::kLayer;
    c.norm_epsilon = j["norm_epsilon"];
    c.mlp = j["mlp"] == "gated" ? MlpKind::kGated : MlpKind::kPlain;
    c.activation = c.mlp == MlpKind::kGated ? Activation::kSilu : Activation::kGeluTanh;
    c.position = j["rope_pairs"] == "none" ? PositionKind::kLearned : PositionKind::kRope;
    c.rope.pairs = j["rope_pairs"] == "halves" ? RopePairs::kHalves : RopePairs::kAdjacent;
    c.rope.base = j["rope_base"];
    c.rope.dim = c.head_dim;
    c.qkv_bias = j["qkv_bias"];
    c.attention_output_bias = c.mlp_bias = c.norm_bias = j["biases"];
    c.tied_head = j["tied_head"];
    return c;
  }
  int batch() const { return index_["batch"]; }
  int seq() const { return index_["seq"]; }
  double loss() const { return index_["loss"]; }
  std::vector<double> losses() const { return index_["losses"]; }

  template <typename T = float>
  std::vector<T> values(const std::string& name) const {
    for (const auto& tensor : index_["tensors"]) {
      if (tensor["name"] != name) continue;
      std::size_t count = 1;
      for (std::size_t extent : tensor["shape"]) count *= extent;
      std::vector<T> result(count);
      std::memcpy(result.data(), data_.data() + tensor["offset"].get<std::size_t>(), count * sizeof(T));
      return result;
    }
    ADD_FAILURE() << name << " is not in the golden file";
    return {};
  }

  TransformerInput input() const {
    const auto tokens = values<std::int32_t>("tokens");
    TransformerInput input;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::size_t t = i % static_cast<std::size_t>(seq() + 1);
      if (t != static_cast<std::size_t>(seq())) input.tokens.emplace_back(tokens[i]);
      if (t != 0) input.targets.emplace_back(tokens[i]);
    }
    return input;
  }

 private:
  static std::string path(const std::string& name) { return BUTTERFLY_SOURCE_DIR "/tests/golden/training_" + name; }
  nlohmann::json index_;
  std::string data_;
};

class GoldenTraining : public testing::TestWithParam<const char*> {
 protected:
  /// With the golden weights.
  std::unique_ptr<TrainableTransformer> transformer(Isa isa, Fusion fusion = {}) const {
    auto transformer = TrainableTransformer::create(
        golden_.config(), {.fusion = fusion, .micro_batch = golden_.batch(), .seq = golden_.seq(), .isa = isa});
    EXPECT_TRUE(transformer) << transformer.error().message;
    for (const Parameter& parameter : (*transformer)->parameters().list()) {
      std::ranges::copy(golden_.values(parameter.name), (*transformer)->parameters().weight(parameter).begin());
    }
    (*transformer)->weights_changed();
    return std::move(*transformer);
  }

  const TrainingGolden golden_{GetParam()};
  const TransformerInput input_ = golden_.input();
  const float scale_ = 1.0f / static_cast<float>(input_.targets.size());
};

TEST_P(GoldenTraining, GradientsAreThoseOfPyTorch) {
  for (const Isa isa : supported_isas()) {
    for (const char* fusion : {"all", "none"}) {
      SCOPED_TRACE(std::string(to_string(isa)) + " " + fusion);
      const auto transformer = this->transformer(isa, *parse_fusion(fusion));
      const double loss = *transformer->forward(input_.tokens, input_.targets) * static_cast<double>(scale_);
      EXPECT_NEAR(loss, golden_.loss(), 1e-6 * golden_.loss());
      ASSERT_TRUE(transformer->backward(scale_, {}));
      for (const Parameter& parameter : transformer->parameters().list()) {
        const auto expected = golden_.values("grad." + parameter.name);
        const double distance = relative_l2(transformer->parameters().gradient(parameter), expected);
        // The bias of K moves all scores of a query alike: its gradient is zero but for rounding.
        if (parameter.name.ends_with("attn_k.bias")) continue;
        EXPECT_LT(distance, 1e-5) << parameter.name;
      }
    }
  }
}

/// As torch.nn.utils.clip_grad_norm_ to a norm of 1.
double clipping_scale(ParameterSet& parameters, const TrainingKernels& kernels) {
  const auto gradients = parameters.gradients();
  const double norm = std::sqrt(kernels.sum_of_squares(gradients.data(), static_cast<long>(gradients.size())));
  return std::min(1.0, 1.0 / (norm + 1e-6));
}

TEST_P(GoldenTraining, TenLossesAreThoseOfPyTorch) {
  for (const Isa isa : supported_isas()) {
    SCOPED_TRACE(to_string(isa));
    const TrainingKernels& kernels = training_kernels(isa);
    const auto transformer = this->transformer(isa);
    ParameterSet& parameters = transformer->parameters();
    std::vector<float> m(parameters.weights().size());
    std::vector<float> v(parameters.weights().size());
    int step = 0;
    for (const double expected : golden_.losses()) {
      std::ranges::fill(parameters.gradients(), 0.0f);
      const double loss = *transformer->forward(input_.tokens, input_.targets) * static_cast<double>(scale_);
      EXPECT_NEAR(loss, expected, 1e-4 * expected) << "step " << step;
      ASSERT_TRUE(transformer->backward(scale_, {}));
      ++step;
      const auto gradient_scale = static_cast<float>(clipping_scale(parameters, kernels));
      for (const Parameter& parameter : parameters.list()) {
        const auto at = static_cast<std::size_t>(parameter.offset);
        kernels.adamw({.rate = 1e-3f,
                       .decay = parameter.decay == DecayGroup::kDecayed ? 0.1f : 0.0f,
                       .correction1 = static_cast<float>(1.0 / (1.0 - std::pow(0.9, step))),
                       .correction2 = static_cast<float>(1.0 / (1.0 - std::pow(0.95, step))),
                       .gradient_scale = gradient_scale},
                      parameter.size(), parameters.gradient(parameter).data(), parameters.weight(parameter).data(),
                      m.data() + at, v.data() + at);
      }
      transformer->weights_changed();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTraining, testing::Values("adjacent", "halves", "gpt2"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace butterfly
