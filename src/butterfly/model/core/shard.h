// Which part of a model the holder of some canonical slices has: whole heads, a slice of the MLP, a slice of the
// vocabulary. A function of the configuration alone, so that every member of a tensor group knows what each other one
// has. Plain values, thread-safe.
#pragma once

#include "butterfly/kernel/inference/reduction_slices.h"
#include "butterfly/kernel/packed/packed_matrix.h"
#include "butterfly/model/core/config.h"

namespace butterfly {

/// Any of the ranges can be empty: small models have fewer units than slices.
struct Shard {
  HeldSlices slices;
  IndexRange heads;      // query heads, whole attention slices
  IndexRange kv_heads;   // that those read; the neighbours may hold the first and the last as well (a latent: all)
  IndexRange ff;         // rows of gate and up, columns of down
  IndexRange experts;    // whole ones, of layers that have them: those of slices.experts
  IndexRange shared_ff;  // of their shared expert, as ff
  IndexRange vocab;      // rows of the token embedding and of the head
  int head_dim = 0;
  int value_dim = 0;  // of what attention gives for a head
  // Rows of the query and key matrices: those of the heads, and all where a norm over the full width needs them.
  // With a latent, the key rows are those of what is cached, which all members compute alike.
  IndexRange q_rows, k_rows;

  std::int64_t q_dim() const { return heads.size() * head_dim; }
  std::int64_t kv_dim() const { return kv_heads.size() * head_dim; }
  /// The same ranges in rows or columns of the matrices.
  IndexRange q() const { return {heads.begin * head_dim, heads.end * head_dim}; }
  IndexRange kv() const { return {kv_heads.begin * head_dim, kv_heads.end * head_dim}; }
  /// What attention gives: columns of its output matrix.
  std::int64_t mixed_dim() const { return heads.size() * value_dim; }
  IndexRange mixed() const { return {heads.begin * value_dim, heads.end * value_dim}; }
};

/// Slices of the reduced dimension of the attention output and of MLP down.
SliceBorders attention_slices(const ModelConfig& config);
SliceBorders mlp_slices(const ModelConfig& config);
/// Slices of the reduced dimension of each expert's down, kExpertSlices of them, and of the shared expert's.
SliceBorders expert_ff_slices(const ModelConfig& config);
SliceBorders shared_slices(const ModelConfig& config);
/// Slices of the experts: what those of one slice give is added first, in the order of the experts.
SliceBorders expert_slices(const ModelConfig& config);

Shard shard_of(const ModelConfig& config, const HeldSlices& slices);

}  // namespace butterfly
