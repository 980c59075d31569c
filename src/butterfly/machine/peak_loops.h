// Inner loops that do as much of one thing as an instruction set can, for machine/peaks.cc to time. A plain header:
// it is included by files compiled for one instruction set, so nothing here may become code.
#pragma once

#include <cstddef>

namespace butterfly {

struct PeakLoops {
  /// Loads every byte; returns something that depends on them all. `bytes` is a multiple of 512.
  unsigned long long (*read)(const void* data, std::size_t bytes);

  /// fp32 multiply-adds in independent chains; `scale` below 1 keeps the numbers finite.
  float (*multiply_add)(long iterations, float scale);
  double flops_per_iteration;

  /// Dot products of bytes into 32 bits; null where the set has no instruction for it.
  int (*dot_bytes)(long iterations, int seed);
  double byte_ops_per_iteration;
};

const PeakLoops& peak_loops_reference();
#if defined(__x86_64__)
const PeakLoops& peak_loops_avx2();
const PeakLoops& peak_loops_avx512();
/// AVX-512's, but for dot products of bytes.
const PeakLoops& peak_loops_amx();
#endif

}  // namespace butterfly
