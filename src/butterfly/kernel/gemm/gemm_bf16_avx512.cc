// bf16 matmuls with AVX-512's dot products of pairs. Subnormals count as zeros there.
#include "butterfly/kernel/gemm/slots_avx512_inl.h"

namespace butterfly {
namespace {

struct DotProducts {
  static constexpr long kDepth = 2;
  static __m512 slots_of_lane(const Bf16* from, long depth) {
    const __mmask32 there = depth >= 32 ? ~__mmask32{0} : (__mmask32{1} << (depth > 0 ? depth : 0)) - 1;
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(there, from));
  }
  static __m512 slot_of_lanes(const LanesOfRow<Bf16>& row) {
    const __mmask16 lanes = first_lanes(row.lanes);
    const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, row.from));
    const __mmask16 in_next = row.depth > 1 ? lanes : __mmask16{0};
    const __m512i odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(in_next, row.from + row.stride));
    return _mm512_castsi512_ps(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
  }
  static __m512 multiply_add(__m512 a, __m512 b, __m512 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

}  // namespace

constinit const GemmKernels kAvx512DotGemmKernels =
    kernels_of<Avx512Slots<DotProducts>, Bf16, kAvx512Rows>("avx512_bf16", kAvx512Depth);

}  // namespace butterfly
