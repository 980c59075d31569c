// The outer layers of the model: token embedding (with learned positions, token type, norm and projection where the
// model has them) before the first block, final norm and head after the last. Immutable after load. A tied head shares
// the embedding's packed matrix where one node has both.
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
  /// Errors: kNoMemory (scratch).
  Status forward(const Compute& compute, const Batch& batch, std::span<const TokenId> tokens, std::span<float> x) const;

  const std::shared_ptr<const PackedMatrix>& table() const { return tokens_; }
  /// Null where positions are not learned.
  const std::shared_ptr<const PackedMatrix>& positions() const { return positions_; }
  std::uint64_t packed_bytes() const;

 private:
  struct HeldRow {
    std::size_t row = 0;  // of the batch
    std::int64_t position = 0;
  };
  trace::Work table_work(std::int64_t rows) const;
  void sum_tables(TokenId token, std::int64_t position, std::span<float> out) const;
  Status project(const Compute& compute, std::span<const HeldRow> held, std::span<const TokenId> tokens,
                 std::span<float> x) const;

  ModelConfig config_;
  IndexRange held_;  // of the vocabulary
  // Shared with the head of a tied model.
  std::shared_ptr<const PackedMatrix> tokens_;
  std::shared_ptr<const PackedMatrix> positions_;  // learned positions only
  std::vector<float> type_;                        // that every token has; empty: none
  NormWeights norm_;
  std::shared_ptr<const LinearWeights> projection_;  // null: none; copies share it
};

class Head {
 public:
  /// `embedding` of the same slices may be null where this node has none; a tied head then loads the table itself.
  static Result<Head> load(const ModelConfig& config, const WeightSource& source, const Embedding* embedding,
                           ThreadTeam& team, const HeldSlices& slices = {});

  /// out[batch.logit_rows(), config.output_dim()] from x[rows, model_dim]: logits, or rows after the last norm. In a
  /// group the first member has them, and `out` is not looked at by the others. Errors: kNoMemory (scratch), those of
  /// the group.
  Status forward(const Compute& compute, const Batch& batch, const float* x, std::span<float> out) const;

  /// Null where the output is hidden rows.
  const std::shared_ptr<const PackedMatrix>& table() const { return matrix_; }
  std::uint64_t packed_bytes() const;

 private:
  Result<float*> gather_rows(const Compute& compute, const Batch& batch, const float* x) const;
  Result<float*> transform(const Compute& compute, std::int64_t rows, float* x) const;
  Status load_transform(const WeightSource& source, ThreadTeam& team);

  ModelConfig config_;
  IndexRange held_;  // of the vocabulary
  NormWeights norm_;
  std::vector<float> bias_;  // of the vocabulary that is held; empty: none
  std::shared_ptr<const PackedMatrix> matrix_;
  std::shared_ptr<const LinearWeights> dense_;  // before the matrix; null: none; copies share it
  NormWeights dense_norm_;
};

}  // namespace butterfly
