#include "butterfly/train/compression_choice.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

using Purpose = CompressionChoice::Purpose;

constexpr double kBytes = 4e6;

/// 1 GB/s each way for all; a quarter of the bytes by int8, half by bf16, nearly all by the lossless ones.
BucketCosts costs(double link_bytes_per_s) {
  BucketCosts made{.all_reduce_s = kBytes / link_bytes_per_s, .bytes = kBytes};
  for (std::size_t i = 0; i < kAutoMethods.size(); ++i) {
    made.codecs[i] = {.encode_s_per_byte = 1e-9, .decode_s_per_byte = 1e-9, .size = 0.9};
    if (kAutoMethods[i] == GradientCompression::kBf16) made.codecs[i].size = 0.5;
    if (kAutoMethods[i] == GradientCompression::kInt8) made.codecs[i].size = 0.27;
  }
  return made;
}

GradientCompression after_probe(const BucketCosts& seen, double exposed_s) {
  CompressionChoice choice(1, 2);
  while (choice.next_step() != Purpose::kProbe) choice.observe_exposed(exposed_s);
  choice.observe(0, seen);
  choice.end_probe();
  return choice.method(0);
}

TEST(CompressionChoice, PacksWhereTheLinkIsSlow) {
  EXPECT_EQ(after_probe(costs(12.5e6), 1.0), GradientCompression::kInt8);
}

TEST(CompressionChoice, SendsAsItIsWhereTheLinkIsFast) {
  EXPECT_EQ(after_probe(costs(5e9), 1.0), GradientCompression::kOff);
}

TEST(CompressionChoice, ATieIsNotWorthPacking) {
  // int8 takes 8 ms of codec and 0.27 of the link's time: even where the link takes 11 ms.
  BucketCosts even = costs(kBytes / 11e-3);
  EXPECT_EQ(after_probe(even, 1.0), GradientCompression::kOff);
  even.all_reduce_s = 20e-3;
  EXPECT_EQ(after_probe(even, 1.0), GradientCompression::kInt8);
}

TEST(CompressionChoice, NothingIsPackedWhereRanksWaitForLessThanTheCodecsTake) {
  EXPECT_EQ(after_probe(costs(12.5e6), 5e-3), GradientCompression::kOff);
}

TEST(CompressionChoice, EachBucketIsJudgedByItsOwnCosts) {
  CompressionChoice choice(2, 2);
  while (choice.next_step() != Purpose::kProbe) choice.observe_exposed(1.0);
  choice.observe(0, costs(12.5e6));
  BucketCosts sparse = costs(12.5e6);
  for (auto& codec : sparse.codecs) codec.size = 0.6;
  sparse.codecs[2].size = 0.01;  // LZ4 finds zeros
  choice.observe(1, sparse);
  choice.end_probe();
  EXPECT_EQ(choice.method(0), GradientCompression::kInt8);
  EXPECT_EQ(choice.method(1), GradientCompression::kLz4);
}

TEST(CompressionChoice, IsMeasuredAgainNowAndThenMoreRarelyWhileNothingChanges) {
  CompressionChoice choice(1, 2);
  std::vector<int> probes;
  for (int step = 0; step < 4000; ++step) {
    const Purpose purpose = choice.next_step();
    if (purpose == Purpose::kBaseline) choice.observe_exposed(1.0);
    if (purpose != Purpose::kProbe) continue;
    probes.push_back(step);
    choice.observe(0, costs(step < 1000 ? 5e9 : 12.5e6));
    choice.end_probe();
  }
  ASSERT_GE(probes.size(), 4U);
  EXPECT_EQ(probes[0], CompressionChoice::kFirstProbe);
  EXPECT_GT(probes[2] - probes[1], probes[1] - probes[0]);
  EXPECT_LT(probes.size(), 20U);
  EXPECT_EQ(choice.method(0), GradientCompression::kInt8) << "the link became slow and nobody noticed";
}

}  // namespace
}  // namespace butterfly
