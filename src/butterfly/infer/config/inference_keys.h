// The keys of inference as tables: what the file of `-c`, the flags of the commands that run a model and the page that
// documents them have in common. Immutable, thread-safe.
#pragma once

#include <vector>

#include "butterfly/base/settings/config_file.h"
#include "butterfly/infer/config/inference_config.h"

namespace butterfly {

using InferenceKey = ConfigKey<InferenceConfig>;

/// The model, and where and how it runs: flags of every command that runs one.
const std::vector<InferenceKey>& running_keys();

/// What is generated.
const std::vector<InferenceKey>& text_keys();

/// Both, in the order of the documentation: keys of the file.
const std::vector<InferenceKey>& inference_keys();

}  // namespace butterfly
