// Whether a run did what it says. Every check states what it saw, or why it could not judge; each that fails is a
// reason for INVALID. Fed step by step by the thread that trains; not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "butterfly/model/core/parameters.h"
#include "butterfly/model/training/trainable_transformer.h"
#include "butterfly/train/data/dataset.h"
#include "butterfly/train/step/train_step.h"

namespace butterfly {

struct AuditVerdict {
  bool valid = false;
  std::vector<std::string> reasons{};  // of an invalid run
  std::vector<std::string> checks{};   // what was looked at and seen, for the report
};

/// "valid" or "INVALID: reason; reason".
std::string to_string(const AuditVerdict& verdict);

/// What the steps themselves do not tell.
struct AuditFacts {
  DatasetStats data{};
  std::int64_t step = 0;                   // steps done, those before a resume included
  std::int64_t steps = 0;                  // that the configuration asks for
  double forward_flops_per_step = 0.0;     // of this rank
  double mfu = 0.0;                        // 0: the peak is not known
  std::int64_t bucket_bytes = 0;           // of the gradients' reduction
  bool divided = false;                    // ranks hold parts of the state
  std::vector<std::string> rank_hashes{};  // of the weights, in rank order
  /// [rank][of whose part]: of weights and moments, as that rank holds them; empty where it has no copy.
  std::vector<std::vector<std::string>> part_hashes{};
  std::vector<double> seen{};  // Audit::seen(), added up over ranks that hold parts; empty: this rank's
};

class Audit {
 public:
  /// Remembers a hash of every parameter: what the run begins with. Of a rank that has a part of the state, what is in
  /// `owned` (ascending) alone; empty: all.
  explicit Audit(const ParameterSet& parameters, const std::vector<ParameterRange>& owned = {});

  /// From now on this rank has `held` of the state; `seen` is what all ranks that are left had seen().
  void hold(const ParameterSet& parameters, const std::vector<ParameterRange>& held, const std::vector<double>& seen);

  /// After each step: the gradients of `parameters` are those of the step, summed.
  void step(const StepReport& report, const ParameterSet& parameters);

  /// For each parameter whether it received a gradient, then for each whether it moved: 1 or 0, of what this rank has
  /// of it. Ranks that hold parts of the state add theirs up.
  std::vector<double> seen(const ParameterSet& parameters) const;

  AuditVerdict finish(const ParameterSet& parameters, const AuditFacts& facts) const;

 private:
  struct Watched {
    Parameter parameter{};
    std::vector<ParameterRange> ranges{};  // what this rank has of it, in the flat arrays
    std::string first_hash{};
    bool gradient_seen = false;  // one that is neither zero nor infinite nor NaN
    bool moved = false;          // before first_hash
  };
  bool waits_for_tokens(const Watched& watched) const;

  std::vector<Watched> parameters_;
  std::deque<double> last_losses_;
  std::int64_t steps_ = 0, updates_ = 0, tokens_ = 0;
  StepPhases phases_{};  // sums
  std::uint64_t bytes_sent_ = 0, formula_bytes_ = 0;
  std::vector<std::int64_t> expert_tokens_{};  // sums over steps
  int experts_ = 0;
};

}  // namespace butterfly
