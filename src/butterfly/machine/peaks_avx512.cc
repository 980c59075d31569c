// Compiled with AVX-512 F, BW, DQ, VL and VNNI: everything but the table is static.
#if defined(__x86_64__)
#include <immintrin.h>

#include "butterfly/machine/peak_loops.h"

namespace butterfly {
namespace {

unsigned long long read(const void* data, std::size_t bytes) {
  const auto* lines = static_cast<const char*>(data);
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (std::size_t i = 0; i < bytes; i += 512) {
    a = _mm512_add_epi64(a, _mm512_load_si512(lines + i));
    b = _mm512_add_epi64(b, _mm512_load_si512(lines + i + 64));
    c = _mm512_add_epi64(c, _mm512_load_si512(lines + i + 128));
    d = _mm512_add_epi64(d, _mm512_load_si512(lines + i + 192));
    a = _mm512_add_epi64(a, _mm512_load_si512(lines + i + 256));
    b = _mm512_add_epi64(b, _mm512_load_si512(lines + i + 320));
    c = _mm512_add_epi64(c, _mm512_load_si512(lines + i + 384));
    d = _mm512_add_epi64(d, _mm512_load_si512(lines + i + 448));
  }
  a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
  // By memory: g++ 12 warns about its own _mm512_reduce_add_*.
  alignas(64) unsigned long long sums[8];
  _mm512_store_si512(sums, a);
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

// Twelve chains hide the latency of two multiply-adders; named, since arrays of registers get spilled.
float multiply_add(long iterations, float scale) {
  const __m512 m = _mm512_set1_ps(scale);
  __m512 a = m, b = m, c = m, d = m, e = m, f = m, g = m, h = m, i = m, j = m, k = m, l = m;
  for (long n = 0; n < iterations; ++n) {
    a = _mm512_fmadd_ps(a, m, m);
    b = _mm512_fmadd_ps(b, m, m);
    c = _mm512_fmadd_ps(c, m, m);
    d = _mm512_fmadd_ps(d, m, m);
    e = _mm512_fmadd_ps(e, m, m);
    f = _mm512_fmadd_ps(f, m, m);
    g = _mm512_fmadd_ps(g, m, m);
    h = _mm512_fmadd_ps(h, m, m);
    i = _mm512_fmadd_ps(i, m, m);
    j = _mm512_fmadd_ps(j, m, m);
    k = _mm512_fmadd_ps(k, m, m);
    l = _mm512_fmadd_ps(l, m, m);
    // The chains start alike: without this the compiler would compute one of them.
    asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f));
    asm volatile("" : "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l));
  }
  a = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)), _mm512_add_ps(e, f));
  g = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(g, h), _mm512_add_ps(i, j)), _mm512_add_ps(k, l));
  return _mm512_cvtss_f32(_mm512_add_ps(a, g));
}

int dot_bytes(long iterations, int seed) {
  const __m512i x = _mm512_set1_epi32(seed);
  __m512i a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x, k = x, l = x;
  for (long n = 0; n < iterations; ++n) {
    a = _mm512_dpbusd_epi32(a, x, x);
    b = _mm512_dpbusd_epi32(b, x, x);
    c = _mm512_dpbusd_epi32(c, x, x);
    d = _mm512_dpbusd_epi32(d, x, x);
    e = _mm512_dpbusd_epi32(e, x, x);
    f = _mm512_dpbusd_epi32(f, x, x);
    g = _mm512_dpbusd_epi32(g, x, x);
    h = _mm512_dpbusd_epi32(h, x, x);
    i = _mm512_dpbusd_epi32(i, x, x);
    j = _mm512_dpbusd_epi32(j, x, x);
    k = _mm512_dpbusd_epi32(k, x, x);
    l = _mm512_dpbusd_epi32(l, x, x);
    asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f));
    asm volatile("" : "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l));
  }
  a = _mm512_add_epi32(_mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d)), _mm512_add_epi32(e, f));
  g = _mm512_add_epi32(_mm512_add_epi32(_mm512_add_epi32(g, h), _mm512_add_epi32(i, j)), _mm512_add_epi32(k, l));
  return _mm512_cvtsi512_si32(_mm512_add_epi32(a, g));
}

}  // namespace

const PeakLoops& peak_loops_avx512() {
  static constexpr PeakLoops kLoops{.read = read,
                                    .multiply_add = multiply_add,
                                    .flops_per_iteration = 2.0 * 16 * 12,
                                    .dot_bytes = dot_bytes,
                                    .byte_ops_per_iteration = 2.0 * 64 * 12};
  return kLoops;
}

}  // namespace butterfly
#endif
