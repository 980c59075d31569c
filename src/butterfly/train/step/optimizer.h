// AdamW and SGD over the flat parameters, and what else is done to all gradients at once, on a thread team. Moments are
// as long as the parameters and part of a checkpoint. Updates are elementwise and sums made of fixed chunks, so neither
// threads nor ranks show in the bits. One call at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/isa.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// The norm of all gradients that are not frozen: sums of squares of fixed chunks, added in a binary tree. Infinite
  /// or NaN where one of them is.
  virtual double gradient_norm() = 0;

  /// One update of every parameter that is not frozen; `gradient_scale` multiplies the gradients first.
  virtual void update(double rate, double gradient_scale) = 0;

  /// Updates so far: the t of the bias corrections.
  virtual std::int64_t updates() const = 0;
  virtual void set_updates(std::int64_t updates) = 0;

  /// For checkpoints: each is as long as the flat parameters. AdamW has two, SGD with momentum one.
  virtual std::vector<std::span<float>> moments() = 0;
};

/// `parameters` and `team` are borrowed; which of them are frozen is looked at here. Errors: kNoMemory.
Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerConfig& config, const Fusion& fusion, Isa isa,
                                                  ParameterSet& parameters, ThreadTeam& team);

}  // namespace butterfly
