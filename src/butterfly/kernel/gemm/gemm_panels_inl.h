// Matmuls written once over a vector of floats, V: kRows rows and two vectors of columns of C stay in registers while
// both panels are read once. A panel holds slots of 4 bytes for V::kDepth elements of the reduced dimension each: an
// fp32 number, a bf16 number as fp32, whose products are exact there, or a pair of bf16 numbers. Internal linkage
// throughout: each instruction set includes it with its own flags.
#pragma once

#include "butterfly/kernel/gemm/gemm_ahead_inl.h"
#include "butterfly/kernel/gemm/gemm_kernels.h"

namespace butterfly {
namespace {

using Bf16 = unsigned short;

/// Some lanes of a stored row that has an element of each, and of the rows after it.
template <class Element>
struct LanesOfRow {
  const Element* from;
  long stride;
  long lanes;  // that there are, perhaps more than a vector has
  long depth;  // rows that there are
};

/// Lanes [lane, lane + width) of stored rows of a lane each -> [slots][width], a square of lanes and slots at a time.
template <class V, class Element, long kWidth>
void pack_lanes_apart(const PanelSource& s, long lane, float* panel) {
  const auto* from = static_cast<const Element*>(s.from) + lane * s.stride;
  const long lanes = s.lanes - lane;
  const long slots = (s.depth + V::kDepth - 1) / V::kDepth;
  for (long first_lane = 0; first_lane < kWidth; first_lane += V::kFloats) {
    const auto wanted = V::first(kWidth - first_lane);
    for (long slot = 0; slot < slots; slot += V::kFloats) {
      const long k = slot * V::kDepth;
      V square[V::kFloats];
#pragma GCC unroll 16
      for (long i = 0; i < V::kFloats; ++i) {
        const Element* row = from + (first_lane + i) * s.stride + k;
        square[i] = first_lane + i < lanes ? V::slots_of_lane(row, s.depth - k) : V::zero();
      }
      V::transpose(square);
      float* to = panel + slot * kWidth + first_lane;
      if (slots - slot >= V::kFloats) {
#pragma GCC unroll 16
        for (long i = 0; i < V::kFloats; ++i) V::store(wanted, to + i * kWidth, square[i]);
      } else {
        for (long i = 0; i < slots - slot; ++i) V::store(wanted, to + i * kWidth, square[i]);
      }
    }
  }
}

/// Stored rows of an element of each lane -> panels of [slots][width]: some rows at a time for all panels, as few rows
/// are a stream to memory each, and many, at distances of a power of two, one set of the cache.
template <class V, class Element, long kWidth>
void pack_lanes_together(const PanelSource& s, long panel_floats, float* panels) {
  constexpr long kRowsAtOnce = 8;
  const auto* from = static_cast<const Element*>(s.from);
  for (long k = 0; k < s.depth; k += kRowsAtOnce) {
    const long end = s.depth - k < kRowsAtOnce ? s.depth : k + kRowsAtOnce;
    for (long lane = 0; lane < s.lanes; lane += kWidth) {
      float* to = panels + lane / kWidth * panel_floats + k / V::kDepth * kWidth;
      for (long i = k; i < end; i += V::kDepth, to += kWidth) {
        const Element* row = from + i * s.stride + lane;
#pragma GCC unroll 2
        for (long part = 0; part < kWidth; part += V::kFloats) {
          const V x = V::slot_of_lanes(LanesOfRow<Element>{row + part, s.stride, s.lanes - lane - part, s.depth - i});
          for (long ahead = 0; ahead < V::kDepth; ++ahead) prefetch(row + part + (kRowsAtOnce + ahead) * s.stride);
          V::store(V::first(kWidth - part), to + part, x);
        }
      }
    }
  }
}

template <class V, class Element, long kWidth>
void pack(const PanelSource& s, long panel_stride, void* to) {
  auto* panels = static_cast<float*>(to);
  const long panel_floats = panel_stride / static_cast<long>(sizeof(float));
  if (s.lanes_together) return pack_lanes_together<V, Element, kWidth>(s, panel_floats, panels);
  for (long lane = 0; lane < s.lanes; lane += kWidth) {
    pack_lanes_apart<V, Element, kWidth>(s, lane, panels + lane / kWidth * panel_floats);
  }
}

/// C[kHeight, n] from one panel of each.
template <class V, long kRows, int kHeight>
void multiply_panels(const PanelMatmul& p, const float* a, float* c, LinesAhead& ahead) {
  constexpr long kCols = 2 * V::kFloats;
  constexpr long kStep = 16;    // slots between fetches of C and of what lies ahead
  constexpr long kAAhead = 16;  // slots: panels are larger than the first cache
  constexpr long kBAhead = 8;
  constexpr long kLineFloats = 16;
  const auto* b = static_cast<const float*>(p.b);
  const long slots = p.depth / V::kDepth;
  V sum[kHeight][2];
#pragma GCC unroll 14
  for (int i = 0; i < kHeight; ++i) sum[i][0] = sum[i][1] = V::zero();
  for (long begin = 0; begin < slots; begin += kStep) {
    const long end = begin + kStep < slots ? begin + kStep : slots;
    // A line or two at a time: all of C's at once would keep what the sums wait for from the cache.
    if (const long row = begin / kStep; row < kHeight) {
#pragma GCC unroll 2
      for (long at = 0; at < kCols; at += kLineFloats) prefetch(c + row * p.c_stride + at);
    }
    ahead.fetch();
    for (long k = begin; k < end; ++k) {
      const V left = V::load(b + k * kCols);
      const V right = V::load(b + k * kCols + V::kFloats);
      _mm_prefetch(reinterpret_cast<const char*>(a + (k + kAAhead) * kRows), _MM_HINT_T0);
#pragma GCC unroll 2
      for (long at = 0; at < kCols; at += kLineFloats) {
        _mm_prefetch(reinterpret_cast<const char*>(b + (k + kBAhead) * kCols + at), _MM_HINT_T0);
      }
#pragma GCC unroll 14
      for (int i = 0; i < kHeight; ++i) {
        const V x = V::set1(a[k * kRows + i]);
        sum[i][0] = V::multiply_add(x, left, sum[i][0]);
        sum[i][1] = V::multiply_add(x, right, sum[i][1]);
      }
    }
  }
  const auto in_left = V::first(p.n);
  const auto in_right = V::first(p.n - V::kFloats);
  if (p.bias != nullptr) {
    const V left = V::load(in_left, p.bias);
    const V right = V::load(in_right, p.bias + V::kFloats);
#pragma GCC unroll 14
    for (int i = 0; i < kHeight; ++i) {
      sum[i][0] = V::add(sum[i][0], left);
      sum[i][1] = V::add(sum[i][1], right);
    }
  }
  if (p.add) {
#pragma GCC unroll 14
    for (int i = 0; i < kHeight; ++i) {
      sum[i][0] = V::add(sum[i][0], V::load(in_left, c + i * p.c_stride));
      sum[i][1] = V::add(sum[i][1], V::load(in_right, c + i * p.c_stride + V::kFloats));
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < kHeight; ++i) {
    V::store(in_left, c + i * p.c_stride, sum[i][0]);
    V::store(in_right, c + i * p.c_stride + V::kFloats, sum[i][1]);
  }
}

/// The last panel of A, of fewer rows than others.
template <class V, long kRows, int kHeight = kRows - 1>
void multiply_last(const PanelMatmul& p, const float* a, float* c, long rows, LinesAhead& ahead) {
  if constexpr (kHeight > 0) {
    if (rows == kHeight) return multiply_panels<V, kRows, kHeight>(p, a, c, ahead);
    multiply_last<V, kRows, kHeight - 1>(p, a, c, rows, ahead);
  }
}

template <class V, long kRows>
void multiply(const PanelMatmul& p) {
  const char* a = static_cast<const char*>(p.a);
  LinesAhead ahead(p.ahead, (p.m + kRows - 1) / kRows * ((p.depth / V::kDepth + 15) / 16));
  long row = 0;
  for (; row + kRows <= p.m; row += kRows, a += p.a_panel) {
    multiply_panels<V, kRows, kRows>(p, reinterpret_cast<const float*>(a), p.c + row * p.c_stride, ahead);
  }
  multiply_last<V, kRows>(p, reinterpret_cast<const float*>(a), p.c + row * p.c_stride, p.m - row, ahead);
}

/// Of sources of these elements.
template <class V, class Element, long kRows>
constexpr GemmKernels kernels_of(const char* name, long depth) {
  constexpr long kCols = 2 * V::kFloats;
  return {.name = name,
          .source_bytes = sizeof(Element),
          .panel_bytes = sizeof(float) / V::kDepth,
          .rows = kRows,
          .cols = kCols,
          .depth = depth,
          .depth_step = V::kDepth,
          .pack_rows = pack<V, Element, kRows>,
          .pack_cols = pack<V, Element, kCols>,
          .multiply = multiply<V, kRows>};
}

}  // namespace
}  // namespace butterfly
