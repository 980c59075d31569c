#include "bench/sgd/small_mlp.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "butterfly/base/check.h"
#include "butterfly/train/data/permutation.h"

namespace butterfly {
namespace {

constexpr std::size_t kFirstBias = kMlpHidden * kMlpInputs;
constexpr std::size_t kSecondMatrix = kFirstBias + kMlpHidden;
constexpr std::size_t kSecondBias = kSecondMatrix + kMlpClasses * kMlpHidden;
constexpr std::uint64_t kCentreKey = 1, kBatchKey = 2;

/// Uniform in (0, 1).
double uniform(std::uint64_t key, std::uint64_t index) {
  return (static_cast<double>(mixed(key, index) >> 11) + 0.5) * 0x1p-53;
}

/// Standard normal (Box and Muller): the same for the same key and index.
double normal(std::uint64_t key, std::uint64_t index) {
  const double radius = std::sqrt(-2.0 * std::log(uniform(key, 2 * index)));
  return radius * std::cos(2.0 * std::numbers::pi * uniform(key, 2 * index + 1));
}

/// y = W x + b.
template <typename Real, std::size_t kIn, std::size_t kOut>
void affine(const Real* matrix, const Real* bias, const Real* x, std::array<Real, kOut>& y) {
  for (std::size_t row = 0; row < kOut; ++row) {
    Real sum = bias[row];
    for (std::size_t i = 0; i < kIn; ++i) sum += matrix[row * kIn + i] * x[i];
    y[row] = sum;
  }
}

/// The gradients of an affine map, added: of W outer(dy, x), of b dy.
template <typename Real, std::size_t kIn, std::size_t kOut>
void affine_gradient(const std::array<Real, kOut>& dy, const Real* x, Real* matrix, Real* bias) {
  for (std::size_t row = 0; row < kOut; ++row) {
    for (std::size_t i = 0; i < kIn; ++i) matrix[row * kIn + i] += dy[row] * x[i];
    bias[row] += dy[row];
  }
}

/// The loss; logits become the loss's gradient with respect to them.
template <typename Real>
Real cross_entropy(std::array<Real, kMlpClasses>& logits, std::size_t label) {
  const Real largest = *std::ranges::max_element(logits);
  const Real right = logits[label] - largest;
  Real sum = 0;
  for (Real& logit : logits) sum += logit = std::exp(logit - largest);
  for (Real& probability : logits) probability /= sum;
  logits[label] -= 1;
  return std::log(sum) - right;
}

}  // namespace

template <typename Real>
void initialise_mlp(std::span<Real> weights, std::uint64_t seed) {
  BF_CHECK(weights.size() == kMlpParameters);
  std::ranges::fill(weights, Real{0});
  for (std::size_t i = 0; i < kFirstBias; ++i) {
    weights[i] = static_cast<Real>(normal(seed, i) * std::sqrt(2.0 / kMlpInputs));
  }
  for (std::size_t i = kSecondMatrix; i < kSecondBias; ++i) {
    weights[i] = static_cast<Real>(normal(seed, i) * std::sqrt(2.0 / kMlpHidden));
  }
}

template <typename Real>
void make_mlp_batch(std::uint64_t seed, std::uint64_t number, std::size_t samples, MlpBatch<Real>& batch) {
  batch.inputs.resize(samples * kMlpInputs);
  batch.labels.resize(samples);
  const std::uint64_t centres = mixed(seed, kCentreKey);
  const std::uint64_t key = mixed(mixed(seed, kBatchKey), number);
  for (std::size_t sample = 0; sample < samples; ++sample) {
    const std::size_t label = mixed(~key, sample) % kMlpClasses;
    batch.labels[sample] = static_cast<std::int32_t>(label);
    for (std::size_t i = 0; i < kMlpInputs; ++i) {
      const std::size_t place = sample * kMlpInputs + i;
      batch.inputs[place] = static_cast<Real>(normal(centres, label * kMlpInputs + i) + 0.5 * normal(key, place));
    }
  }
}

template <typename Real>
Real mlp_gradient(std::span<const Real> weights, const MlpBatch<Real>& batch, std::span<Real> gradient) {
  BF_CHECK(weights.size() == kMlpParameters && gradient.size() == kMlpParameters);
  BF_CHECK(batch.inputs.size() == batch.labels.size() * kMlpInputs);
  std::ranges::fill(gradient, Real{0});
  const Real share = Real{1} / static_cast<Real>(batch.labels.size());
  Real loss = 0;
  std::array<Real, kMlpHidden> hidden, hidden_gradient;
  std::array<Real, kMlpClasses> logits;
  for (std::size_t sample = 0; sample < batch.labels.size(); ++sample) {
    const Real* x = &batch.inputs[sample * kMlpInputs];
    affine<Real, kMlpInputs>(&weights[0], &weights[kFirstBias], x, hidden);
    for (Real& unit : hidden) unit = std::max(unit, Real{0});
    affine<Real, kMlpHidden>(&weights[kSecondMatrix], &weights[kSecondBias], hidden.data(), logits);
    loss += share * cross_entropy(logits, static_cast<std::size_t>(batch.labels[sample]));
    for (Real& value : logits) value *= share;
    affine_gradient<Real, kMlpHidden>(logits, hidden.data(), &gradient[kSecondMatrix], &gradient[kSecondBias]);
    for (std::size_t unit = 0; unit < kMlpHidden; ++unit) {
      Real sum = 0;
      for (std::size_t row = 0; row < kMlpClasses; ++row) {
        sum += weights[kSecondMatrix + row * kMlpHidden + unit] * logits[row];
      }
      hidden_gradient[unit] = hidden[unit] > 0 ? sum : Real{0};
    }
    affine_gradient<Real, kMlpInputs>(hidden_gradient, x, &gradient[0], &gradient[kFirstBias]);
  }
  return loss;
}

template void initialise_mlp(std::span<float>, std::uint64_t);
template void initialise_mlp(std::span<double>, std::uint64_t);
template void make_mlp_batch(std::uint64_t, std::uint64_t, std::size_t, MlpBatch<float>&);
template void make_mlp_batch(std::uint64_t, std::uint64_t, std::size_t, MlpBatch<double>&);
template float mlp_gradient(std::span<const float>, const MlpBatch<float>&, std::span<float>);
template double mlp_gradient(std::span<const double>, const MlpBatch<double>&, std::span<double>);

}  // namespace butterfly
