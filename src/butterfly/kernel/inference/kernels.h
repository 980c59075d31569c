// The table of single-threaded kernels of one instruction set, on raw pointers. reference.cc defines the bits of
// every entry; all others equal it by memcmp. Tables are immutable and thread-safe. Callers own all memory.
// This header is plain on purpose: files compiled with extra instruction sets include it and no standard header,
// so the linker can never pick their copy of a shared inline function for a CPU that lacks the instructions.
#pragma once

#include "butterfly/kernel/packed/packed_type.h"

namespace butterfly {

/// Keys per independently normalised piece of attention, counted from position 0 of a text.
inline constexpr int kAttentionSegment = 256;

/// Tokens per KV cache page, a multiple of kPanel that divides kAttentionSegment.
#ifdef BUTTERFLY_TINY
inline constexpr int kKvPageTokens = kPanel;
#else
inline constexpr int kKvPageTokens = 64;
#endif

/// How the cache holds keys and values (cache_layout_inl.h). kQ8_0: each in blocks of 32 elements, the last of what is
/// left, with the scale and the quants of tensor/quantize.h.
enum class CacheType : unsigned char { kF32, kF16, kQ8_0 };

/// Slices that a divided matmul has at most: a power of two (reduction_slices.h).
inline constexpr int kReductionSlices = 32;

/// Columns of a slice that share a scale of the activations where the weights are kInt8; the last of a slice have what
/// is left. Their products are exact in an int, and their sum in a float: 256 * 128 * 127 < 2^24.
inline constexpr int kQuantGroup = 256;

/// One of the sums that rows and weights are multiplied for: over a slice after the other.
struct LinearSum {
  const int* slice_begin = nullptr;  // slices + 1 borders in k, multiples of 32 but for the last
  int slices = 1;                    // a power of two, at most kReductionSlices; not all empty
  const float* bias = nullptr;
  const float* residual = nullptr;  // [rows, y_stride], may be y itself
  float* y = nullptr;
  long y_stride = 0;
};

/// Sums that share their rows and weights: a member of a tensor group has one for each subtree that it adds up alone.
inline constexpr int kLinearSums = 8;

/// For each of the sums, y[r, o] = sum over its slices of sum over k in the slice of x[r, k] * w[o, k]  (+ bias[o])
/// (+ residual[r, o]) for output panels [panel_begin, panel_end). Float weights: one chain of fused multiply-adds per
/// lane, k ascending, from +0. Quantised weights: per block of 32 an exact integer dot product d, then acc =
/// fma(float(d), w_scale * x_scale, acc), blocks ascending. Weights of sub-blocks: the same for each sub-block,
/// ascending, and where it has a minimum then acc = fma(float(s), -(w_min * x_scale), acc), s the sum of the
/// sub-block's quants of x. Two sub-blocks with minima are added up before they meet x's scale: b = float(d) * w_scale
/// for the first, fma(float(d), w_scale, b) for the second, each followed by b = fma(float(s), -w_min, b); then
/// acc = fma(b, x_scale, acc). kInt8: per group of kQuantGroup columns, from the slice's first on, an exact integer d,
/// then acc = fma(float(d), x_scale, acc), and at the slice's end acc * w_scale. Slices are added in a binary tree of
/// neighbours, ((0+1)+(2+3))+((4+5)+(6+7)) for 8; empty slices drop out.
struct LinearArgs {
  PackedType type = PackedType::kF32;
  const unsigned char* weights = nullptr;  // packed panels, 64-byte aligned
  long panel_stride = 0;                   // bytes
  long first_panel = 0;                    // the one that `weights` begins with
  unsigned char* scratch =
      nullptr;        // 64-byte aligned, scratch_bytes() (sub_blocks_inl.h); for several rows; null: none
  long cols = 0;      // reduced dimension
  long out_rows = 0;  // outputs of the whole matrix; the last panel may be partial
  long panel_begin = 0;
  long panel_end = 0;
  unsigned char* gathered = nullptr;           // 64-byte aligned, gathered_bytes() (gathered_rows_inl.h)
  const float* x = nullptr;                    // [rows, cols], float weights only
  long x_stride = 0;                           // elements
  const signed char* xq = nullptr;             // [rows, cols], quantised weights only
  const float* x_scales = nullptr;             // [rows, cols / 32]
  const BlockSums* x_sums = nullptr;           // [rows, cols / 32]
  const signed char* nibble_quants = nullptr;  // 16: what each nibble of a type of sub-blocks stands for
  long rows = 0;
  long first_row = 0;                       // the one that x or xq begins with
  Prefetch prefetch = Prefetch::kTwoSteps;  // of few rows' quantised weights
  LinearSum sums[kLinearSums];
  int sum_count = 1;
};

/// Attention of query rows that share one key/value head. Row r sees keys [first[r], visible[r]).
/// Scores: chain of fused multiply-adds along head_dim, then * scale; with a cap cap * tanh(s / cap); with slopes
/// fma(slope, key + 1 - visible, s); with biases s + bias[key]. Per segment of kAttentionSegment keys, those without a
/// key that is seen left out: m = max, p = exp(s - m), l = 16 strided sums folded, o[d] = chain over keys. Segments
/// fold in order: with M = max(M, m): L = fma(L, exp(M_old - M), l * exp(m - M)), O likewise; result (O / L) + 0.
/// A q8_0 key's score is acc = fma(b, k_scale, acc) over its blocks, b the chain of q and the block's quants; a q8_0
/// value takes part as p * v_scale times its quants.
/// A sink is a key of that score without a value: at the end M = max(M, sink), k = exp(M_old - M),
/// L = fma(L, k, exp(sink - M)), O * k.
struct AttentionArgs {
  const unsigned char* const* k_pages = nullptr;  // this head's part of each page
  const unsigned char* const* v_pages = nullptr;  // likewise; null: values lie in their keys
  CacheType type = CacheType::kF32;
  int head_dim = 0;
  int value_dim = 0;  // without v_pages: a value is that many elements, the first of its key; else it has head_dim
  int v_stride = 0;   // of a value, rounded up to 16; the padding is zero
  float scale = 1;
  int rows = 0;                          // at most kAttentionRows
  const float* const* q = nullptr;       // [rows] -> [head_dim]
  float* const* out = nullptr;           // [rows] -> a value
  const int* visible = nullptr;          // [rows], each at least 1
  const int* first = nullptr;            // [rows], each at least 0 and below visible; null: all 0
  float cap = 0;                         // of the scores; 0: none
  const float* slopes = nullptr;         // [rows], of the scores over distance; null: none
  const float* sinks = nullptr;          // [rows]; null: none
  const float* const* biases = nullptr;  // [rows] -> [visible], of the scores; null: none
  float* scratch = nullptr;              // kAttentionRows * (kAttentionSegment + 2 * v_stride) floats, 64-byte aligned
};
inline constexpr int kAttentionRows = 8;

struct Kernels {
  const char* name;

  void (*linear)(const LinearArgs& args);

  /// The end of a matmul whose slices were computed apart: y = residual + (sum + bias), where sum is the tree
  /// of neighbours over kReductionSlices rows of n. A null row drops out; the sum of a node of the tree stands in the
  /// place of its first slice, null in the others. bias may be null; residual may be y, or null: y = sum + bias. The
  /// rows are scratch afterwards.
  void (*fold)(float* const* sums, long n, const float* bias, const float* residual, float* y);

  /// Groups of `group` elements, a multiple of 32, the last one of what is left: scale = max|x| / 127, q =
  /// clamp(round_to_even(x * (127 / max|x|)), +-127); an all-zero group has scale 0. Each block of 32 gets its group's
  /// scale, and the sums of its q. n is a multiple of 32.
  void (*quantize_row)(const float* x, long n, long group, signed char* q, float* scales, BlockSums* sums);

  void (*attention)(const AttentionArgs& args);

  /// y = (x * (1 / sqrt(mean(x^2) + epsilon))) * weight. https://arxiv.org/abs/1910.07467
  void (*rms_norm)(const float* x, const float* weight, float epsilon, long n, float* y);

  /// y = fma((x - mean) * (1 / sqrt(var + epsilon)), weight, bias); bias may be null. https://arxiv.org/abs/1607.06450
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon, long n, float* y);

  /// Rotates `pairs` pairs of x in place; adjacent: (2i, 2i+1), else (i, i + pairs).
  void (*rope)(float* x, const float* cos, const float* sin, long pairs, bool adjacent);

  /// y = silu(gate) * up, y = gelu_tanh(gate) * up, y = silu(x), y = gelu_tanh(x), y = max(x, 0). y may be an input.
  void (*silu_mul)(const float* gate, const float* up, long n, float* y);
  void (*gelu_mul)(const float* gate, const float* up, long n, float* y);
  void (*silu)(const float* x, long n, float* y);
  void (*gelu)(const float* x, long n, float* y);
  void (*relu)(const float* x, long n, float* y);

  /// y = x * (1 + erf(x / sqrt 2)) / 2, erf within 1.5e-7, and the same of gate * up; y may be an input.
  void (*gelu_erf)(const float* x, long n, float* y);
  void (*gelu_erf_mul)(const float* gate, const float* up, long n, float* y);

  /// y = min(gate, limit) * sigmoid(1.702 * min(gate, limit)) * (clamp(up, +-limit) + 1); y may be an input.
  void (*clamped_swiglu)(const float* gate, const float* up, float limit, long n, float* y);

  /// y = y * factor, y = cap * tanh(y / cap)
  void (*scale)(float factor, long n, float* y);
  void (*soft_cap)(float cap, long n, float* y);

  /// y += x, y = fma(factor, x, y)
  void (*add)(const float* x, long n, float* y);
  void (*add_scaled)(float factor, const float* x, long n, float* y);

  /// With m = max: p = exp(x - m), y = p / l, l = 16 strided sums of p folded. y = 1 / (1 + exp(-x)). y may be x.
  void (*softmax)(const float* x, long n, float* y);
  void (*sigmoid)(const float* x, long n, float* y);

  /// Stores one key of n elements as number `key` of its group of kPanel, one value as number `token` of its page.
  /// Beyond what a half can hold, it becomes the largest half; a NaN stays one, in q8_0 with its whole block.
  void (*store_key)(const float* x, long n, CacheType type, unsigned char* group, int key);
  void (*store_value)(const float* x, long n, CacheType type, unsigned char* page, int token);

  /// A row of floats to halves, nearest, ties to even, and back: tensor/half.h. Bytes need no alignment.
  void (*floats_to_halves)(const float* x, long n, unsigned char* halves);
  void (*halves_to_floats)(const unsigned char* halves, long n, float* y);

  /// A row of floats to q8_0 blocks and back, as files store them: tensor/quantize.h. n is a multiple of 32.
  void (*floats_to_q8_0)(const float* x, long n, unsigned char* blocks);
  void (*q8_0_to_floats)(const unsigned char* blocks, long n, float* y);
};

extern const Kernels kReferenceKernels;
#ifdef __x86_64__
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
/// Kernels::linear on a machine that has AMX; all else is AVX-512's.
void linear_amx(const LinearArgs& args);
#endif

namespace {

/// std::min without a standard header.
inline long min_of(long a, long b) {
  return a < b ? a : b;
}

}  // namespace
}  // namespace butterfly
