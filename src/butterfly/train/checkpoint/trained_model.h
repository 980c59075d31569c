// What is done with the model in training as with any other (trained_checkpoint()): it is written, and run. Plain
// functions.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"

namespace butterfly {

/// A GGUF file, or a Hugging Face directory with a tokenizer.json where the vocabulary can be written as one. Errors:
/// those of export_model().
Status write_trained_model(const Checkpoint& checkpoint, const std::string& out_path);

struct SampleTextOptions {
  std::string prompt{};  // empty: from the beginning-of-text token
  int tokens_max = 64;
  int threads = 1;
  std::uint64_t seed = 0;
};

/// `prompt` and what follows it at temperature 0.8 among the 40 most likely, by the code that runs finished models: the
/// weights are packed for it, so they are in memory twice. Errors: kUnsupported without a vocabulary; those of
/// Deployment::create(), encode_prompt() and generate().
Result<std::string> sample_text(const Checkpoint& checkpoint, const SampleTextOptions& options);

}  // namespace butterfly
