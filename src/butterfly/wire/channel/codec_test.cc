#include "butterfly/wire/channel/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace butterfly {
namespace {

/// What activations look like: exponents alike, low bits random.
std::vector<std::byte> activations(std::size_t bytes, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  std::vector<float> values(bytes / 4 + 1);
  for (float& value : values) value = normal(engine);
  const ByteSpan all = std::as_bytes(std::span(values));
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(bytes)};
}

bool equal_bytes(ByteSpan a, ByteSpan b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

std::vector<std::byte> with_size(ByteSpan packed, std::uint64_t size) {
  std::vector<std::byte> bytes(packed.begin(), packed.end());
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes;
}

const std::vector<Packing>& all_packings() {
  static const std::vector<Packing> all = [] {
    std::vector<Packing> made;
    for (const Codec codec : kCodecs) {
      for (const int bytes : {1, 2, 4}) made.push_back({codec, bytes});
    }
    return made;
  }();
  return all;
}

TEST(Codec, EveryPackedPayloadUnpacksToTheSameBytesWhateverItsSizeAndElements) {
  PayloadCodec codec;
  int packed_count = 0;
  for (const Packing& packing : all_packings()) {
    for (const std::size_t bytes : {0u, 1u, 9u, 10u, 63u, 1023u, 4097u, 65'535u, 300'001u}) {
      const auto payload = activations(bytes, 1);
      const auto packed = codec.pack(payload, packing);
      if (!packed) continue;
      ++packed_count;
      EXPECT_LT(packed->bytes.size(), bytes);
      const auto again = codec.unpack(packed->bytes, packing, {}, bytes);
      ASSERT_TRUE(again) << again.error().message;
      EXPECT_TRUE(equal_bytes(again->bytes, payload))
          << to_string(packing.codec) << " " << packing.element_bytes << " " << bytes;
    }
  }
  EXPECT_GE(packed_count, 6) << "floats side by side do compress";
}

TEST(Codec, ShufflingPutsBytesOfEqualSignificanceSideBySideAndKeepsTheRest) {
  std::vector<std::byte> in(11), out(11), again(11);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i);
  shuffle_bytes(in, 4, out);
  const std::vector<int> expected{0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10};
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::to_integer<int>(out[i]), expected[i]) << i;
  unshuffle_bytes(out, 4, again);
  EXPECT_EQ(again, in);
}

TEST(Codec, FloatsPackSmallerWhenShuffled) {
  PayloadCodec codec;
  const auto payload = activations(1 << 18, 2);
  for (const Codec kind : kCodecs) {
    const auto plain = codec.pack(payload, {kind, 1});
    const auto shuffled = codec.pack(payload, {kind, 4});
    ASSERT_TRUE(shuffled) << to_string(kind);
    EXPECT_LT(shuffled->bytes.size(), plain ? plain->bytes.size() : payload.size()) << to_string(kind);
  }
}

TEST(Codec, WhatDoesNotGetSmallerIsLeftAsItIs) {
  std::vector<std::byte> noise(100'000);
  std::mt19937 engine(3);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(engine() >> 11);
  PayloadCodec codec;
  for (const Packing& packing : all_packings()) EXPECT_FALSE(codec.pack(noise, packing));
}

TEST(Codec, WhatWouldBecomeTooManyTimesLargerIsLeftAsItIs) {
  const std::vector<std::byte> zeros(1 << 20);
  PayloadCodec codec;
  EXPECT_FALSE(codec.pack(zeros, {Codec::kZstd, 4})) << "zstd makes a few bytes of them, which no receiver would take";
}

TEST(Codec, ASizeOverTheLimitIsRefusedBeforeAnythingIsAllocated) {
  PayloadCodec codec;
  const PayloadAllocator never = [](std::uint64_t) -> Result<Payload> {
    ADD_FAILURE() << "allocated";
    return make_error(ErrorCode::kNoMemory, "never");
  };
  const auto payload = activations(100'000, 4);
  for (const Packing& packing : all_packings()) {
    const auto packed = codec.pack(payload, packing);
    if (!packed) continue;
    EXPECT_EQ(codec.unpack(packed->bytes, packing, never, payload.size() - 1).error().code, ErrorCode::kProtocol);
    const auto bomb = with_size(packed->bytes, kExpansionMax * (packed->bytes.size() + 1));
    EXPECT_EQ(codec.unpack(bomb, packing, never, 1ull << 40).error().code, ErrorCode::kProtocol);
    const auto huge = with_size(packed->bytes, ~0ull);
    EXPECT_EQ(codec.unpack(huge, packing, never, ~0ull).error().code, ErrorCode::kProtocol);
    EXPECT_EQ(codec.unpack(with_size(packed->bytes, 0), packing, never, 1000).error().code, ErrorCode::kProtocol);
  }
  EXPECT_EQ(codec.unpack(std::vector<std::byte>(8), {Codec::kLz4, 4}, never, 1000).error().code, ErrorCode::kProtocol);
}

TEST(Codec, EveryTruncationAWrongSizeAndDamageAreRefusedOrGiveThePayloadsSize) {
  PayloadCodec codec;
  const auto payload = activations(3'000, 5);
  std::mt19937 engine(6);
  for (const Packing& packing : all_packings()) {
    const auto packed = codec.pack(payload, packing);
    if (!packed) continue;
    for (std::size_t bytes = 0; bytes < packed->bytes.size(); bytes += 7) {
      EXPECT_FALSE(codec.unpack(packed->bytes.first(bytes), packing, {}, payload.size())) << bytes;
    }
    for (const std::uint64_t size : {payload.size() - 1, payload.size() + 1}) {
      EXPECT_FALSE(codec.unpack(with_size(packed->bytes, size), packing, {}, 10'000)) << size;
    }
    for (int i = 0; i < 500; ++i) {
      std::vector<std::byte> damaged(packed->bytes.begin(), packed->bytes.end());
      damaged[kPackedHeadBytes + engine() % (damaged.size() - kPackedHeadBytes)] ^=
          static_cast<std::byte>(1 + engine() % 255);
      const auto unpacked = codec.unpack(damaged, packing, {}, payload.size());
      EXPECT_TRUE(!unpacked || unpacked->bytes.size() == payload.size());
    }
  }
}

}  // namespace
}  // namespace butterfly
