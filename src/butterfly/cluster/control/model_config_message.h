// A model's configuration on its way between nodes. Thread-safe.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/cluster/control/control_messages.h"
#include "butterfly/model/core/config.h"

namespace butterfly {

/// Every field; read_model_config() gives back the same values, to the bit.
void store(const ModelConfig& config, control::ModelConfig& message);

/// The message comes from a peer. Errors: kBadData naming the field whose number means nothing here or that is too
/// long; those of validate().
Result<ModelConfig> read_model_config(const control::ModelConfig& message);

}  // namespace butterfly
