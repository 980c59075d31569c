// First weights: Normal(0, 0.02), the matmuls that add to the residual stream scaled by 1 / sqrt(2 layers) (GPT-2,
// https://d4mucfpksywv.cloudfront.net/better-language-models/language_models_are_unsupervised_multitask_learners.pdf),
// norms 1, biases 0.
#pragma once

#include <cstdint>
#include <functional>

#include "butterfly/machine/thread_team.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/parameters.h"

namespace butterfly {

/// Each value depends on (seed, name of the parameter, element) alone, the same bits on every CPU. `made` is told of
/// each parameter, where it is something.
void initialize_parameters(const ModelConfig& config, std::uint64_t seed, ParameterSet& parameters, ThreadTeam& team,
                           const std::function<void(const Parameter&)>& made);

}  // namespace butterfly
