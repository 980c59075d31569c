// What parity tests compare: values that are the same in every run, and equality to the bit.
#pragma once

#include <cstring>
#include <random>
#include <vector>

namespace butterfly {

inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace butterfly
