// generate --prompts: a request for each line of a file, computed side by side.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/infer/config/inference_config.h"

namespace butterfly::app {

/// Lines of `path` are JSON objects: "prompt", and any key of text_keys() that is to differ from `config`. Prints an
/// object for each, in their order, as soon as it and those before it have ended, and a summary on stderr. The
/// process's exit code. Errors: those of reading the file, naming the line; of the model, of the run.
Result<int> run_prompts(const InferenceConfig& config, const std::string& path);

}  // namespace butterfly::app
