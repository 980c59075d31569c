// What each part of a model costs: bytes of weights, bytes of keys and values, floating-point operations. Formulas
// count what a decode step must read and compute; they know shapes and types, never file formats. Plain values.
#pragma once

#include <cstdint>

#include "butterfly/machine/node.h"
#include "butterfly/model/config.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// One part of a model (a block, the embedding, the head): what it stores and what one position costs.
struct PartCost {
  std::uint64_t weight_bytes = 0;  // stored, and read once per decode step unless the part is the embedding
  double flops = 0.0;              // per position, 2 per weight of a matrix; attention over the past is extra
};

/// With d = model_dim, q = heads * head_dim, k = kv_heads * head_dim, f = ff_dim, matrices in config.weight_type:
///   block      d*q + 2*d*k + q*d + (3 if gated, else 2)*d*f; norms and biases in f32
///   embedding  vocab*d, and context*d for learned positions
///   head       vocab*d and the last norm; a tied head stores no second matrix beside the embedding, but reads it
///   kv         2 * kv_heads rows of head_dim elements, of the cache's type, per block and position
struct ModelCost {
  PartCost block;
  PartCost embedding;
  PartCost head;                 // with its matrix, tied or not
  std::uint64_t tied_bytes = 0;  // stored once where embedding and tied head meet on one node
  std::uint64_t kv_bytes = 0;    // per block and position
  double attention_flops = 0.0;  // per block, position and past position: 4 * q (scores and weighted sum)
  DType weight_type = DType::kF32;
};

/// Errors: those of validate(); kInvalidArgument for a cache type that cannot hold a head's elements.
Result<ModelCost> model_cost(const ModelConfig& config, DType kv_type);

/// What runs at once: the numbers that scale a ModelCost.
struct Load {
  std::uint64_t context = 0;    // positions that each sequence may reach: memory
  std::uint64_t sequences = 1;  // decoded together: one read of the weights serves all
};

/// Seconds that a node needs for a part of one decode step of all sequences, each halfway through its context: the
/// larger of reading (weights once, keys and values of every sequence) at the node's memory rate and computing at its
/// arithmetic rate (int8 for quantised weights where the node has it, else fp32). A roofline:
/// https://doi.org/10.1145/1498765.1498785. Zero rates give infinity.
double block_decode_s(const ModelCost& cost, const Load& load, const NodeDescriptor& node);
double embedding_decode_s(const ModelCost& cost, const Load& load, const NodeDescriptor& node);
double head_decode_s(const ModelCost& cost, const Load& load, const NodeDescriptor& node);

}  // namespace butterfly
