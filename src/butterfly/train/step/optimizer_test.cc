#include "butterfly/train/step/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "butterfly/train/run/tiny_run_test.h"

namespace butterfly {
namespace {

/// Parameters with weights and gradients that differ in every element.
ParameterSet filled() {
  ModelConfig shape = tiny_shape();
  shape.vocab = 2000;  // more than one chunk
  ParameterSet parameters = std::move(*ParameterSet::create(shape));
  for (std::size_t i = 0; i < parameters.weights().size(); ++i) {
    parameters.weights()[i] = std::sin(static_cast<float>(i));
    parameters.gradients()[i] = 0.1f * std::cos(static_cast<float>(7 * i));
  }
  return parameters;
}

struct Learned {
  std::vector<float> weights{};
  double norm = 0.0;
};

Learned learn(const OptimizerConfig& config, const Fusion& fusion, Isa isa, int threads, int updates,
              const std::vector<std::string>& frozen = {}) {
  ParameterSet parameters = filled();
  EXPECT_TRUE(parameters.freeze(frozen));
  ThreadTeam team(threads);
  auto optimizer = std::move(*make_optimizer(config, fusion, isa, parameters, team));
  Learned learned;
  learned.norm = optimizer->gradient_norm(nullptr).value();
  for (int i = 0; i < updates; ++i) optimizer->update(1e-2, i == 0 ? 0.5 : 1.0);
  EXPECT_EQ(optimizer->updates(), updates);
  learned.weights.assign(parameters.weights().begin(), parameters.weights().end());
  return learned;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}

/// The published formula, in double, on one element with a gradient that stays.
double adamw_by_hand(const OptimizerConfig& config, double weight, double gradient, bool decayed, int updates) {
  double m = 0.0, v = 0.0;
  for (int t = 1; t <= updates; ++t) {
    const double g = gradient * (t == 1 ? 0.5 : 1.0);
    m = config.beta1 * m + (1 - config.beta1) * g;
    v = config.beta2 * v + (1 - config.beta2) * g * g;
    const double step =
        m / (1 - std::pow(config.beta1, t)) / (std::sqrt(v / (1 - std::pow(config.beta2, t))) + config.epsilon);
    weight -= 1e-2 * (step + (decayed ? config.weight_decay * weight : 0.0));
  }
  return weight;
}

TEST(Optimizer, AdamwFollowsTheFormulaAndDecaysMatricesAlone) {
  const OptimizerConfig config{.weight_decay = 0.3};
  const ParameterSet before = filled();
  for (const Isa isa : supported_isas()) {
    const Learned learned = learn(config, {}, isa, 2, 3);
    for (const Parameter& parameter : before.list()) {
      for (std::int64_t i : {std::int64_t{0}, parameter.size() - 1}) {
        const auto at = static_cast<std::size_t>(parameter.offset + i);
        const double expected =
            adamw_by_hand(config, before.weights()[at], before.gradients()[at], parameter.rows > 1, 3);
        EXPECT_NEAR(learned.weights[at], expected, 2e-5) << parameter.name << " " << to_string(isa);
      }
    }
  }
}

TEST(Optimizer, UnfusedAdamwAgreesWithinRounding) {
  const OptimizerConfig config;
  Fusion unfused;
  unfused.adamw = false;
  const Isa isa = supported_isas().back();
  EXPECT_LT(largest_difference(learn(config, {}, isa, 1, 4).weights, learn(config, unfused, isa, 1, 4).weights), 2e-6);
}

TEST(Optimizer, SgdKeepsMomentumAndGoesWithoutIt) {
  OptimizerConfig config{.kind = OptimizerKind::kSgd, .momentum = 0.5, .weight_decay = 0.0};
  const ParameterSet before = filled();
  const auto moved = [&](const Learned& learned) { return double{learned.weights[3]} - double{before.weights()[3]}; };
  const double gradient = before.gradients()[3];
  EXPECT_NEAR(moved(learn(config, {}, Isa::kReference, 1, 2)), -1e-2 * gradient * (0.5 + (0.5 * 0.5 + 1.0)), 1e-6);
  config.momentum = 0.0;
  EXPECT_NEAR(moved(learn(config, {}, Isa::kReference, 1, 2)), -1e-2 * gradient * 1.5, 1e-6);
}

TEST(Optimizer, ThreadsDoNotShowInTheBits) {
  for (const OptimizerKind kind : {OptimizerKind::kAdamw, OptimizerKind::kSgd}) {
    const OptimizerConfig config{.kind = kind};
    const Isa isa = supported_isas().back();
    const Learned one = learn(config, {}, isa, 1, 3);
    const Learned three = learn(config, {}, isa, 3, 3);
    EXPECT_EQ(one.weights, three.weights);
    EXPECT_EQ(one.norm, three.norm);
  }
}

TEST(Optimizer, FrozenParametersStayAndDoNotCountInTheNorm) {
  const Isa isa = supported_isas().back();
  const ParameterSet before = filled();
  const Learned learned = learn({}, {}, isa, 2, 2, {"blk.0.attn", "output_norm.weight"});
  double squares = 0.0;
  for (const Parameter& parameter : before.list()) {
    const bool frozen = parameter.name.starts_with("blk.0.attn") || parameter.name == "output_norm.weight";
    for (std::int64_t i = 0; i < parameter.size(); ++i) {
      const auto at = static_cast<std::size_t>(parameter.offset + i);
      EXPECT_EQ(learned.weights[at] == before.weights()[at], frozen) << parameter.name;
      if (!frozen) squares += double{before.gradients()[at]} * double{before.gradients()[at]};
    }
  }
  EXPECT_NEAR(learned.norm, std::sqrt(squares), 1e-5 * std::sqrt(squares));
}

TEST(Optimizer, TheNormOfGradientsThatAreNotFiniteIsNotFinite) {
  ParameterSet parameters = filled();
  ThreadTeam team(2);
  const auto optimizer = std::move(*make_optimizer({}, {}, supported_isas().back(), parameters, team));
  parameters.gradients()[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(optimizer->gradient_norm(nullptr).value()));
  std::ranges::fill(parameters.gradients(), 0.0f);
  EXPECT_EQ(optimizer->gradient_norm(nullptr).value(), 0.0);
}

TEST(Optimizer, MomentsAreAllThatARunHasToSave) {
  const Isa isa = supported_isas().back();
  ThreadTeam team(1);
  ParameterSet first = filled(), second = filled();
  auto a = std::move(*make_optimizer({}, {}, isa, first, team));
  a->update(1e-2, 1.0);
  auto b = std::move(*make_optimizer({}, {}, isa, second, team));
  std::ranges::copy(first.weights(), second.weights().begin());
  for (std::size_t i = 0; i < 2; ++i) std::ranges::copy(a->moments()[i], b->moments()[i].begin());
  b->set_updates(a->updates());
  a->update(1e-2, 1.0);
  b->update(1e-2, 1.0);
  EXPECT_EQ(first.hash(), second.hash());
}

}  // namespace
}  // namespace butterfly
