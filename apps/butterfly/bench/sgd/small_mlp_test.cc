#include "bench/sgd/small_mlp.h"

#include <gtest/gtest.h>

#include <cmath>

namespace butterfly {
namespace {

TEST(SmallMlpTest, EveryGradientIsTheFiniteDifferenceOfTheLoss) {
  std::vector<double> weights(kMlpParameters), gradient(kMlpParameters), unused(kMlpParameters);
  initialise_mlp(std::span(weights), 3);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += 0.01 * std::sin(static_cast<double>(i));  // biases too
  MlpBatch<double> batch;
  make_mlp_batch(5, 7, 16, batch);
  mlp_gradient<double>(weights, batch, gradient);
  constexpr double kStep = 1e-6;
  int moving = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double before = weights[i];
    weights[i] = before + kStep;
    const double above = mlp_gradient<double>(weights, batch, unused);
    weights[i] = before - kStep;
    const double below = mlp_gradient<double>(weights, batch, unused);
    weights[i] = before;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-8) << "parameter " << i;
    moving += std::abs(gradient[i]) > 1e-6 ? 1 : 0;
  }
  EXPECT_GT(moving, 400) << "the comparison would say nothing";
}

TEST(SmallMlpTest, AGuessCostsTheLogarithmOfTheClasses) {
  std::vector<double> weights(kMlpParameters, 0.0), gradient(kMlpParameters);
  MlpBatch<double> batch;
  make_mlp_batch(1, 0, 16, batch);
  EXPECT_NEAR(mlp_gradient<double>(weights, batch, gradient), std::log(10.0), 1e-12);
}

TEST(SmallMlpTest, ABatchIsAFunctionOfSeedAndNumber) {
  MlpBatch<float> one, same, other;
  make_mlp_batch(1, 4, 16, one);
  make_mlp_batch(1, 4, 16, same);
  make_mlp_batch(1, 5, 16, other);
  EXPECT_EQ(one.inputs, same.inputs);
  EXPECT_EQ(one.labels, same.labels);
  EXPECT_NE(one.inputs, other.inputs);
}

}  // namespace
}  // namespace butterfly
