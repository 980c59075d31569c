// Every setting of what runs a model, with its default. Keys of the file of `-c` and flags of `butterfly generate` have
// these names (docs/configuration.md). Plain values.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/infer/deployment/deployment_config.h"
#include "butterfly/infer/request/request.h"
#include "butterfly/infer/speculation/drafter.h"
#include "butterfly/text/grammar/constraint.h"

namespace butterfly {

struct InferenceConfig {
  std::string model{};  // GGUF file, or Hugging Face directory
  DeploymentConfig deployment{};
  std::string prompt{};
  Request request{};          // but for the tokens of its prompt
  std::string json_schema{};  // a file, or the schema itself
  std::string regex{};
  std::string grammar{};  // a file
  bool json_object = false;
  int samples = 1;  // answers to the prompt
  int prefill_chunk = 512;
  Speculation speculation = Speculation::kOff;
  std::string draft_model{};  // that guesses, instead; a file or directory like `model`
  bool echo = false;          // the prompt before its continuation
  bool quiet = false;         // no progress and no summary
};

/// Errors: kInvalidArgument naming the keys that do not go together, or what is missing.
Status validate(const InferenceConfig& config);

/// The form that the answer is to have, its files read. Errors: kNotFound, kIo; kInvalidArgument where more than one is
/// asked for.
Result<Constraint> read_constraint(const InferenceConfig& config);

/// The file of `-c`. Errors: kNotFound, kBadData naming file, line and key; unknown keys are errors.
Status read_inference_config(const std::string& path, InferenceConfig& config);

}  // namespace butterfly
