// Training kernels of every instruction set against the reference, and against what a run relies on: values that do not
// depend on where a row was cut, and NaN that is seen.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "butterfly/kernel/training/training_values_test.h"
#include "butterfly/tensor/half.h"

namespace butterfly {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

/// Rounding differs, by some units of the last place of the largest value that took part.
void expect_close(const std::vector<float>& got, const std::vector<float>& wanted, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), wanted.size());
  double largest = 0.0;
  for (const float value : wanted) largest = std::max(largest, std::fabs(double{value}));
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], wanted[i], tolerance * (largest + 1e-30)) << what << " at " << i << " of " << got.size();
  }
}

class ParityTraining : public PerIsa {
 protected:
  const TrainingKernels& reference() const { return kReferenceTrainingKernels; }
};

TEST_P(ParityTraining, NormsAgreeWithTheReference) {
  for (const long n : {1, 7, 16, 33, 512, 1031}) {
    const auto x = normal_floats(n, 1);
    const auto weight = normal_floats(n, 2);
    const auto bias = normal_floats(n, 3);
    const auto dy = normal_floats(n, 4);
    std::vector<float> results[2][8];
    for (int which = 0; which < 2; ++which) {
      const TrainingKernels& table = which == 0 ? kernels() : reference();
      auto& r = results[which];
      for (auto& values : r) values = normal_floats(n, 5);
      float mean = 0.0f;
      float inverse = 0.0f;
      table.rms_norm(x.data(), weight.data(), 1e-5f, n, r[0].data(), &inverse);
      table.rms_norm_backward(dy.data(), x.data(), weight.data(), inverse, n, r[1].data(), r[2].data());
      table.layer_norm(x.data(), weight.data(), bias.data(), 1e-5f, n, r[3].data(), &mean, &inverse);
      table.layer_norm_backward(dy.data(), x.data(), weight.data(), mean, inverse, n, r[4].data(), r[5].data(),
                                r[6].data());
      r[7] = {mean, inverse};
    }
    // Sums of n terms in other orders: their roundings grow like sqrt(n) at random.
    for (int i = 0; i < 8; ++i) expect_close(results[0][i], results[1][i], 4e-6, "norms");
  }
}

TEST_P(ParityTraining, ActivationsAgreeWithTheReferenceOverTheWholeRange) {
  for (const long n : {1, 31, 1000}) {
    std::vector<float> x = normal_floats(n, 1, 10.0f);
    for (std::size_t i = 0; i < x.size(); i += 10) x[i] *= 20.0f;
    const auto up = normal_floats(n, 2);
    const auto dy = normal_floats(n, 3);
    std::vector<float> results[2][5];
    for (int which = 0; which < 2; ++which) {
      const TrainingKernels& table = which == 0 ? kernels() : reference();
      auto& r = results[which];
      for (auto& values : r) values.resize(x.size());
      table.silu_mul(x.data(), up.data(), n, r[0].data());
      table.silu_mul_backward(dy.data(), x.data(), up.data(), n, r[1].data(), r[2].data());
      table.gelu(x.data(), n, r[3].data());
      table.gelu_backward(dy.data(), x.data(), n, r[4].data());
    }
    for (int i = 0; i < 5; ++i) {
      for (std::size_t at = 0; at < x.size(); ++at) {
        const float wanted = results[1][i][at];
        // Matmuls of a few factors, and 1 - sigmoid, which may cancel.
        ASSERT_NEAR(results[0][i][at], wanted, 1e-6 * (1.0 + std::fabs(wanted))) << "result " << i << " at " << x[at];
      }
    }
  }
}

TEST_P(ParityTraining, RopeAgreesWithTheReference) {
  for (const bool adjacent : {false, true}) {
    for (const long pairs : {1, 16, 37}) {
      const auto cos = normal_floats(pairs, 1);
      const auto sin = normal_floats(pairs, 2);
      std::vector<float> got = normal_floats(2 * pairs, 3);
      std::vector<float> wanted = got;
      kernels().rope(got.data(), cos.data(), sin.data(), -1.0f, pairs, adjacent);
      reference().rope(wanted.data(), cos.data(), sin.data(), -1.0f, pairs, adjacent);
      expect_close(got, wanted, 1e-6, "rope");
    }
  }
}

TEST_P(ParityTraining, AttentionAgreesWithTheReference) {
  for (const auto& [seq, head_dim] :
       {std::pair{1L, 1L}, {63L, 64L}, {64L, 64L}, {129L, 128L}, {200L, 80L}, {131L, 17L}, {256L, 96L}}) {
    AttentionCase got(seq, head_dim);
    AttentionCase wanted(seq, head_dim);
    got.run(kernels());
    wanted.run(reference());
    // Sums of up to 256 keys; the scores, of some 10, carry their error into exp.
    expect_close(got.log_sum_exp, wanted.log_sum_exp, 2e-6, "log_sum_exp");
    expect_close(got.out, wanted.out, 2e-5, "out");
    expect_close(got.dq, wanted.dq, 2e-5, "dq");
    expect_close(got.dk, wanted.dk, 2e-5, "dk");
    expect_close(got.dv, wanted.dv, 2e-5, "dv");
  }
}

TEST_P(ParityTraining, AttentionSurvivesScoresThatExpCannotHold) {
  AttentionCase got(130, 16);
  for (float& value : got.q) value *= 40.0f;
  for (float& value : got.k) value *= 40.0f;
  AttentionCase wanted = got;
  got.run(kernels());
  wanted.run(reference());
  for (const float value : got.out) ASSERT_TRUE(std::isfinite(value));
  expect_close(got.log_sum_exp, wanted.log_sum_exp, 2e-6, "log_sum_exp");
}

TEST_P(ParityTraining, CrossEntropyAgreesWithTheReferenceForSmallLargeAndExtremeLogits) {
  for (const long vocab : {1, 5, 16, 1000, 1025, 50257, 600000}) {
    for (const float spread : {1.0f, 300.0f}) {
      std::vector<float> got = normal_floats(vocab, 1, spread);
      std::vector<float> wanted = got;
      const long target = vocab * 3 / 4;
      const float got_loss = kernels().softmax_cross_entropy(got.data(), vocab, target, 0.5f);
      const float wanted_loss = reference().softmax_cross_entropy(wanted.data(), vocab, target, 0.5f);
      EXPECT_NEAR(got_loss, wanted_loss, 2e-6 * (1.0 + std::fabs(wanted_loss))) << vocab << " " << spread;
      expect_close(got, wanted, 2e-6, "gradient");
    }
  }
}

TEST_P(ParityTraining, OptimizersAgreeWithTheReference) {
  const AdamwArgs args{.rate = 0.01f, .decay = 0.1f, .correction1 = 3.0f, .correction2 = 7.0f, .gradient_scale = 0.5f};
  for (const long n : {1, 17, 1000}) {
    const auto gradient = normal_floats(n, 1);
    std::vector<float> results[2][5];
    for (int which = 0; which < 2; ++which) {
      const TrainingKernels& table = which == 0 ? kernels() : reference();
      auto& r = results[which];
      for (auto& values : r) values = normal_floats(n, 2);
      for (float& second : r[2]) second = std::fabs(second);
      table.adamw(args, n, gradient.data(), r[0].data(), r[1].data(), r[2].data());
      table.sgd(0.1f, 0.9f, 0.01f, 0.5f, n, gradient.data(), r[3].data(), r[4].data());
    }
    for (int i = 0; i < 5; ++i) expect_close(results[0][i], results[1][i], 1e-6, "optimizer");
  }
}

TEST_P(ParityTraining, SumsAgreeWithTheReference) {
  for (const long n : {0, 1, 15, 16, 1000, 100003}) {
    const auto x = normal_floats(n, 1);
    const double wanted = reference().sum_of_squares(x.data(), n);
    EXPECT_NEAR(kernels().sum_of_squares(x.data(), n), wanted, 1e-12 * wanted);
    std::vector<float> got = normal_floats(n, 2);
    std::vector<float> scaled = got;
    kernels().add(x.data(), n, got.data());
    kernels().add_scaled(x.data(), 1.0f, n, scaled.data());
    EXPECT_EQ(got, scaled);
    kernels().add_scaled(x.data(), -1.0f, n, got.data());
    expect_close(got, normal_floats(n, 2), 1e-6, "sums");
  }
}

TEST_P(ParityTraining, Bf16IsTheTensorsBitForBit) {
  std::vector<float> x = normal_floats(1003, 1);
  // Ties, overflow, subnormals, infinities and NaN with and without a payload that survives.
  const std::uint32_t special[] = {0x3f808000u, 0x3f818000u, 0x7f7fffffu, 0x00000001u, 0x80000000u, 0x7f800000u,
                                   0xff800000u, 0x7fc00000u, 0x7f800001u, 0xffc12345u, 0x0000ffffu, 0x3f807fffu};
  for (std::size_t i = 0; i < std::size(special); ++i) std::memcpy(&x[i * 80 + 17], &special[i], 4);
  for (const long n : {1, 16, 50, 1003}) {
    std::vector<std::uint16_t> narrow(static_cast<std::size_t>(n));
    std::vector<float> wide(narrow.size());
    kernels().floats_to_bf16(x.data(), n, narrow.data());
    kernels().bf16_to_floats(narrow.data(), n, wide.data());
    for (std::size_t i = 0; i < narrow.size(); ++i) {
      ASSERT_EQ(narrow[i], float_to_bfloat16(x[i])) << i;
      const float exact = bfloat16_to_float(narrow[i]);
      ASSERT_EQ(std::memcmp(&wide[i], &exact, 4), 0) << i;
    }
  }
}

class TrainingKernelsOfAnIsa : public PerIsa {};

TEST_P(TrainingKernelsOfAnIsa, GiveTheSameBitsWhereverARowIsCut) {
  constexpr long kN = 203;
  const AdamwArgs args{.rate = 0.01f, .decay = 0.1f, .correction1 = 3.0f, .correction2 = 7.0f};
  const auto a = normal_floats(kN, 1);
  const auto b = normal_floats(kN, 2);
  const auto run = [&](const std::vector<long>& borders) {
    std::vector<float> r[8];
    for (auto& values : r) values = normal_floats(kN, 3);
    for (float& second : r[2]) second = std::fabs(second);
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      const long at = borders[i];
      const long n = borders[i + 1] - at;
      kernels().adamw(args, n, a.data() + at, r[0].data() + at, r[1].data() + at, r[2].data() + at);
      kernels().silu_mul(a.data() + at, b.data() + at, n, r[3].data() + at);
      kernels().gelu(a.data() + at, n, r[4].data() + at);
      kernels().gelu_backward(b.data() + at, a.data() + at, n, r[5].data() + at);
      kernels().add_scaled(a.data() + at, 0.3f, n, r[6].data() + at);
      kernels().sgd(0.1f, 0.9f, 0.01f, 1.0f, n, b.data() + at, r[7].data() + at, nullptr);
    }
    std::vector<float> all;
    for (const auto& values : r) all.insert(all.end(), values.begin(), values.end());
    return all;
  };
  const auto whole = run({0, kN});
  const auto cut = run({0, 1, 38, 100, kN});
  EXPECT_EQ(std::memcmp(whole.data(), cut.data(), whole.size() * sizeof(float)), 0);
}

TEST_P(TrainingKernelsOfAnIsa, LetNaNAndInfinityBeSeenInTheLoss) {
  for (const float poison : {kNaN, kInfinite}) {
    for (const std::size_t where : {std::size_t{0}, std::size_t{700}, std::size_t{1499}}) {
      std::vector<float> logits = normal_floats(1500, 1);
      logits[where] = poison;
      EXPECT_TRUE(std::isnan(kernels().softmax_cross_entropy(logits.data(), 1500, 3, 1.0f))) << poison << " " << where;
    }
  }
  const std::vector<float> x = {kNaN, 1.0f, kNaN};
  const std::vector<float> up(3, 1.0f);
  std::vector<float> y(3);
  kernels().silu_mul(x.data(), up.data(), 3, y.data());
  EXPECT_TRUE(std::isnan(y[0]) && std::isfinite(y[1]) && std::isnan(y[2]));
  AttentionCase c(70, 16);
  c.q[static_cast<std::size_t>(66 * c.stride)] = kNaN;
  c.run(kernels());
  EXPECT_TRUE(std::isnan(c.out[static_cast<std::size_t>(66 * c.stride)]));
  EXPECT_TRUE(std::isfinite(c.out[static_cast<std::size_t>(65 * c.stride)]));
}

TEST_P(TrainingKernelsOfAnIsa, ComputeMaskedLogitsAsImpossible) {
  std::vector<float> logits(2000, -kInfinite);
  logits[5] = 2.0f;
  logits[1999] = 2.0f;
  EXPECT_NEAR(kernels().softmax_cross_entropy(logits.data(), 2000, 5, 1.0f), std::log(2.0), 1e-6);
  EXPECT_EQ(logits[0], 0.0f);
  EXPECT_NEAR(logits[5], -0.5, 1e-6);
}

TEST_P(TrainingKernelsOfAnIsa, FollowAdamwsFormulaInDouble) {
  const AdamwArgs args{
      .rate = 0.01f, .decay = 0.1f, .correction1 = 10.0f, .correction2 = 20.0f, .gradient_scale = 0.25f};
  float weight = 1.5f;
  float m = 0.2f;
  float v = 0.3f;
  const float gradient = 2.0f;
  const double g = 0.5;
  const double m64 = 0.9 * double{m} + 0.1 * g;
  const double v64 = 0.95 * double{v} + 0.05 * g * g;
  const double wanted = 1.5 - 0.01 * (m64 * 10.0 / (std::sqrt(v64 * 20.0) + 1e-8) + 0.1 * 1.5);
  kernels().adamw(args, 1, &gradient, &weight, &m, &v);
  EXPECT_NEAR(m, m64, 1e-7);
  EXPECT_NEAR(v, v64, 1e-7);
  EXPECT_NEAR(weight, wanted, 2e-7);
}

TEST_P(TrainingKernelsOfAnIsa, FollowSgdsFormula) {
  float weight = 1.0f;
  float buffer = 0.5f;
  const float gradient = 4.0f;
  kernels().sgd(0.1f, 0.9f, 0.2f, 0.5f, 1, &gradient, &weight, &buffer);
  EXPECT_NEAR(buffer, 0.9 * 0.5 + 2.0 + 0.2, 1e-6);
  EXPECT_NEAR(weight, 1.0 - 0.1 * 2.65, 1e-6);
  kernels().sgd(0.1f, 0.9f, 0.0f, 1.0f, 1, &gradient, &weight, nullptr);
  EXPECT_NEAR(weight, 0.735 - 0.4, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Isas, ParityTraining, testing::ValuesIn(supported_isas()), isa_name);
INSTANTIATE_TEST_SUITE_P(Isas, TrainingKernelsOfAnIsa, testing::ValuesIn(supported_isas()), isa_name);

}  // namespace
}  // namespace butterfly
