// The small transformer of `butterfly bench sgd`: 10 inputs, 20 hidden units with ReLU, 10 classes, softmax
// cross-entropy; and data that can be learned. So small that a step costs what its exchange of gradients costs. Plain
// functions, thread-safe. float and double are there.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace butterfly {

inline constexpr std::size_t kMlpInputs = 10, kMlpHidden = 20, kMlpClasses = 10;

/// In the order W1 [kMlpHidden, kMlpInputs], b1, W2 [kMlpClasses, kMlpHidden], b2.
inline constexpr std::size_t kMlpParameters = kMlpHidden * (kMlpInputs + 1) + kMlpClasses * (kMlpHidden + 1);
static_assert(kMlpParameters == 430);

template <typename Real>
struct MlpBatch {
  std::vector<Real> inputs{};          // [batch, kMlpInputs]
  std::vector<std::int32_t> labels{};  // [batch], in [0, kMlpClasses)
};

/// He's first weights, biases 0: a function of the seed. `weights` has kMlpParameters elements.
template <typename Real>
void initialise_mlp(std::span<Real> weights, std::uint64_t seed);

/// Batch `number` of an endless set: each class is a point of its own (normal, deviation 1 in each coordinate), and a
/// sample is its class's point plus normal noise of deviation 0.5. A function of the seed and the number.
template <typename Real>
void make_mlp_batch(std::uint64_t seed, std::uint64_t number, std::size_t samples, MlpBatch<Real>& batch);

/// The mean loss of the batch; its gradient with respect to the weights replaces `gradient`.
template <typename Real>
Real mlp_gradient(std::span<const Real> weights, const MlpBatch<Real>& batch, std::span<Real> gradient);

}  // namespace butterfly
