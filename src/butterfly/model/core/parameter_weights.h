// Between the flat parameters of training and named weights: continuing a checkpoint, and handing on what was learned.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/model/core/weights.h"

namespace butterfly {

/// Every parameter from `source`, whatever its type, as floats. Tell the TrainableTransformer afterwards
/// (weights_changed()). Errors: those of find_checked(); the parameters before the one that is named have changed.
/// `made` is told of each parameter that has its values, where it is something.
Status load_weights(const WeightSource& source, ParameterSet& parameters,
                    const std::function<void(const Parameter&)>& made = {});

/// The parameters as F32 weights, borrowed: they outlive the source and every view of it, and stay as they are
/// meanwhile. `description` names them in messages.
std::unique_ptr<WeightSource> export_weights(const ParameterSet& parameters, std::string description);

/// The same with configuration and vocabulary, as the writers take it.
Checkpoint trained_checkpoint(const ParameterSet& parameters, const ModelConfig& config, Vocabulary vocabulary);

}  // namespace butterfly
