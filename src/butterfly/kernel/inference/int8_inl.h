// Matmuls with int8 weights, written once over a vector of 16 floats, V, and one of 16 sums of products, Ints: a group
// of columns is added up in integers, which may be in any order. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/gathered_rows_inl.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/inference/linear_inl.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"

namespace butterfly {
namespace {

constexpr long kGroupBlocks = kQuantGroup / 32;

/// The products of a group of columns. Few sums are kept apart several times: one would wait for itself.
template <class Ints, int M, int N, bool kFew, RowOrder kOrder>
inline __attribute__((always_inline)) void add_int8_group(const LinearArgs& a, const unsigned char* w, long row,
                                                          long begin, long end, Ints (&dot)[M][N]) {
  constexpr int kApart = M * N >= 8 ? 1 : M * N >= 4 ? 2 : 4;
  Ints apart[kApart][M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    int x_sum = 0;
    for (long block = begin; block < end; ++block) {
      const RowsOfBlock<kOrder, M> x(a, row, block);
      x_sum += sum_of(x.sums[m * x.stride]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kApart; ++i) {
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) apart[i][m][n] = Ints::start(i == 0 ? x_sum : 0);
    }
  }
  for (long block = begin; block < end; ++block) {
    const RowsOfBlock<kOrder, M> x(a, row, block);
    if constexpr (kFew) prefetch_block<PackedInt8::kBlockBytes>(w + PackedInt8::quants_at(block), a.prefetch);
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; ++quad) {
      typename Ints::Quad weights[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        weights[n] = Ints::load(w + n * a.panel_stride + PackedInt8::quants_at(block) + quad * 64);
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        int four;
        __builtin_memcpy(&four, x.quants + m * x.stride * 32 + quad * 4, 4);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) apart[quad % kApart][m][n].add(weights[n], four);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      dot[m][n] = apart[0][m][n];
#pragma GCC unroll 4
      for (int i = 1; i < kApart; ++i) dot[m][n].add(apart[i][m][n]);
    }
  }
}

/// kFew: so few rows that weights do not come as fast as they are computed with.
template <class V, class Ints, int M, int N, bool kFew = M == 1, RowOrder kOrder = RowOrder::kApart>
inline __attribute__((always_inline)) float* int8_slice(const LinearArgs& a, long row, long panel,
                                                        const SliceStep& step, float* top) {
  V acc[M][N];
  clear_sums(acc);
  const unsigned char* w = panel_of(a, panel);
  for (long begin = step.begin / 32; begin < step.end / 32; begin += kGroupBlocks) {
    Ints dot[M][N];
    add_int8_group<Ints, M, N, kFew, kOrder>(a, w, row, begin, min_of(begin + kGroupBlocks, step.end / 32), dot);
    const RowsOfBlock<kOrder, M> x(a, row, begin);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const V x_scale = V::set1(x.scales[m * x.stride]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[m][n] = V::fma(dot[m][n].floats(), x_scale, acc[m][n]);
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    const V w_scale = V::load(reinterpret_cast<const float*>(w + n * a.panel_stride));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m][n] = V::mul(acc[m][n], w_scale);
  }
  return push_sums(acc, step.adds, top);
}

}  // namespace
}  // namespace butterfly
