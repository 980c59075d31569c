// A square of 16 x 16 elements of 32 bits, transposed in AVX-512 registers. For files compiled with AVX-512 F and DQ.
#pragma once

#include <immintrin.h>

namespace butterfly {
namespace {

inline __m512 unpack_low_pairs(__m512 a, __m512 b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
inline __m512 unpack_high_pairs(__m512 a, __m512 b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

/// Row i of `rows` becomes element i of each.
inline void transpose_square(__m512 (&rows)[16]) {
  __m512 b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  __m512 a[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = unpack_low_pairs(b[i], b[i + 2]);
    a[i + 1] = unpack_high_pairs(b[i], b[i + 2]);
    a[i + 2] = unpack_low_pairs(b[i + 1], b[i + 3]);
    a[i + 3] = unpack_high_pairs(b[i + 1], b[i + 3]);
  }
  // Quarter q of a[4 i + c] is now column 4 q + c of rows 4 i to 4 i + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 even_upper = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88);
    const __m512 odd_upper = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
    const __m512 even_lower = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
    const __m512 odd_lower = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
    rows[c] = _mm512_shuffle_f32x4(even_upper, even_lower, 0x88);
    rows[4 + c] = _mm512_shuffle_f32x4(odd_upper, odd_lower, 0x88);
    rows[8 + c] = _mm512_shuffle_f32x4(even_upper, even_lower, 0xdd);
    rows[12 + c] = _mm512_shuffle_f32x4(odd_upper, odd_lower, 0xdd);
  }
}

}  // namespace
}  // namespace butterfly
