// Every setting of what runs a model, with its default. Keys of the file of `-c` and flags of `butterfly generate` have
// these names (docs/configuration.md). Plain values.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/infer/deployment/deployment_config.h"
#include "butterfly/infer/scheduler/generate.h"

namespace butterfly {

struct InferenceConfig {
  std::string model{};  // GGUF file, or Hugging Face directory
  DeploymentConfig deployment{};
  std::string prompt{};
  Request request{};  // but for the tokens of its prompt
  int prefill_chunk = 512;
  bool echo = false;   // the prompt before its continuation
  bool quiet = false;  // no progress and no summary
};

/// Errors: kInvalidArgument naming the keys that do not go together, or what is missing.
Status validate(const InferenceConfig& config);

/// The file of `-c`. Errors: kNotFound, kBadData naming file, line and key; unknown keys are errors.
Status read_inference_config(const std::string& path, InferenceConfig& config);

}  // namespace butterfly
