#include "butterfly/model/core/rope_factors.h"

#include <algorithm>
#include <cmath>
#include <numbers>

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

Result<RopeConfig> with_yarn(const RopeConfig& rope, const YarnScaling& yarn) {
  constexpr int kDimMax = 1 << 16;
  const bool betas = std::isfinite(yarn.beta_fast) && std::isfinite(yarn.beta_slow) && yarn.beta_slow > 0 &&
                     yarn.beta_fast > yarn.beta_slow;
  if (!betas || !std::isfinite(yarn.factor) || yarn.factor <= 0 || yarn.original_context < 1 || rope.dim > kDimMax) {
    return make_error(ErrorCode::kBadData,
                      "yarn rope scaling by {} over {} tokens between {} and {} turns, expected positive numbers, the "
                      "second number of turns below the first, and up to {} rotated elements, not {}",
                      yarn.factor, yarn.original_context, yarn.beta_fast, yarn.beta_slow, kDimMax, rope.dim);
  }
  const double log_base = exact::log(std::max(static_cast<double>(rope.base), 1.0000001));
  const auto pair_that_turns = [&](float turns) {
    const double length = yarn.original_context / (static_cast<double>(turns) * 2.0 * std::numbers::pi);
    return rope.dim * exact::log(length) / (2.0 * log_base);
  };
  double low = pair_that_turns(yarn.beta_fast);
  double high = pair_that_turns(yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.dim - 1));
  if (low == high) high += 0.001;
  RopeConfig scaled = rope;
  scaled.yarn = yarn;
  scaled.factors.clear();
  for (int i = 0; i < rope.dim / 2; ++i) {
    const double stretched = std::clamp((i - low) / (high - low), 0.0, 1.0);
    scaled.factors.push_back(
        static_cast<float>(1.0 / (stretched / static_cast<double>(yarn.factor) + (1.0 - stretched))));
  }
  return scaled;
}

}  // namespace butterfly
