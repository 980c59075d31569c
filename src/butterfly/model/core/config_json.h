// A model's configuration as text, for the way from coordinator to worker. Thread-safe.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"

namespace butterfly {

/// Every field; parse_config() gives back the same values.
std::string to_json(const ModelConfig& config);

/// The text comes from a peer. Errors: kBadData naming the field that is missing or of another type, those of
/// validate().
Result<ModelConfig> parse_config(const std::string& json);

}  // namespace butterfly
