// fp32 matmuls with AVX-512, of fp32 or of bf16 as fp32.
#include "butterfly/kernel/gemm/slots_avx512_inl.h"

namespace butterfly {
namespace {

struct MultiplyAdds {
  static constexpr long kDepth = 1;
  static __m512 slots_of_lane(const float* from, long depth) { return _mm512_maskz_loadu_ps(first_lanes(depth), from); }
  static __m512 slots_of_lane(const Bf16* from, long depth) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(depth), from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  template <class Element>
  static __m512 slot_of_lanes(const LanesOfRow<Element>& row) {
    return slots_of_lane(row.from, row.lanes);
  }
  static __m512 multiply_add(__m512 a, __m512 b, __m512 sum) { return _mm512_fmadd_ps(a, b, sum); }
};

using Slots = Avx512Slots<MultiplyAdds>;

}  // namespace

constinit const GemmKernels kAvx512GemmKernels = kernels_of<Slots, float, kAvx512Rows>("avx512", kAvx512Depth);
constinit const GemmKernels kAvx512Bf16GemmKernels = kernels_of<Slots, Bf16, kAvx512Rows>("avx512", kAvx512Depth);

}  // namespace butterfly
