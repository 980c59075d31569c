// A model's configuration as text: what a run's fingerprint is of, and what tells two models apart. Thread-safe.
#pragma once

#include <string>

#include "butterfly/model/core/config.h"

namespace butterfly {

/// Every field; those that only some families have where they differ from their default, so that a fingerprint stays
/// what it is when a field is new.
std::string to_json(const ModelConfig& config);

}  // namespace butterfly
