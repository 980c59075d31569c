#include "butterfly/wire/tcp/break_even.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

constexpr std::uint64_t kLarge = 1 << 20;
constexpr CodecCost kQuick{.seconds_per_byte = 1 / 500e6, .saved = 0.15};
constexpr CodecCost kThorough{.seconds_per_byte = 1 / 150e6, .saved = 0.25};

Codec decide(double link_bytes_per_s, const CodecCost& lz4 = kQuick, const CodecCost& zstd = kThorough) {
  BreakEven one(Compression::kAuto);
  one.observe({lz4, zstd}, link_bytes_per_s);
  return one.choose(kLarge);
}

TEST(BreakEven, CompressesWhereTheBytesSavedTakeLongerThanTheCodec) {
  EXPECT_EQ(decide(1e6), Codec::kZstd) << "a slow link: the smaller the better";
  EXPECT_EQ(decide(20e6), Codec::kZstd);
  EXPECT_EQ(decide(50e6), Codec::kLz4) << "0.15 bytes take 3 ns, LZ4 2 ns; 0.25 bytes 5 ns, zstd 6.7 ns";
  EXPECT_EQ(decide(100e6), Codec::kNone);
  EXPECT_EQ(decide(3e9), Codec::kNone);
}

TEST(BreakEven, ALinkOfUnknownSpeedIsNotCompressedFor) {
  EXPECT_EQ(decide(0), Codec::kNone);
}

TEST(BreakEven, DataThatDoesNotShrinkIsNotCompressedOnAnyLink) {
  EXPECT_EQ(decide(1e3, {1e-9, 0}, {1e-9, 0}), Codec::kNone);
}

TEST(BreakEven, SmallPayloadsTravelAsTheyAreInEveryMode) {
  for (const Compression mode : {Compression::kOff, Compression::kAuto, Compression::kLz4, Compression::kZstd}) {
    BreakEven one(mode);
    one.observe({kQuick, kThorough}, 1e3);
    EXPECT_EQ(one.choose(BreakEven::kPayloadBytesMin - 1), Codec::kNone);
    EXPECT_FALSE(one.probe_is_due(BreakEven::kPayloadBytesMin - 1));
  }
}

TEST(BreakEven, WhatWasAskedForIsDoneWithoutProbes) {
  for (const auto& [mode, codec] : {std::pair(Compression::kOff, Codec::kNone),
                                    {Compression::kLz4, Codec::kLz4},
                                    {Compression::kZstd, Codec::kZstd}}) {
    BreakEven one(mode);
    for (int i = 0; i < 1000; ++i) EXPECT_FALSE(one.probe_is_due(kLarge));
    EXPECT_EQ(one.choose(kLarge), codec);
  }
}

int probes(BreakEven& one, int payloads, double link_bytes_per_s) {
  int count = 0;
  for (int i = 0; i < payloads; ++i) {
    if (!one.probe_is_due(kLarge)) continue;
    ++count;
    one.observe({kQuick, kThorough}, link_bytes_per_s);
  }
  return count;
}

TEST(BreakEven, AFastLinkCostsFewProbesAndFewerWithTime) {
  BreakEven one(Compression::kAuto);
  EXPECT_FALSE(one.probe_is_due(kLarge)) << "the first payload shows how fast the link is";
  EXPECT_EQ(probes(one, 60, 3e9), static_cast<int>(BreakEven::kFirstProbes));
  EXPECT_LE(probes(one, 100'000, 3e9), 7 + 100'000 / 4096 + 1);
  EXPECT_EQ(one.choose(kLarge), Codec::kNone);
}

TEST(BreakEven, ALinkThatBecomesSlowOrFastAgainIsNoticed) {
  BreakEven one(Compression::kAuto);
  probes(one, 1000, 3e9);
  EXPECT_EQ(one.choose(kLarge), Codec::kNone);
  probes(one, 100'000, 1e6);
  EXPECT_EQ(one.choose(kLarge), Codec::kZstd);
  probes(one, 2000, 3e9);
  EXPECT_EQ(one.choose(kLarge), Codec::kNone);
}

TEST(BreakEven, ALinkAtTheBorderDoesNotFlap) {
  BreakEven one(Compression::kAuto);
  const CodecCost useless{.seconds_per_byte = 1, .saved = 0};
  // Break-even is at 75 MB/s: compression begins where it wins clearly and stays until it loses.
  one.observe({kQuick, useless}, 70e6);
  EXPECT_EQ(one.choose(kLarge), Codec::kNone);
  for (int i = 0; i < 20; ++i) one.observe({kQuick, useless}, 40e6);
  EXPECT_EQ(one.choose(kLarge), Codec::kLz4);
  for (int i = 0; i < 20; ++i) one.observe({kQuick, useless}, 70e6);
  EXPECT_EQ(one.choose(kLarge), Codec::kLz4);
  for (int i = 0; i < 20; ++i) one.observe({kQuick, useless}, 90e6);
  EXPECT_EQ(one.choose(kLarge), Codec::kNone);
}

}  // namespace
}  // namespace butterfly
