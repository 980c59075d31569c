// Compiled with -mavx2 -mfma: everything but the table is static.
#if defined(__x86_64__)
#include <immintrin.h>

#include "butterfly/machine/peak_loops.h"

namespace butterfly {
namespace {

unsigned long long read(const void* data, std::size_t bytes) {
  const auto* lines = static_cast<const __m256i*>(data);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (std::size_t i = 0; i < bytes / sizeof(__m256i); i += 8) {
    a = _mm256_add_epi64(a, _mm256_load_si256(lines + i));
    b = _mm256_add_epi64(b, _mm256_load_si256(lines + i + 1));
    c = _mm256_add_epi64(c, _mm256_load_si256(lines + i + 2));
    d = _mm256_add_epi64(d, _mm256_load_si256(lines + i + 3));
    a = _mm256_add_epi64(a, _mm256_load_si256(lines + i + 4));
    b = _mm256_add_epi64(b, _mm256_load_si256(lines + i + 5));
    c = _mm256_add_epi64(c, _mm256_load_si256(lines + i + 6));
    d = _mm256_add_epi64(d, _mm256_load_si256(lines + i + 7));
  }
  a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
  alignas(32) unsigned long long sums[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), a);
  return sums[0] + sums[1] + sums[2] + sums[3];
}

// Twelve chains hide the latency of two multiply-adders; named, since arrays of registers get spilled.
float multiply_add(long iterations, float scale) {
  const __m256 m = _mm256_set1_ps(scale);
  __m256 a = m, b = m, c = m, d = m, e = m, f = m, g = m, h = m, i = m, j = m, k = m, l = m;
  for (long n = 0; n < iterations; ++n) {
    a = _mm256_fmadd_ps(a, m, m);
    b = _mm256_fmadd_ps(b, m, m);
    c = _mm256_fmadd_ps(c, m, m);
    d = _mm256_fmadd_ps(d, m, m);
    e = _mm256_fmadd_ps(e, m, m);
    f = _mm256_fmadd_ps(f, m, m);
    g = _mm256_fmadd_ps(g, m, m);
    h = _mm256_fmadd_ps(h, m, m);
    i = _mm256_fmadd_ps(i, m, m);
    j = _mm256_fmadd_ps(j, m, m);
    k = _mm256_fmadd_ps(k, m, m);
    l = _mm256_fmadd_ps(l, m, m);
    // The chains start alike: without this the compiler would compute one of them.
    asm volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f));
    asm volatile("" : "+x"(g), "+x"(h), "+x"(i), "+x"(j), "+x"(k), "+x"(l));
  }
  a = _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)), _mm256_add_ps(e, f));
  g = _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(g, h), _mm256_add_ps(i, j)), _mm256_add_ps(k, l));
  return _mm256_cvtss_f32(_mm256_add_ps(a, g));
}

int dot_bytes(long iterations, int seed) {
  __m256i x = _mm256_set1_epi8(static_cast<char>(seed & 63));
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i a = x, b = x, c = x, d = x, e = x, f = x;
  const auto step = [&](__m256i& sum) {
    asm volatile("" : "+x"(x));  // else one product would serve all sums
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, x), ones));
  };
  for (long n = 0; n < iterations; ++n) {
    step(a);
    step(b);
    step(c);
    step(d);
    step(e);
    step(f);
  }
  a = _mm256_add_epi32(_mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d)), _mm256_add_epi32(e, f));
  return _mm256_cvtsi256_si32(a);
}

}  // namespace

const PeakLoops& peak_loops_avx2() {
  static constexpr PeakLoops kLoops{.read = read,
                                    .multiply_add = multiply_add,
                                    .flops_per_iteration = 2.0 * 8 * 12,
                                    .dot_bytes = dot_bytes,
                                    .byte_ops_per_iteration = 2.0 * 32 * 6};
  return kLoops;
}

}  // namespace butterfly
#endif
