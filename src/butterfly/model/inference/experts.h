// The MLP of a layer with experts: each row goes through the experts that the router chose for it, and through the
// shared one. A node holds whole experts, those of its slices; of the shared expert it holds its slices. Immutable
// after loading; forward() is thread-compatible (one call at a time per Compute).
#pragma once

#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/shard.h"
#include "butterfly/model/inference/linear_weights.h"
#include "butterfly/model/inference/router.h"

namespace butterfly {

class Experts {
 public:
  /// What the holder of `shard` needs of a layer that has experts.
  static Result<Experts> load(const ModelConfig& config, int layer, const WeightSource& source, ThreadTeam& team,
                              const Shard& shard);

  /// y[rows, model_dim], zeros, becomes what the experts make of input[rows, model_dim]. The order of sums:
  ///   out(e) = down of expert e, by the slices of its inputs, and its bias;
  ///   slot(s) = fma(weight(e), out(e), acc) over the chosen experts of slice s of the experts, ascending, from +0;
  ///   y = shared + the slots added in the tree of reduction slices; shared = sigmoid(gate) * the shared expert's
  ///   output.
  /// A row's result depends on that row alone. With some of the slices alone, compute.group adds the others'.
  /// Errors: kNoMemory (scratch), those of the group.
  Status forward(const Compute& compute, std::int64_t rows, float* input, float* y) const;

  std::uint64_t packed_bytes() const;

  /// By canonical name without "blk.N." and ".weight", as far as this node holds it; null for other names.
  const PackedMatrix* matrix(std::string_view name) const;

 private:
  struct Mlp {
    LinearWeights gate, up, down;
    bool reads_floats() const { return !gate.matrix.quantised() || !up.matrix.quantised(); }
  };
  /// The rows of a step that go through experts of this node, behind one another by expert.
  struct Pairs {
    std::span<int> begin;  // [held experts + 1]
    std::span<int> row;    // [pairs]
    std::span<int> of;     // [rows, used]: the pair, -1 for an expert that another node has
    std::int64_t count() const { return begin.back(); }
  };

  Status load_shared(const std::string& prefix, const WeightSource& source, ThreadTeam& team, const Shard& shard);
  Status add_shared(const Compute& compute, const ActivationRows& x, float* y) const;
  Status scale_by_gate(const Compute& compute, const ActivationRows& x, float* y) const;
  Result<Pairs> pair_up(const Compute& compute, const ExpertChoice& choice) const;
  Result<ActivationRows> gather(const Compute& compute, const ActivationRows& x, const Pairs& pairs) const;
  Result<float*> run(const Compute& compute, const ActivationRows& x, const Pairs& pairs) const;

  ModelConfig config_;
  IndexRange held_;  // experts
  IndexRange shared_ff_;
  SliceRange shared_held_;  // slices of it
  Router router_;
  std::vector<Mlp> experts_;  // those of held_
  RowForm input_form_;        // what the router, experts and the shared one read
  RowForm hidden_form_;       // what the experts' down reads
  bool floats_ = false;       // some expert's matrix reads floats
  Mlp shared_;
  PackedMatrix shared_gate_;  // [1, model_dim]
};

}  // namespace butterfly
