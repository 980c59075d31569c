// The members of a tensor group as arithmetic sees them: slices that others computed, embeddings and logits that others
// hold. How bytes get from one to another is the caller's. All members make the same calls in the same order.
// Thread-compatible; allocates nothing but from the arena that a call is given.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/shard.h"
#include "butterfly/model/inference/compute.h"

namespace butterfly {

/// Gives to[r] to member r and fills from[r] with what it gave; own entries and empty ones move nothing.
using ExchangeFunction = std::function<Status(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from)>;

/// Matmuls whose reduced dimension is divided among the members.
enum class DividedMatmul : std::uint8_t { kAttentionOutput, kCrossOutput, kMlpDown, kSharedDown };

/// Columns of a member's slices, and the whole bias or null.
struct DividedWeights {
  const PackedMatrix* weights = nullptr;
  const float* bias = nullptr;
};

/// y[rows, model_dim] += x * weights^T + bias over all `slices`, the members' of compute.group included where there is
/// one. Errors: those of TensorGroup::add_matmul.
Status add_divided_matmul(const Compute& compute, DividedMatmul matmul, const SliceBorders& slices,
                          const DividedWeights& weights, const ActivationRows& x, float* y);

class TensorGroup {
 public:
  /// `slices` of each member, ascending, cover all kReductionSlices of both kinds once; this is member `rank`.
  TensorGroup(const ModelConfig& config, const std::vector<HeldSlices>& slices, int rank, ExchangeFunction exchange);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(shards_.size()); }
  const Shard& shard() const { return shards_[static_cast<std::size_t>(rank_)]; }
  const Shard& shard(int member) const { return shards_[static_cast<std::size_t>(member)]; }

  /// The first exchange of a step: whether every member is `ready`, and the embeddings. Rows of x[rows, model_dim]
  /// whose token this member holds are there already; the others come from their owners. `tokens` is empty where the
  /// stage has no embedding; x may be null for a member that is not ready. Gives the error of the first member that is
  /// not ready, at all members alike; after it the group goes on. Errors: those of the exchange, kNoMemory (messages).
  Result<Status> begin_step(Arena& arena, const Status& ready, std::span<const TokenId> tokens, float* x);

  /// y[rows, model_dim] += x * weights^T + bias, of which this member has the columns of its slices in `weights`
  /// [model_dim, own columns] and `x` [rows, own columns]; both are not looked at where it has none.
  /// Errors: kNoMemory (scratch), those of the exchange.
  Status add_matmul(const Compute& compute, DividedMatmul matmul, const PackedMatrix& weights, const float* bias,
                    const ActivationRows& x, float* y);

  /// y[rows, model_dim] += the sum over all slices of the experts, of which `fill` writes those of this member:
  /// [rows, its nodes of the tree, model_dim]; `zeros` has model_dim of them. Errors: kNoMemory (scratch), those of
  /// `fill` and of the exchange.
  using FillSums = std::function<Status(std::span<const SliceRange> nodes, float* sums)>;
  Status add_experts(const Compute& compute, std::int64_t rows, const FillSums& fill, const float* zeros, float* y);

  /// Collects logits[rows, vocab] at member 0 from everybody's part[rows, own vocab]; `logits` is not looked at by the
  /// others. Member 0's part may lie in its place where rows == 1.
  /// Errors: kNoMemory (scratch), those of the exchange.
  Status gather_logits(const Compute& compute, std::int64_t rows, const float* part, std::span<float> logits);

 private:
  /// The sums of one kind of matmul that each member can add up alone. Nodes without columns are left out.
  struct Sums {
    SliceBorders borders;
    std::vector<std::vector<SliceRange>> nodes;  // of each member
    std::int64_t nodes_max = 0;
  };
  /// Where the sums of each member are: [rows, nodes of that member, model_dim].
  using SumsOfMembers = std::vector<float*>;

  /// `runs` are what each member has of the slices with these borders.
  static Sums sums_of(const SliceBorders& borders, std::span<const SliceRange> runs);
  const Sums& sums_of(DividedMatmul matmul) const;
  Status add_sums(const Compute& compute, const Sums& sums, std::int64_t rows, const float* bias, float* y);
  Status add_everywhere(const Compute& compute, const Sums& sums, std::int64_t rows, const float* bias, float* y);
  Status add_at_owners(const Compute& compute, const Sums& sums, std::int64_t rows, const float* bias, float* y);
  Status receive_sums(const Compute& compute, const Sums& sums, std::int64_t rows);
  void fold_rows(const Compute& compute, const Sums& sums, std::int64_t rows, const float* bias, float* y) const;
  Status exchange();

  std::int64_t model_dim_ = 0;
  std::int64_t vocab_ = 0;
  int rank_ = 0;
  std::vector<Shard> shards_;
  ExchangeFunction exchange_;
  Sums attention_, mlp_, shared_, experts_;
  // For the exchange under way, one entry a member.
  std::vector<ByteSpan> to_;
  std::vector<MutableByteSpan> from_;
  SumsOfMembers received_;
};

}  // namespace butterfly
