#include <cstdint>

#include "butterfly/machine/peak_loops.h"

namespace butterfly {
namespace {

unsigned long long read(const void* data, std::size_t bytes) {
  const auto* words = static_cast<const std::uint64_t*>(data);
  std::uint64_t a = 0, b = 0, c = 0, d = 0;
  for (std::size_t i = 0; i < bytes / sizeof(std::uint64_t); i += 4) {
    a += words[i];
    b += words[i + 1];
    c += words[i + 2];
    d += words[i + 3];
  }
  return a + b + c + d;
}

float multiply_add(long iterations, float scale) {
  constexpr int kChains = 32;  // the compiler makes vectors of the baseline out of them
  float sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = static_cast<float>(i);
  for (long n = 0; n < iterations; ++n) {
    for (float& sum : sums) sum = sum * scale + scale;
  }
  float total = 0.0f;
  for (float sum : sums) total += sum;
  return total;
}

}  // namespace

const PeakLoops& peak_loops_reference() {
  static constexpr PeakLoops kLoops{.read = read,
                                    .multiply_add = multiply_add,
                                    .flops_per_iteration = 2.0 * 32,
                                    .dot_bytes = nullptr,
                                    .byte_ops_per_iteration = 0.0};
  return kLoops;
}

}  // namespace butterfly
