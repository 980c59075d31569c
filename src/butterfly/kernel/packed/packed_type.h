// How packed weights and quantised activations are stored, as kernels and what packs for them call it. Plain, as
// kernel/inference/kernels.h is.
#pragma once

namespace butterfly {

/// Output rows that are interleaved in a packed weight panel, and lanes of every vector operation.
inline constexpr int kPanel = 16;

/// Storage of packed weights. kInt8: bytes, with a float scale for each output. From kBytes16 on: blocks of 32 with one
/// sub-block of 32 or two of 16, a float scale and, where the name ends in Min, a float minimum each; quants are bytes,
/// or nibbles that a table turns into bytes. From kQ2_K on the same of whole super-blocks, as files have them: scales
/// are small integers times the super-block's, which a float holds exactly, and quants have as many bits as they need
/// (sub_blocks_inl.h).
enum class PackedType : unsigned char {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kInt8,
  kBytes16,
  kBytes32Min,
  kNibbles16,
  kNibbles16Min,
  kNibbles32,
  kNibbles32Min,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_XS,
};

/// How a matmul of few rows asks for quantised weights before it reads them: first into the second-level cache, far
/// enough ahead to cover the memory's latency, and from there into the first, whose lines on their way are few on some
/// processors; or straight into the first. Which is faster, a processor has to be asked (rates/matmul_choice.h).
enum class Prefetch : unsigned char { kTwoSteps, kOneStep };

/// Of a block of 32 quants: what its two halves add up to.
struct BlockSums {
  int lower;
  int upper;
};

}  // namespace butterfly
