#include "butterfly/model/core/rope_factors.h"

#include "butterfly/model/core/rotary.h"

namespace butterfly {

RopeConfig with_explicit_factors(const RopeConfig& rope) {
  if (rope.scaling != RopeConfig::Scaling::kLlama3) return rope;
  RopeConfig plain = rope;
  plain.scaling = RopeConfig::Scaling::kNone;
  plain.factors.clear();
  const std::vector<double> unscaled = rotary_frequencies(plain);
  const std::vector<double> scaled = rotary_frequencies(rope);
  for (std::size_t i = 0; i < scaled.size(); ++i) plain.factors.push_back(static_cast<float>(unscaled[i] / scaled[i]));
  plain.factor = 1.0f;
  return plain;
}

}  // namespace butterfly
