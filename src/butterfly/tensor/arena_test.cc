#include "butterfly/tensor/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace butterfly {
namespace {

MutableByteSpan must_allocate(Arena& arena, std::uint64_t bytes) {
  const Result<MutableByteSpan> memory = arena.allocate(bytes);
  EXPECT_TRUE(memory.has_value());
  return memory ? *memory : MutableByteSpan{};
}

TEST(Arena, AllocationsAreAlignedAndDoNotOverlap) {
  Arena arena(Pool::create(), {.block_bytes = 512});
  std::vector<MutableByteSpan> all;
  for (std::uint64_t bytes : {1, 63, 64, 65, 300, 2000, 5}) {
    all.push_back(must_allocate(arena, bytes));
    ASSERT_EQ(all.back().size(), bytes);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(all.back().data()) % kTensorAlignment, 0u);
    std::memset(all.back().data(), static_cast<int>(all.size()), all.back().size());
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::byte byte : all[i]) ASSERT_EQ(byte, static_cast<std::byte>(i + 1));
  }
}

TEST(Arena, UsedCountsWholeLinesAndPeakSurvivesReset) {
  Arena arena(Pool::create());
  must_allocate(arena, 1);
  must_allocate(arena, 65);
  EXPECT_EQ(arena.used_bytes(), 64u + 128u);
  arena.reset();
  EXPECT_EQ(arena.used_bytes(), 0u);
  must_allocate(arena, 64);
  EXPECT_EQ(arena.used_bytes(), 64u);
  EXPECT_EQ(arena.peak_bytes(), 64u + 128u);
}

TEST(Arena, SameRequestAfterResetReusesTheSameMemory) {
  Arena arena(Pool::create());
  const std::byte* first = must_allocate(arena, 100).data();
  arena.reset();
  EXPECT_EQ(must_allocate(arena, 100).data(), first);
}

TEST(Arena, RequestThatOverflowedItsBlockFitsIntoOneAfterReset) {
  const auto pool = Pool::create();
  Arena arena(pool, {.block_bytes = 256});
  const auto request = [&] {
    for (int i = 0; i < 20; ++i) must_allocate(arena, 128);
  };
  request();
  EXPECT_GT(pool->statistics().misses, 1u);
  arena.reset();
  request();
  EXPECT_EQ(arena.reserved_bytes(), 20u * 128u);
  const std::uint64_t allocations = pool->statistics().misses + pool->statistics().hits;
  for (int i = 0; i < 5; ++i) {
    arena.reset();
    request();
  }
  EXPECT_EQ(pool->statistics().misses + pool->statistics().hits, allocations);
}

TEST(Arena, GivesItsBlocksBackToThePool) {
  const auto pool = Pool::create();
  {
    Arena arena(pool);
    must_allocate(arena, 100);
    Arena moved = std::move(arena);
    must_allocate(moved, 100);
    EXPECT_GT(pool->statistics().allocated_bytes, 0u);
  }
  EXPECT_EQ(pool->statistics().allocated_bytes, 0u);
}

TEST(Arena, ArraysHaveTheirCountAndImpossibleOnesAreErrors) {
  Arena arena(Pool::create());
  const Result<std::span<float>> array = arena.allocate_array<float>(33);
  ASSERT_TRUE(array.has_value());
  EXPECT_EQ(array->size(), 33u);
  const auto overflow = arena.allocate_array<float>((std::uint64_t{1} << 62) + 1);
  ASSERT_FALSE(overflow.has_value());
  EXPECT_EQ(overflow.error().code, ErrorCode::kNoMemory);
  EXPECT_FALSE(arena.allocate(std::numeric_limits<std::uint64_t>::max()).has_value());
  EXPECT_EQ(arena.used_bytes(), 192u);  // a refused allocation changes nothing
}

}  // namespace
}  // namespace butterfly
