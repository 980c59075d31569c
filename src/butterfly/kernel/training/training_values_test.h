// What the tests of training kernels share: random rows, and the kernels of every instruction set as a parameter.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "butterfly/kernel/training/training_dispatch.h"

namespace butterfly {

inline std::vector<float> normal_floats(long count, std::uint32_t seed, float spread = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

class PerIsa : public testing::TestWithParam<Isa> {
 protected:
  const TrainingKernels& kernels() const { return training_kernels(GetParam()); }
};

inline std::string isa_name(const testing::TestParamInfo<Isa>& info) {
  return std::string(to_string(info.param));
}

/// One sequence and head of attention in rows with space between them, and its gradients; `dk` and `dv` begin with
/// values.
struct AttentionCase {
  AttentionCase(long seq_in, long head_dim_in)
      : seq(seq_in),
        head_dim(head_dim_in),
        stride(head_dim_in + 3),
        q(normal_floats(seq * stride, 1)),
        k(normal_floats(seq * stride, 2)),
        v(normal_floats(seq * stride, 3)),
        dout(normal_floats(seq * stride, 4)),
        out(normal_floats(seq * stride, 5)),
        dq(normal_floats(seq * stride, 6)),
        dk(normal_floats(seq * stride, 7)),
        dv(normal_floats(seq * stride, 8)),
        log_sum_exp(static_cast<std::size_t>(seq)) {}

  /// Forward and backward; fails when the kernels write behind their scratch.
  void run(const TrainingKernels& kernels) {
    constexpr float kUntouched = 12345.0f;
    const auto floats = static_cast<std::size_t>(train_attention_scratch(seq, head_dim));
    struct alignas(64) Line {
      float floats[16];
    };
    std::vector<Line> lines((floats + 15) / 16 + 1);
    float* scratch = lines[0].floats;
    std::fill_n(scratch, lines.size() * 16, kUntouched);
    const TrainAttentionArgs forward{seq,    head_dim,   scale,  q.data(),           k.data(), v.data(), stride, stride,
                                     stride, out.data(), stride, log_sum_exp.data(), scratch,  window,   cap};
    kernels.attention(forward);
    kernels.attention_backward({forward, dout.data(), stride, dq.data(), dk.data(), dv.data(), stride, stride, stride});
    for (std::size_t i = floats; i < lines.size() * 16; ++i) EXPECT_EQ(scratch[i], kUntouched);
  }

  long seq, head_dim, stride;
  float scale = 0.3f;
  long window = 0;
  float cap = 0.0f;
  std::vector<float> q, k, v, dout, out, dq, dk, dv, log_sum_exp;
};

}  // namespace butterfly
