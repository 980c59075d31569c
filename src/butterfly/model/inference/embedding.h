// The outer layers of the model: token embedding (and learned positions) before the first block, final norm and head
// after the last. Immutable after load. A tied head shares the embedding's packed matrix where one node has both.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/model/core/batch.h"
#include "butterfly/model/inference/block.h"
#include "butterfly/model/inference/compute.h"

namespace butterfly {

class Embedding {
 public:
  /// The slice of the vocabulary that goes with `slices`, and every learned position.
  static Result<Embedding> load(const ModelConfig& config, const WeightSource& source, ThreadTeam& team,
                                const HeldSlices& slices = {});

  /// Errors: kInvalidArgument for a token outside the vocabulary or a position outside the context, whichever member
  /// holds it.
  Status check(const Batch& batch, std::span<const TokenId> tokens) const;

  /// x[rows, model_dim] = scaled embedding of each row's token (+ its position's vector), for what check() has passed.
  /// Rows whose token is not in this slice stay as they are.
  void forward(const Batch& batch, std::span<const TokenId> tokens, std::span<float> x) const;

  const std::shared_ptr<const PackedMatrix>& table() const { return tokens_; }
  /// Null where positions are not learned.
  const std::shared_ptr<const PackedMatrix>& positions() const { return positions_; }
  std::uint64_t packed_bytes() const;

 private:
  std::int64_t vocab_ = 0;  // of the model
  std::int64_t context_ = 0;
  float scale_ = 1.0f;
  IndexRange held_;  // of the vocabulary
  // Shared with the head of a tied model.
  std::shared_ptr<const PackedMatrix> tokens_;
  std::shared_ptr<const PackedMatrix> positions_;  // learned positions only
};

class Head {
 public:
  /// `embedding` of the same slices may be null where this node has none; a tied head then loads the table itself.
  static Result<Head> load(const ModelConfig& config, const WeightSource& source, const Embedding* embedding,
                           ThreadTeam& team, const HeldSlices& slices = {});

  /// logits[batch.logit_rows(), vocab] from x[rows, model_dim]. In a group the first member collects them, and
  /// `logits` is not looked at by the others. Errors: kNoMemory (scratch), those of the group.
  Status forward(const Compute& compute, const Batch& batch, const float* x, std::span<float> logits) const;

  const std::shared_ptr<const PackedMatrix>& table() const { return matrix_; }
  std::uint64_t packed_bytes() const;

 private:
  Result<ActivationRows> gather_rows(const Compute& compute, const Batch& batch, const float* x) const;

  ModelConfig config_;
  IndexRange held_;  // of the vocabulary
  NormWeights norm_;
  std::vector<float> bias_;  // of the vocabulary that is held; empty: none
  std::shared_ptr<const PackedMatrix> matrix_;
};

}  // namespace butterfly
