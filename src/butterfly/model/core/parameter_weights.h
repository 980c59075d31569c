// Between the flat parameters of training and named weights: continuing a checkpoint, and handing on what was learned.
#pragma once

#include <memory>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/model/core/weights.h"

namespace butterfly {

/// Every parameter from `source`, whatever its type, as floats. Tell the TrainableTransformer afterwards
/// (weights_changed()). Errors: those of find_checked(); the parameters before the one that is named have changed.
Status load_weights(const WeightSource& source, ParameterSet& parameters);

/// The parameters as F32 weights, borrowed: they outlive the source and every view of it, and stay as they are
/// meanwhile. `description` names them in messages.
std::unique_ptr<WeightSource> export_weights(const ParameterSet& parameters, std::string description);

/// The same with configuration and vocabulary, as the writers take it.
Checkpoint trained_checkpoint(const ParameterSet& parameters, const ModelConfig& config, Vocabulary vocabulary);

}  // namespace butterfly
