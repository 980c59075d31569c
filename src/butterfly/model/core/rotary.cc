#include "butterfly/model/core/rotary.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace butterfly {
namespace exact {

double log(double x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716.
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > std::numbers::sqrt2) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double sum = 0.0;
  for (int k = 25; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return exponent * std::numbers::ln2 + 2.0 * s * sum;
}

// ln 2 in two parts keeps r exact.
constexpr double kLogOfTwoHigh = 0x1.62e42feep-1;
constexpr double kLogOfTwoLow = 0x1.a39ef35793c76p-33;

double exp(double x) {
  // x = n ln 2 + r, |r| <= ln(2) / 2; Taylor to r^14 is below the last place.
  const double n = std::floor(x * (1.0 / std::numbers::ln2) + 0.5);
  const double r = (x - n * kLogOfTwoHigh) - n * kLogOfTwoLow;
  double sum = 1.0;
  for (int k = 14; k >= 1; --k) sum = 1.0 + sum * r / k;
  return sum * std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023) << 52);
}

void exp(std::span<double> x) {
  // The steps of exp() for several at once: a division is waited for by one of them alone.
  constexpr std::size_t kTogether = 16;
  for (; x.size() >= kTogether; x = x.subspan(kTogether)) {
    std::array<double, kTogether> r, sum, power;
    for (std::size_t i = 0; i < kTogether; ++i) {
      const double scaled = x[i] * (1.0 / std::numbers::ln2) + 0.5;
      const auto whole = static_cast<std::int32_t>(scaled);
      const std::int32_t n = whole - (static_cast<double>(whole) > scaled ? 1 : 0);
      r[i] = (x[i] - n * kLogOfTwoHigh) - n * kLogOfTwoLow;
      power[i] = std::bit_cast<double>(static_cast<std::uint64_t>(n + 1023) << 52);
      sum[i] = 1.0;
    }
    for (int k = 14; k >= 1; --k) {
      for (std::size_t i = 0; i < kTogether; ++i) sum[i] = 1.0 + sum[i] * r[i] / k;
    }
    for (std::size_t i = 0; i < kTogether; ++i) x[i] = sum[i] * power[i];
  }
  for (double& value : x) value = exp(value);
}

void sincos(double x, double* sin, double* cos) {
  // x = n pi/2 + r, |r| <= pi/4 (Cody and Waite): the parts of pi/2 have 29 bits, so n times each is exact for n <
  // 2^24.
  constexpr double kHalfPi1 = 0x1.921fb54p+0;
  constexpr double kHalfPi2 = 0x1.10b4610p-30;
  constexpr double kHalfPi3 = 0x1.a62633145c07p-58;
  const double n = std::floor(x * (2.0 / std::numbers::pi) + 0.5);
  const double r = ((x - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3;
  const double square = r * r;
  double s = 1.0;
  double c = 1.0;
  for (int k = 18; k >= 2; k -= 2) {
    s = 1.0 - s * square / (k * (k + 1.0));
    c = 1.0 - c * square / (k * (k - 1.0));
  }
  s *= r;
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0:
      *sin = s, *cos = c;
      break;
    case 1:
      *sin = c, *cos = -s;
      break;
    case 2:
      *sin = -s, *cos = -c;
      break;
    default:
      *sin = -c, *cos = s;
      break;
  }
}

}  // namespace exact

namespace {

double scale_llama3(double frequency, const RopeConfig& config) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double longest = static_cast<double>(config.original_context) / static_cast<double>(config.low_freq_factor);
  const double shortest = static_cast<double>(config.original_context) / static_cast<double>(config.high_freq_factor);
  const double factor = static_cast<double>(config.factor);
  if (wavelength < shortest) return frequency;
  if (wavelength > longest) return frequency / factor;
  const double low = static_cast<double>(config.low_freq_factor);
  const double high = static_cast<double>(config.high_freq_factor);
  const double smooth = (config.original_context / wavelength - low) / (high - low);
  return (1.0 - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

std::vector<double> rotary_frequencies(const RopeConfig& config) {
  std::vector<double> frequencies;
  const double log_base = exact::log(static_cast<double>(config.base));
  for (int i = 0; i < config.dim / 2; ++i) {
    double frequency = exact::exp(-2.0 * i / config.dim * log_base);
    if (config.scaling == RopeConfig::Scaling::kLinear) frequency /= static_cast<double>(config.factor);
    if (config.scaling == RopeConfig::Scaling::kLlama3) frequency = scale_llama3(frequency, config);
    if (!config.factors.empty()) frequency /= static_cast<double>(config.factors[static_cast<std::size_t>(i)]);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

std::vector<double> rotary_frequencies(const ModelConfig& config) {
  if (config.position != PositionKind::kRope) return {};
  std::vector<double> frequencies = rotary_frequencies(config.rope);
  if (!config.has_local_rope()) return frequencies;
  const std::vector<double> local = rotary_frequencies(config.local_rope);
  frequencies.insert(frequencies.end(), local.begin(), local.end());
  return frequencies;
}

void rotary_angles(std::span<const double> frequencies, std::int64_t position, std::span<float> cos,
                   std::span<float> sin) {
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double s = 0.0;
    double c = 0.0;
    exact::sincos(static_cast<double>(position) * frequencies[i], &s, &c);
    cos[i] = static_cast<float>(c);
    sin[i] = static_cast<float>(s);
  }
}

}  // namespace butterfly
