// A set of kernels that differs from the reference on this machine is found, and not used.
#include "butterfly/kernel/inference/self_check.h"

#include <gtest/gtest.h>

#include "butterfly/kernel/inference/dispatch.h"

namespace butterfly {
namespace {

TEST(SelfCheck, EveryInstructionSetOfThisMachineAgrees) {
  for (const Isa isa : supported_isas()) {
    EXPECT_EQ(first_difference(unchecked_kernels(isa), kReferenceKernels), "") << to_string(isa);
    EXPECT_EQ(std::string_view(kernels_for(isa).name), to_string(isa));
  }
}

TEST(SelfCheck, OneWrongBitOfAnOperationIsNamed) {
  Kernels wrong = kReferenceKernels;
  wrong.linear = [](const LinearArgs& args) {
    kReferenceKernels.linear(args);
    if (args.type == PackedType::kQ4_0 && args.rows > 16) {
      args.sums[0].y[args.sums[0].y_stride * args.rows - 1] *= 1.0000001f;
    }
  };
  EXPECT_EQ(first_difference(wrong, kReferenceKernels), "matmul of q4_0");
  wrong = kReferenceKernels;
  wrong.attention = [](const AttentionArgs& args) {
    kReferenceKernels.attention(args);
    if (args.type == CacheType::kF16) args.out[2][0] += 1e-3f;
  };
  EXPECT_EQ(first_difference(wrong, kReferenceKernels), "attention");
  wrong = kReferenceKernels;
  wrong.softmax = [](const float* x, long n, float* y) {
    kReferenceKernels.softmax(x, n, y);
    y[n - 1] = 0.0f;
  };
  EXPECT_EQ(first_difference(wrong, kReferenceKernels), "an operation on rows");
}

TEST(SelfCheck, TheNextSlowerSetStandsInForOneThatDiffers) {
  const auto slower = [](Isa isa) { return isa == Isa::kAvx2 ? std::string_view("attention") : std::string_view(); };
  EXPECT_EQ(agreeing_isa(Isa::kAvx2, slower), Isa::kReference);
  EXPECT_EQ(agreeing_isa(Isa::kReference, slower), Isa::kReference);
}

}  // namespace
}  // namespace butterfly
