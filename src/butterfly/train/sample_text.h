// What a model in training writes, by the same code that runs finished models. For models that fit twice: the weights
// are packed for it. Plain function.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/config.h"
#include "butterfly/model/parameters.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

struct SampleTextOptions {
  std::string prompt{};
  int tokens_max = 64;
  int threads = 1;
  std::uint64_t seed = 0;
};

/// `prompt` and what follows it at temperature 0.8 among the 40 most likely. Errors: kUnsupported without a vocabulary;
/// those of Deployment::create(), encode_prompt() and generate().
Result<std::string> sample_text(const ModelConfig& config, const ParameterSet& parameters, const Vocabulary& vocabulary,
                                const SampleTextOptions& options);

}  // namespace butterfly
