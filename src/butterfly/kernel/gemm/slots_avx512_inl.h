// A vector of 16 slots of 4 bytes for gemm_panels_inl.h; Arithmetic says what a slot holds and how slots are
// multiplied. For files compiled with AVX-512 F, BW, DQ and VL.
#pragma once

#include <immintrin.h>

#include "butterfly/kernel/gemm/gemm_panels_inl.h"
#include "butterfly/kernel/gemm/transpose_avx512_inl.h"

namespace butterfly {
namespace {

constexpr long kAvx512Rows = 14;  // x 32 columns: 28 sums, 2 operands and 1 broadcast of 32 registers
// A panel of B, 64 KiB of fp32, stays in the second cache beside a tile's part of A.
constexpr long kAvx512Depth = 512;

inline __mmask16 first_lanes(long n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << (n > 0 ? n : 0)) - 1);
}

template <class Arithmetic>
struct Avx512Slots {
  using Mask = __mmask16;
  static constexpr long kFloats = 16;
  static constexpr long kDepth = Arithmetic::kDepth;
  __m512 v;

  static Mask first(long n) { return first_lanes(n); }
  static Avx512Slots zero() { return {_mm512_setzero_ps()}; }
  static Avx512Slots set1(float x) { return {_mm512_set1_ps(x)}; }
  static Avx512Slots load(const float* aligned) { return {_mm512_load_ps(aligned)}; }
  static Avx512Slots load(Mask there, const float* from) { return {_mm512_maskz_loadu_ps(there, from)}; }
  template <class Element>
  static Avx512Slots slots_of_lane(const Element* from, long depth) {
    return {Arithmetic::slots_of_lane(from, depth)};
  }
  template <class Element>
  static Avx512Slots slot_of_lanes(const LanesOfRow<Element>& row) {
    return {Arithmetic::slot_of_lanes(row)};
  }
  static void store(Mask wanted, float* to, Avx512Slots x) { _mm512_mask_storeu_ps(to, wanted, x.v); }
  static Avx512Slots add(Avx512Slots a, Avx512Slots b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Avx512Slots multiply_add(Avx512Slots a, Avx512Slots b, Avx512Slots sum) {
    return {Arithmetic::multiply_add(a.v, b.v, sum.v)};
  }
  static void transpose(Avx512Slots (&rows)[kFloats]) {
    __m512 square[kFloats];
#pragma GCC unroll 16
    for (int i = 0; i < kFloats; ++i) square[i] = rows[i].v;
    transpose_square(square);
#pragma GCC unroll 16
    for (int i = 0; i < kFloats; ++i) rows[i].v = square[i];
  }
};

}  // namespace
}  // namespace butterfly
