// The specification: what every kernel computes, one element at a time, in the order that fixes its bits.
#include <cmath>

#include "butterfly/kernel/inference/cache_layout_inl.h"
#include "butterfly/kernel/inference/elementwise_inl.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"
#include "butterfly/tensor/half.h"
#include "butterfly/tensor/quantize.h"

// Where the CPU fuses multiply-adds itself, without a call of the C library for each: the same bits, several times as
// fast. Not under a sanitizer, which is not yet there when the loader chooses.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BF_WITH_FMA __attribute__((target_clones("arch=x86-64-v3", "default"), flatten))
#else
#define BF_WITH_FMA
#endif

namespace butterfly {
namespace {

const unsigned char* panel_of(const LinearArgs& a, long o) {
  return a.weights + (o / kPanel) * a.panel_stride;
}

/// Element (o, k) of a float panel matrix; the layout is described in packed_matrix.h.
float float_weight(const LinearArgs& a, long o, long k) {
  const unsigned char* panel = panel_of(a, o);
  const long index = k * kPanel + o % kPanel;
  switch (a.type) {
    case PackedType::kF16:
      return half_to_float(reinterpret_cast<const unsigned short*>(panel)[index]);
    case PackedType::kBF16:
      return bfloat16_to_float(reinterpret_cast<const unsigned short*>(panel)[index]);
    default:
      return reinterpret_cast<const float*>(panel)[index];
  }
}

float quant_scale(const LinearArgs& a, long o, long block) {
  const PackedPairs form{.nibbles = a.type == PackedType::kQ4_0};
  const auto* scales = reinterpret_cast<const unsigned short*>(panel_of(a, o) + form.scales_at(block));
  return half_to_float(scales[o % kPanel]);
}

/// The 32 quants of a block of Q8_0 or Q4_0 in row o, without their offset.
void pair_quants(const LinearArgs& a, long o, long block, int* quants) {
  const bool nibbles = a.type == PackedType::kQ4_0;
  const unsigned char* bytes = panel_of(a, o) + PackedPairs{.nibbles = nibbles}.quants_at(block) + o % kPanel * 4;
  for (int k = 0; k < 32; ++k) {
    const int within = nibbles ? k % 16 : k;
    const int byte = bytes[within / 4 * 4 * kPanel + k % 4];
    quants[k] = nibbles ? (k < 16 ? byte & 15 : byte >> 4) - 8 : byte - 128;
  }
}

/// Those of a type of sub-blocks.
void sub_block_quants(const LinearArgs& a, const PackedSubBlocks& form, long o, long block, int* quants) {
  const unsigned char* bytes = block_in(form, panel_of(a, o), block).quants + o % kPanel * 4;
  for (int k = 0; k < 32; ++k) {
    const int within = form.nibbles ? k % 16 : k;
    const int byte = bytes[within / 4 * 4 * kPanel + k % 4];
    const int nibble = k < 16 ? byte & 15 : byte >> 4;
    const unsigned char* high = bytes + 16 * kPanel + k % 4;
    const int quad = k / 4;
    if (!form.nibbles) {
      quants[k] = byte - 128;
    } else if (form.high_bits == 1) {
      quants[k] = nibble | (high[0] >> quad & 1) << 4;
    } else if (form.high_bits == 2) {
      quants[k] = (nibble | (high[quad / 4 * 64] >> quad % 4 * 2 & 3) << 4) - 32;
    } else {
      quants[k] = a.nibble_quants[nibble];
    }
  }
}

int dot(const int* quants, const signed char* x, long count) {
  int sum = 0;
  for (long k = 0; k < count; ++k) sum += quants[k] * x[k];
  return sum;
}

/// One of a block's rows of [16] factors: of scales, then of minima.
float sub_block_factor(const PackedSubBlocks& form, const PackedBlock& block, long row, long output) {
  if (!form.shared) return reinterpret_cast<const float*>(block.scales)[row * kPanel + output];
  const auto* halves = reinterpret_cast<const unsigned short*>(block.halves) + (row < form.subs() ? 0 : kPanel);
  const auto code = static_cast<signed char>(block.scales[row * kPanel + output]);
  return half_to_float(halves[output]) * static_cast<float>(code);
}

float sub_block_sum(const LinearArgs& a, long r, long o, long k_begin, long k_end) {
  const PackedSubBlocks form = packed_sub_blocks(a.type);
  float acc = 0.0f;
  float block_sum = 0.0f;
  int quants[32];
  for (long first = k_begin; first < k_end; first += form.size) {
    const signed char* x = a.xq + r * a.cols + first;
    if (first == k_begin || first % 32 == 0) sub_block_quants(a, form, o, first / 32, quants);
    const auto product = static_cast<float>(dot(quants + first % 32, x, form.size));
    int sum = 0;
    for (long k = 0; k < form.size; ++k) sum += x[k];
    const PackedBlock block = block_in(form, panel_of(a, o), first / 32);
    const long sub = first % 32 / form.size;
    const float scale = sub_block_factor(form, block, sub, o % kPanel);
    const float minimum = form.minima ? sub_block_factor(form, block, form.subs() + sub, o % kPanel) : 0.0f;
    const float x_scale = a.x_scales[r * (a.cols / 32) + first / 32];
    if (form.summed()) {
      block_sum = sub == 0 ? product * scale : std::fmaf(product, scale, block_sum);
      block_sum = std::fmaf(static_cast<float>(sum), -minimum, block_sum);
      if (sub + 1 == form.subs()) acc = std::fmaf(block_sum, x_scale, acc);
    } else {
      acc = std::fmaf(product, scale * x_scale, acc);
      if (form.minima) acc = std::fmaf(static_cast<float>(sum), -(minimum * x_scale), acc);
    }
  }
  return acc;
}

float int8_sum(const LinearArgs& a, long r, long o, long k_begin, long k_end) {
  const unsigned char* panel = panel_of(a, o);
  float acc = 0.0f;
  for (long first = k_begin; first < k_end; first += kQuantGroup) {
    int dot = 0;
    for (long k = first; k < min_of(first + kQuantGroup, k_end); ++k) {
      const long place = (k % 32) / 4 * 4 * kPanel + (o % kPanel) * 4 + k % 4;
      dot += (panel[PackedInt8::quants_at(k / 32) + place] - 128) * a.xq[r * a.cols + k];
    }
    acc = std::fmaf(static_cast<float>(dot), a.x_scales[r * (a.cols / 32) + first / 32], acc);
  }
  return acc * reinterpret_cast<const float*>(panel)[o % kPanel];
}

float slice_sum(const LinearArgs& a, long r, long o, long k_begin, long k_end) {
  if (a.type == PackedType::kInt8) return int8_sum(a, r, o, k_begin, k_end);
  if (is_sub_blocks(a.type)) return sub_block_sum(a, r, o, k_begin, k_end);
  float acc = 0.0f;
  if (a.type == PackedType::kQ8_0 || a.type == PackedType::kQ4_0) {
    int quants[32];
    for (long block = k_begin / 32; block < k_end / 32; ++block) {
      pair_quants(a, o, block, quants);
      const float scale = quant_scale(a, o, block) * a.x_scales[r * (a.cols / 32) + block];
      acc = std::fmaf(static_cast<float>(dot(quants, a.xq + r * a.cols + block * 32, 32)), scale, acc);
    }
  } else {
    for (long k = k_begin; k < k_end; ++k) acc = std::fmaf(float_weight(a, o, k), a.x[r * a.x_stride + k], acc);
  }
  return acc;
}

void linear_sum(const LinearArgs& a, const LinearSum& sum) {
  for (long r = 0; r < a.rows; ++r) {
    for (long o = a.panel_begin * kPanel; o < a.panel_end * kPanel && o < a.out_rows; ++o) {
      float sums[kReductionSlices];
      float* slices[kReductionSlices] = {};
      for (int slice = 0; slice < sum.slices; ++slice) {
        if (sum.slice_begin[slice] == sum.slice_begin[slice + 1]) continue;
        sums[slice] = slice_sum(a, r, o, sum.slice_begin[slice], sum.slice_begin[slice + 1]);
        slices[slice] = &sums[slice];
      }
      float y = *fold_slices(slices, sum.slices, 1);
      if (sum.bias != nullptr) y = y + sum.bias[o];
      if (sum.residual != nullptr) y = sum.residual[r * sum.y_stride + o] + y;
      sum.y[r * sum.y_stride + o] = y;
    }
  }
}

BF_WITH_FMA void linear(const LinearArgs& a) {
  for (int i = 0; i < a.sum_count; ++i) linear_sum(a, a.sums[i]);
}

void quantize_row(const float* x, long n, long group, signed char* q, float* scales, BlockSums* sums) {
  for (long begin = 0; begin < n; begin += group) {
    const long end = min_of(begin + group, n);
    float largest = 0.0f;
    for (long i = begin; i < end; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    for (long i = begin; i < end; ++i) {
      BlockSums& of_block = sums[i / 32];
      if (i % 32 == 0) {
        of_block = {};
        scales[i / 32] = largest / 127.0f;
      }
      float scaled = x[i] * inverse;
      scaled = scaled > -127.0f ? scaled : -127.0f;
      scaled = scaled < 127.0f ? scaled : 127.0f;
      q[i] = static_cast<signed char>((scaled + kRoundMagic) - kRoundMagic);
      (i % 32 < 16 ? of_block.lower : of_block.upper) += q[i];
    }
  }
}

/// Adds 16 strided sums: i with i + 8, then + 4, + 2, + 1.
float fold16(float* sums) {
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] = sums[i] + sums[i + width];
  }
  return sums[0];
}

void rms_norm(const float* x, const float* weight, float epsilon, long n, float* y) {
  float sums[kPanel] = {};
  for (long i = 0; i < n; ++i) sums[i % kPanel] = std::fmaf(x[i], x[i], sums[i % kPanel]);
  const float inverse = 1.0f / std::sqrt(fold16(sums) / static_cast<float>(n) + epsilon);
  for (long i = 0; i < n; ++i) y[i] = (x[i] * inverse) * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, long n, float* y) {
  float sums[kPanel] = {};
  for (long i = 0; i < n; ++i) sums[i % kPanel] = sums[i % kPanel] + x[i];
  const float mean = fold16(sums) / static_cast<float>(n);
  float squares[kPanel] = {};
  for (long i = 0; i < n; ++i) squares[i % kPanel] = std::fmaf(x[i] - mean, x[i] - mean, squares[i % kPanel]);
  const float inverse = 1.0f / std::sqrt(fold16(squares) / static_cast<float>(n) + epsilon);
  for (long i = 0; i < n; ++i) {
    y[i] = std::fmaf((x[i] - mean) * inverse, weight[i], bias != nullptr ? bias[i] : 0.0f);
  }
}

/// Element `index` of what lies there: a quant of q8_0.
float cached(const unsigned char* page, long index, CacheType type) {
  if (type == CacheType::kQ8_0) return static_cast<signed char>(page[index]);
  return type == CacheType::kF16 ? half_to_float(reinterpret_cast<const unsigned short*>(page)[index])
                                 : reinterpret_cast<const float*>(page)[index];
}

const unsigned char* key_group(const AttentionArgs& a, int key) {
  return a.k_pages[key / kKvPageTokens] + key % kKvPageTokens / kPanel * key_group_bytes(a.type, a.head_dim);
}

float cached_key(const AttentionArgs& a, int key, int d) {
  return cached(key_group(a, key), static_cast<long>(d) * kPanel + key % kPanel, a.type);
}

/// Of q8_0: the scale of the block of element d.
float cached_key_scale(const AttentionArgs& a, int key, int d) {
  const auto* scales = reinterpret_cast<const unsigned short*>(key_group(a, key) + a.head_dim * kPanel);
  return half_to_float(scales[d / kCacheBlock * kPanel + key % kPanel]);
}

/// The score before it is scaled and adjusted.
float score(const AttentionArgs& a, int row, int key) {
  const int block = a.type == CacheType::kQ8_0 ? static_cast<int>(kCacheBlock) : a.head_dim;
  float acc = 0.0f;
  for (int begin = 0; begin < a.head_dim; begin += block) {
    float dot = 0.0f;
    for (int d = begin; d < begin + block && d < a.head_dim; ++d) {
      dot = std::fmaf(a.q[row][d], cached_key(a, key, d), dot);
    }
    if (a.type != CacheType::kQ8_0) return dot;
    acc = std::fmaf(dot, cached_key_scale(a, key, begin), acc);
  }
  return acc;
}

/// Element d of the value of a key; of q8_0 its quant.
float cached_value(const AttentionArgs& a, int key, int d) {
  if (a.v_pages == nullptr) return cached_key(a, key, d);
  return cached(a.v_pages[key / kKvPageTokens], static_cast<long>(key % kKvPageTokens) * a.v_stride + d, a.type);
}

/// What a value's probability is multiplied with first.
float cached_value_scale(const AttentionArgs& a, int key, int d) {
  if (a.type != CacheType::kQ8_0) return 1.0f;
  if (a.v_pages == nullptr) return cached_key_scale(a, key, d);
  const unsigned char* page = a.v_pages[key / kKvPageTokens] + static_cast<long>(kKvPageTokens) * a.v_stride;
  return half_to_float(
      reinterpret_cast<const unsigned short*>(page)[d / kCacheBlock * kKvPageTokens + key % kKvPageTokens]);
}

void attention_row(const AttentionArgs& a, int row, float* scores, float* segment, float* total) {
  float total_max = 0.0f;
  float total_sum = 0.0f;
  const int first = a.first != nullptr ? a.first[row] : 0;
  const int first_segment = first / kAttentionSegment * kAttentionSegment;
  const int value_dim = a.v_pages == nullptr ? a.value_dim : a.head_dim;
  for (int begin = first_segment; begin < a.visible[row]; begin += kAttentionSegment) {
    const int from = first > begin ? first - begin : 0;
    const int keys = a.visible[row] - begin < kAttentionSegment ? a.visible[row] - begin : kAttentionSegment;
    for (int j = from; j < keys; ++j) {
      const int key = begin + j;
      scores[j] = adjust_score(a, row, key, score(a, row, key) * a.scale);
    }
    float max = scores[from];
    for (int j = from + 1; j < keys; ++j) max = scores[j] > max ? scores[j] : max;
    float sums[kPanel] = {};
    for (int d = 0; d < value_dim; ++d) segment[d] = 0.0f;
    for (int j = from; j < keys; ++j) {
      const float p = exp_scalar(scores[j] - max);
      sums[j % kPanel] = sums[j % kPanel] + p;
      for (int d = 0; d < value_dim; ++d) {
        segment[d] = std::fmaf(p * cached_value_scale(a, begin + j, d), cached_value(a, begin + j, d), segment[d]);
      }
    }
    const float sum = fold16(sums);
    if (begin == first_segment) {
      total_max = max;
      total_sum = sum;
      for (int d = 0; d < value_dim; ++d) total[d] = segment[d];
      continue;
    }
    const float new_max = max > total_max ? max : total_max;
    const float keep = exp_scalar(total_max - new_max);
    const float take = exp_scalar(max - new_max);
    total_sum = std::fmaf(total_sum, keep, sum * take);
    for (int d = 0; d < value_dim; ++d) total[d] = std::fmaf(total[d], keep, segment[d] * take);
    total_max = new_max;
  }
  const float keep = add_sink(a, row, total_max, &total_sum);
  for (int d = 0; d < value_dim; ++d) a.out[row][d] = total[d] * keep / total_sum + 0.0f;
}

BF_WITH_FMA void attention(const AttentionArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    attention_row(a, row, a.scratch, a.scratch + kAttentionSegment, a.scratch + kAttentionSegment + a.v_stride);
  }
}

template <DType kType>
void encode(const float* x, long n, unsigned char* bytes) {
  const auto count = static_cast<std::size_t>(n);
  encode_row(kType, std::span(x, count), std::as_writable_bytes(std::span(bytes, *row_bytes(kType, count))));
}

template <DType kType>
void decode(const unsigned char* bytes, long n, float* y) {
  const auto count = static_cast<std::size_t>(n);
  decode_row(kType, std::as_bytes(std::span(bytes, *row_bytes(kType, count))), std::span(y, count));
}

void store_key(const float* x, long n, CacheType type, unsigned char* group, int key) {
  if (type == CacheType::kQ8_0) return store_cached_blocks(x, n, encode<DType::kQ8_0>, blocks_of_key(n, group, key));
  store_cached<kPanel>(x, n, type == CacheType::kF16, group + key * cache_element_bytes(type));
}

void store_value(const float* x, long n, CacheType type, unsigned char* page, int token) {
  if (type == CacheType::kQ8_0) {
    return store_cached_blocks(x, n, encode<DType::kQ8_0>, blocks_of_value(n, page, token));
  }
  store_cached<1>(x, n, type == CacheType::kF16, page + token * value_stride_of(n) * cache_element_bytes(type));
}

}  // namespace

constinit const Kernels kReferenceKernels = {
    .name = "reference",
    .linear = linear,
    .fold = fold_row,
    .quantize_row = quantize_row,
    .attention = attention,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .rope = rope_row,
    .silu_mul = silu_mul_row,
    .gelu_mul = gelu_mul_row,
    .silu = silu_row,
    .gelu = gelu_row,
    .relu = relu_row,
    .gelu_erf = gelu_erf_row,
    .gelu_erf_mul = gelu_erf_mul_row,
    .clamped_swiglu = clamped_swiglu_row,
    .scale = scale_row,
    .soft_cap = soft_cap_row,
    .add = add_row,
    .add_scaled = add_scaled_row,
    .softmax = softmax_row,
    .sigmoid = sigmoid_row,
    .store_key = store_key,
    .store_value = store_value,
    .floats_to_halves = encode<DType::kF16>,
    .halves_to_floats = decode<DType::kF16>,
    .floats_to_q8_0 = encode<DType::kQ8_0>,
    .q8_0_to_floats = decode<DType::kQ8_0>,
};

}  // namespace butterfly
