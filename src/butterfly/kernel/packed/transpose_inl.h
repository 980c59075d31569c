// Squares of elements whose rows become columns, in registers of 16 bytes, which every CPU of ours has. Internal
// linkage.
#pragma once

#include <cstdint>

namespace butterfly {
namespace {

/// A register of 16 bytes, and two of them with their elements in turns.
using Words = std::uint32_t __attribute__((vector_size(16)));
using Halves = std::uint16_t __attribute__((vector_size(16)));
Words first_of_both(Words a, Words b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
Words last_of_both(Words a, Words b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
Halves first_of_both(Halves a, Halves b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
Halves last_of_both(Halves a, Halves b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

template <typename Vector>
constexpr int kSquareSide = sizeof(Vector) / sizeof(Vector{}[0]);

/// Rows become columns: each round brings together what is half of them apart.
template <typename Vector, int kCount = kSquareSide<Vector>>
inline __attribute__((always_inline)) void transpose(Vector (&rows)[kCount]) {
  for (int apart = 1; apart < kCount; apart *= 2) {
    Vector turned[kCount];
    for (int i = 0; i < kCount / 2; ++i) {
      turned[2 * i] = first_of_both(rows[i], rows[i + kCount / 2]);
      turned[2 * i + 1] = last_of_both(rows[i], rows[i + kCount / 2]);
    }
    for (int i = 0; i < kCount; ++i) rows[i] = turned[i];
  }
}

}  // namespace
}  // namespace butterfly
