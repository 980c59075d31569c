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
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// From now on this optimizer updates the chunks in `held` alone, and those in `counted` are its part of the norm: of
  /// several ranks that hold the same, one counts it. Both ascending, with borders at chunks (ShardMap). Moments of
  /// other chunks are released.
  virtual void own(const std::vector<ParameterRange>& held, const std::vector<ParameterRange>& counted) = 0;

  /// The norm of all gradients that are not frozen: sums of squares of fixed chunks, added in a binary tree. Infinite
  /// or NaN where one of them is. Of chunks that this rank does not own, the others' sums: all ranks call it then.
  /// Errors: those of the collectives, which may be null for one that owns all.
  virtual Result<double> gradient_norm(Collectives* collectives) = 0;

  /// One update of every parameter that is owned and not frozen; `gradient_scale` multiplies the gradients first.
  virtual void update(double rate, double gradient_scale) = 0;

  /// Updates so far: the t of the bias corrections.
  virtual std::int64_t updates() const = 0;
  virtual void set_updates(std::int64_t updates) = 0;

  /// For checkpoints: each is as long as the flat parameters, zero where it is not owned. AdamW has two, SGD with
  /// momentum one.
  virtual std::vector<std::span<float>> moments() = 0;
};

/// `parameters` and `team` are borrowed; which of them are frozen is looked at here. Errors: kNoMemory.
/// `moments`: kSparse for a run that calls own().
Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerConfig& config, const Fusion& fusion, Isa isa,
                                                  ParameterSet& parameters, ThreadTeam& team,
                                                  Residency moments = Residency::kWhole);

}  // namespace butterfly
