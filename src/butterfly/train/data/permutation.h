// A shuffle without a table: the place of each index in a random order of [0, size), in constant time. A Feistel
// transformer over the smallest even number of bits that holds `size`, walked until the result is in range (at most 4
// rounds on the mean). Plain values, thread-safe.
#pragma once

#include <cstdint>

namespace butterfly {

/// Bits that depend on all bits of both: the finaliser of SplitMix64 (https://doi.org/10.1145/2714064.2660195).
constexpr std::uint64_t mixed(std::uint64_t key, std::uint64_t value) {
  std::uint64_t z = value + key * 0x9E3779B97F4A7C15u + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

class Permutation {
 public:
  /// `size` is at least 1.
  constexpr Permutation(std::uint64_t size, std::uint64_t key) : size_(size), key_(mixed(key, size)) {
    while (half_ < 31 && (std::uint64_t{1} << (2 * half_)) < size) ++half_;
  }

  /// `index` in [0, size); different ones give different results in [0, size).
  constexpr std::uint64_t operator()(std::uint64_t index) const {
    do index = rounds(index);
    while (index >= size_);
    return index;
  }

 private:
  constexpr std::uint64_t rounds(std::uint64_t value) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
    std::uint64_t left = value >> half_, right = value & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t next = left ^ (mixed(key_ + round, right) & mask);
      left = right;
      right = next;
    }
    return (left << half_) | right;
  }

  std::uint64_t size_;
  std::uint64_t key_;
  int half_ = 1;  // bits of each half
};

}  // namespace butterfly
