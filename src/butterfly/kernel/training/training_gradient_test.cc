// Each backward kernel of every instruction set against central finite differences of a forward written here in double.
#include <cmath>
#include <functional>
#include <numeric>

#include "butterfly/kernel/training/training_values_test.h"

namespace butterfly {
namespace {

using Doubles = std::vector<double>;

Doubles widen(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

/// What the chain rule asks: the gradient of sum(dy * y).
double inner(const Doubles& y, const std::vector<float>& dy) {
  return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
}

/// Compares got[i] - before[i] with the slope of `loss` along x[i], for a sample of i.
void expect_slopes(const std::function<double(const Doubles&)>& loss, const std::vector<float>& x,
                   const std::vector<float>& got, const std::vector<float>& before, const char* what) {
  constexpr double kStep = 1e-5;  // the error of the difference, about its square, is far below a float's
  constexpr std::size_t kSamples = 64;
  // A gradient is a sum of float matmuls; 1e-5 of the largest is some 100 roundings.
  constexpr double kTolerance = 1e-5;
  double largest = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::fabs(double{got[i]} - before[i]));
  const std::size_t step = std::max<std::size_t>(1, x.size() / kSamples);
  Doubles at = widen(x);
  for (std::size_t i = 0; i < x.size(); i += step) {
    at[i] = x[i] + kStep;
    const double above = loss(at);
    at[i] = x[i] - kStep;
    const double below = loss(at);
    at[i] = x[i];
    const double slope = (above - below) / (2 * kStep);
    ASSERT_NEAR(double{got[i]} - before[i], slope, kTolerance * (1.0 + largest)) << what << " at " << i;
  }
}

std::vector<float> zeros(std::size_t count) {
  return std::vector<float>(count);
}

// --- norms -------------------------------------------------------------------------------------------------------

constexpr double kEpsilon = 1e-3;

Doubles norm64(const Doubles& x, const Doubles& weight, const Doubles& bias, double centred) {
  const auto n = static_cast<double>(x.size());
  const double mean = centred * std::accumulate(x.begin(), x.end(), 0.0) / n;
  double squares = 0.0;
  for (const double value : x) squares += (value - mean) * (value - mean);
  Doubles y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - mean) / std::sqrt(squares / n + kEpsilon) * weight[i] + bias[i];
  }
  return y;
}

struct NormCase {
  explicit NormCase(long n_in)
      : n(n_in),
        x(normal_floats(n, 1)),
        weight(normal_floats(n, 2)),
        bias(normal_floats(n, 3)),
        dy(normal_floats(n, 4)),
        y(zeros(x.size())),
        dx(normal_floats(n, 5)),
        dweight(normal_floats(n, 6)),
        dbias(normal_floats(n, 7)) {}
  long n;
  std::vector<float> x, weight, bias, dy, y, dx, dweight, dbias;
};

class GradNorms : public PerIsa {};

TEST_P(GradNorms, OfRmsNormAreTheSlopesOfItsFormula) {
  for (const long n : {1, 3, 16, 37, 100, 257}) {
    NormCase c(n);
    const NormCase before(n);
    float inverse = 0.0f;
    kernels().rms_norm(c.x.data(), c.weight.data(), kEpsilon, n, c.y.data(), &inverse);
    kernels().rms_norm_backward(c.dy.data(), c.x.data(), c.weight.data(), inverse, n, c.dx.data(), c.dweight.data());
    const Doubles none(c.x.size());
    const Doubles y = norm64(widen(c.x), widen(c.weight), none, 0.0);
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(c.y[i], y[i], 1e-5) << n;
    const auto of_x = [&](const Doubles& x) { return inner(norm64(x, widen(c.weight), none, 0.0), c.dy); };
    const auto of_weight = [&](const Doubles& weight) { return inner(norm64(widen(c.x), weight, none, 0.0), c.dy); };
    expect_slopes(of_x, c.x, c.dx, before.dx, "dx");
    expect_slopes(of_weight, c.weight, c.dweight, before.dweight, "dweight");
  }
}

TEST_P(GradNorms, OfLayerNormAreTheSlopesOfItsFormula) {
  for (const long n : {1, 3, 16, 37, 100, 257}) {
    NormCase c(n);
    const NormCase before(n);
    float mean = 0.0f;
    float inverse = 0.0f;
    kernels().layer_norm(c.x.data(), c.weight.data(), c.bias.data(), kEpsilon, n, c.y.data(), &mean, &inverse);
    kernels().layer_norm_backward(c.dy.data(), c.x.data(), c.weight.data(), mean, inverse, n, c.dx.data(),
                                  c.dweight.data(), c.dbias.data());
    const Doubles y = norm64(widen(c.x), widen(c.weight), widen(c.bias), 1.0);
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(c.y[i], y[i], 1e-5) << n;
    const auto loss = [&](const Doubles& x, const Doubles& weight, const Doubles& bias) {
      return inner(norm64(x, weight, bias, 1.0), c.dy);
    };
    const Doubles x = widen(c.x);
    const Doubles weight = widen(c.weight);
    const Doubles bias = widen(c.bias);
    expect_slopes([&](const Doubles& at) { return loss(at, weight, bias); }, c.x, c.dx, before.dx, "dx");
    expect_slopes([&](const Doubles& at) { return loss(x, at, bias); }, c.weight, c.dweight, before.dweight, "dweight");
    expect_slopes([&](const Doubles& at) { return loss(x, weight, at); }, c.bias, c.dbias, before.dbias, "dbias");
  }
}

TEST_P(GradNorms, OfLayerNormDoWithoutABias) {
  NormCase with(37);
  NormCase without(37);
  without.bias.assign(37, 0.0f);
  float means[2];
  float inverses[2];
  kernels().layer_norm(with.x.data(), with.weight.data(), nullptr, kEpsilon, 37, with.y.data(), &means[0],
                       &inverses[0]);
  kernels().layer_norm(without.x.data(), without.weight.data(), without.bias.data(), kEpsilon, 37, without.y.data(),
                       &means[1], &inverses[1]);
  EXPECT_EQ(with.y, without.y);
  kernels().layer_norm_backward(with.dy.data(), with.x.data(), with.weight.data(), means[0], inverses[0], 37,
                                with.dx.data(), with.dweight.data(), nullptr);
  kernels().layer_norm_backward(without.dy.data(), without.x.data(), without.weight.data(), means[1], inverses[1], 37,
                                without.dx.data(), without.dweight.data(), without.dbias.data());
  EXPECT_EQ(with.dx, without.dx);
  EXPECT_EQ(with.dweight, without.dweight);
}

// --- activations and positions -----------------------------------------------------------------------------------

double silu64(double x) {
  return x / (1.0 + std::exp(-x));
}
double gelu64(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

class GradActivations : public PerIsa {};

TEST_P(GradActivations, OfSiluTimesUpAreTheSlopesOfItsFormula) {
  for (const long n : {1, 15, 64, 83}) {
    const auto gate = normal_floats(n, 1, 3.0f);
    const auto up = normal_floats(n, 2);
    const auto dy = normal_floats(n, 3);
    std::vector<float> y(gate.size());
    std::vector<float> dgate = y;
    std::vector<float> dup = y;
    kernels().silu_mul(gate.data(), up.data(), n, y.data());
    kernels().silu_mul_backward(dy.data(), gate.data(), up.data(), n, dgate.data(), dup.data());
    const auto loss = [&](const Doubles& g, const Doubles& u) {
      Doubles values(g.size());
      for (std::size_t i = 0; i < g.size(); ++i) values[i] = silu64(g[i]) * u[i];
      return inner(values, dy);
    };
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], silu64(gate[i]) * up[i], 1e-5);
    expect_slopes([&](const Doubles& at) { return loss(at, widen(up)); }, gate, dgate, zeros(gate.size()), "dgate");
    expect_slopes([&](const Doubles& at) { return loss(widen(gate), at); }, up, dup, zeros(gate.size()), "dup");
  }
}

TEST_P(GradActivations, OfGeluAreTheSlopesOfItsFormulaAlsoInPlace) {
  for (const long n : {1, 15, 64, 83}) {
    const auto x = normal_floats(n, 1, 3.0f);
    const auto dy = normal_floats(n, 3);
    std::vector<float> y(x.size());
    std::vector<float> dx(x.size());
    kernels().gelu(x.data(), n, y.data());
    kernels().gelu_backward(dy.data(), x.data(), n, dx.data());
    const auto loss = [&](const Doubles& at) {
      Doubles values(at.size());
      for (std::size_t i = 0; i < at.size(); ++i) values[i] = gelu64(at[i]);
      return inner(values, dy);
    };
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], gelu64(x[i]), 1e-5);
    expect_slopes(loss, x, dx, zeros(x.size()), "dx");
    std::vector<float> in_place = dy;
    kernels().gelu_backward(in_place.data(), x.data(), n, in_place.data());
    EXPECT_EQ(in_place, dx);
  }
}

double gelu_erf64(double x) {
  return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
}

TEST_P(GradActivations, OfTheExactGeluAreTheSlopesOfItsFormulaAlsoInPlace) {
  for (const long n : {1, 15, 64, 83}) {
    const auto x = normal_floats(n, 1, 3.0f);
    const auto dy = normal_floats(n, 3);
    std::vector<float> y(x.size());
    std::vector<float> dx(x.size());
    kernels().gelu_erf(x.data(), n, y.data());
    kernels().gelu_erf_backward(dy.data(), x.data(), n, dx.data());
    const auto loss = [&](const Doubles& at) {
      Doubles values(at.size());
      for (std::size_t i = 0; i < at.size(); ++i) values[i] = gelu_erf64(at[i]);
      return inner(values, dy);
    };
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], gelu_erf64(x[i]), 2e-6);
    expect_slopes(loss, x, dx, zeros(x.size()), "dx");
    std::vector<float> in_place = dy;
    kernels().gelu_erf_backward(in_place.data(), x.data(), n, in_place.data());
    EXPECT_EQ(in_place, dx);
  }
}

TEST_P(GradActivations, OfCappedValuesAreTheirSlopesFromZeroToTheCap) {
  for (const long n : {1, 15, 64, 83}) {
    for (const float spread : {1e-4f, 1.0f, 30.0f, 3000.0f}) {
      constexpr float kCap = 30.0f;
      const auto x = normal_floats(n, 1, spread);
      std::vector<float> y = x;
      std::vector<float> slope(x.size());
      kernels().cap_values(kCap, n, y.data(), slope.data());
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double t = std::tanh(double{x[i]} / kCap);
        ASSERT_NEAR(y[i], kCap * t, 6e-7 * std::fabs(kCap * t)) << x[i];
        ASSERT_NEAR(slope[i], 1.0 - t * t, 5e-7) << x[i];
      }
    }
  }
}

class GradRope : public PerIsa {};

TEST_P(GradRope, IsTheRotationBack) {
  for (const bool adjacent : {false, true}) {
    for (const long pairs : {1, 5, 16, 32, 37}) {
      std::vector<float> cos;
      std::vector<float> sin;
      for (const float angle : normal_floats(pairs, 1)) {
        cos.push_back(std::cos(angle));
        sin.push_back(std::sin(angle));
      }
      const auto x = normal_floats(2 * pairs, 2);
      const auto dy = normal_floats(2 * pairs, 3);
      std::vector<float> dx = dy;
      kernels().rope(dx.data(), cos.data(), sin.data(), -1.0f, pairs, adjacent);
      const auto rotate = [&](const Doubles& at) {
        Doubles y(at.size());
        for (std::size_t i = 0; i < cos.size(); ++i) {
          const std::size_t first = adjacent ? 2 * i : i;
          const std::size_t second = adjacent ? 2 * i + 1 : i + cos.size();
          y[first] = at[first] * cos[i] - at[second] * sin[i];
          y[second] = at[first] * sin[i] + at[second] * cos[i];
        }
        return y;
      };
      std::vector<float> y = x;
      kernels().rope(y.data(), cos.data(), sin.data(), 1.0f, pairs, adjacent);
      const Doubles wanted = rotate(widen(x));
      for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], wanted[i], 1e-6);
      expect_slopes([&](const Doubles& at) { return inner(rotate(at), dy); }, x, dx, zeros(x.size()), "dx");
    }
  }
}

// --- attention ---------------------------------------------------------------------------------------------------

/// The sum over all outputs of dout * out, and the outputs.
double attention64(const AttentionCase& c, const Doubles& q, const Doubles& k, const Doubles& v, Doubles* out) {
  double loss = 0.0;
  Doubles weights(static_cast<std::size_t>(c.seq));
  for (long t = 0; t < c.seq; ++t) {
    double total = 0.0;
    const long first = c.window > 0 ? std::max(0L, t + 1 - c.window) : 0;
    for (long j = first; j <= t; ++j) {
      double score = 0.0;
      for (long d = 0; d < c.head_dim; ++d) {
        score += q[static_cast<std::size_t>(t * c.stride + d)] * k[static_cast<std::size_t>(j * c.stride + d)];
      }
      score *= c.scale;
      if (c.cap != 0.0f) score = c.cap * std::tanh(score / c.cap);
      total += weights[static_cast<std::size_t>(j)] = std::exp(score);
    }
    for (long d = 0; d < c.head_dim; ++d) {
      const auto at = static_cast<std::size_t>(t * c.stride + d);
      double sum = 0.0;
      for (long j = first; j <= t; ++j) {
        sum += weights[static_cast<std::size_t>(j)] * v[static_cast<std::size_t>(j * c.stride + d)];
      }
      if (out != nullptr) (*out)[at] = sum / total;
      loss += c.dout[at] * sum / total;
    }
  }
  return loss;
}

struct AttentionShape {
  long seq, head_dim, window;
  float cap;
};

class GradAttention : public PerIsa {
 protected:
  void expect_slopes_of(const AttentionShape& shape) const;
};

void GradAttention::expect_slopes_of(const AttentionShape& shape) const {
  const auto& [seq, head_dim, window, cap] = shape;
  AttentionCase c(seq, head_dim);
  const AttentionCase before(seq, head_dim);
  c.window = window;
  c.cap = cap;
  c.run(kernels());
  const Doubles q = widen(c.q);
  const Doubles k = widen(c.k);
  const Doubles v = widen(c.v);
  Doubles out = widen(before.out);
  attention64(c, q, k, v, &out);
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(c.out[i], out[i], 1e-5) << seq << " at " << i;
  // dq is written, but not between the rows.
  std::vector<float> dq_before(c.dq.size());
  for (std::size_t i = 0; i < dq_before.size(); ++i) {
    if (static_cast<long>(i) % c.stride >= head_dim) dq_before[i] = before.dq[i];
  }
  expect_slopes([&](const Doubles& at) { return attention64(c, at, k, v, nullptr); }, c.q, c.dq, dq_before, "dq");
  expect_slopes([&](const Doubles& at) { return attention64(c, q, at, v, nullptr); }, c.k, c.dk, before.dk, "dk");
  expect_slopes([&](const Doubles& at) { return attention64(c, q, k, at, nullptr); }, c.v, c.dv, before.dv, "dv");
}

TEST_P(GradAttention, AreTheSlopesOfItsFormulaBelowAtAndAboveOneTile) {
  for (const auto& [seq, head_dim] : {std::pair{1L, 4L}, {5L, 3L}, {17L, 16L}, {64L, 8L}, {65L, 20L}, {150L, 6L}}) {
    expect_slopes_of({seq, head_dim, 0, 0.0f});
  }
}

TEST_P(GradAttention, AreTheSlopesOfItsFormulaWithinAWindow) {
  for (const auto& [seq, window] :
       {std::pair{5L, 1L}, {5L, 5L}, {17L, 16L}, {64L, 7L}, {130L, 64L}, {150L, 65L}, {200L, 3L}, {200L, 300L}}) {
    SCOPED_TRACE(std::to_string(seq) + " " + std::to_string(window));
    expect_slopes_of({seq, 8, window, 0.0f});
  }
}

TEST_P(GradAttention, AreTheSlopesOfItsFormulaUnderACap) {
  for (const float cap : {0.5f, 2.0f, 50.0f}) {
    expect_slopes_of({70, 12, 0, cap});
    expect_slopes_of({150, 8, 40, cap});
  }
}

// --- loss --------------------------------------------------------------------------------------------------------

class GradCrossEntropy : public PerIsa {};

TEST_P(GradCrossEntropy, IsTheSlopeOfMinusTheLogarithmOfTheTargetsProbability) {
  for (const long vocab : {1, 2, 17, 1000, 2500}) {
    const auto logits = normal_floats(vocab, 1, 4.0f);
    const long target = vocab / 2;
    constexpr float kScale = 2.5f;
    const auto loss = [&](const Doubles& at) {
      double sum = 0.0;
      for (const double value : at) sum += std::exp(value);
      return std::log(sum) - at[static_cast<std::size_t>(target)];
    };
    std::vector<float> gradient = logits;
    const float got = kernels().softmax_cross_entropy(gradient.data(), vocab, target, kScale);
    EXPECT_NEAR(got, loss(widen(logits)), 1e-5);
    expect_slopes([&](const Doubles& at) { return kScale * loss(at); }, logits, gradient, zeros(logits.size()),
                  "logits");
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GradNorms, testing::ValuesIn(supported_isas()), isa_name);
INSTANTIATE_TEST_SUITE_P(Isas, GradActivations, testing::ValuesIn(supported_isas()), isa_name);
INSTANTIATE_TEST_SUITE_P(Isas, GradRope, testing::ValuesIn(supported_isas()), isa_name);
INSTANTIATE_TEST_SUITE_P(Isas, GradAttention, testing::ValuesIn(supported_isas()), isa_name);
INSTANTIATE_TEST_SUITE_P(Isas, GradCrossEntropy, testing::ValuesIn(supported_isas()), isa_name);

}  // namespace
}  // namespace butterfly
