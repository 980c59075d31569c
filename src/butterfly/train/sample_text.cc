#include "butterfly/train/sample_text.h"

#include <algorithm>

#include "butterfly/infer/deployment.h"
#include "butterfly/infer/generate.h"
#include "butterfly/model/gguf_rope.h"
#include "butterfly/model/weights.h"

namespace butterfly {
namespace {

/// The parameters where they lie. Borrows them.
class ParameterSource final : public WeightSource {
 public:
  explicit ParameterSource(const ParameterSet& parameters) : parameters_(parameters) {}

  std::vector<WeightInfo> list() const override {
    std::vector<WeightInfo> infos;
    for (const Parameter& parameter : parameters_.list()) {
      infos.push_back({.name = parameter.name,
                       .rows = parameter.rows,
                       .cols = parameter.cols,
                       .bytes = static_cast<std::uint64_t>(parameter.size()) * sizeof(float)});
    }
    return infos;
  }

  Result<WeightView> find(const std::string& name) const override {
    BF_ASSIGN_OR_RETURN(const Parameter* parameter, parameters_.find(name));
    const auto values = parameters_.weights().subspan(static_cast<std::size_t>(parameter->offset),
                                                      static_cast<std::size_t>(parameter->size()));
    return WeightView{.rows = parameter->rows, .cols = parameter->cols, .bytes = std::as_bytes(values)};
  }

  bool contains(const std::string& name) const override { return parameters_.find(name).has_value(); }
  std::string description() const override { return "the model in training"; }

 private:
  const ParameterSet& parameters_;
};

}  // namespace

Result<std::string> sample_text(const ModelConfig& config, const ParameterSet& parameters, const Vocabulary& vocabulary,
                                const SampleTextOptions& options) {
  Checkpoint checkpoint;
  checkpoint.path = "the model in training";
  checkpoint.format = "memory";
  checkpoint.config = config;
  checkpoint.vocabulary = vocabulary;
  checkpoint.config.weight_type = DType::kF32;
  checkpoint.config.rope = with_explicit_factors(config.rope);
  checkpoint.weights = std::make_shared<ParameterSource>(parameters);
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(vocabulary));
  BF_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, encode_prompt(tokenizer, options.prompt));
  BF_ASSIGN_OR_RETURN(const auto deployment, Deployment::create(checkpoint, {.threads = options.threads}));
  Request request;
  request.prompt = std::move(prompt);
  request.tokens_max = options.tokens_max;
  request.sampling = {.temperature = 0.8f, .top_k = 40, .seed = options.seed};
  BF_ASSIGN_OR_RETURN(
      const std::vector<Generation> texts,
      generate(deployment->pipeline(), tokenizer, std::span(&request, 1), {.context = config.context}, {}));
  return options.prompt + texts[0].text;
}

}  // namespace butterfly
