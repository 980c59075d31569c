#include "butterfly/tensor/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace butterfly {
namespace {

Storage must_allocate(Pool& pool, std::uint64_t bytes) {
  Result<Storage> storage = pool.allocate(bytes);
  EXPECT_TRUE(storage.has_value());
  return storage ? *storage : Storage{};
}

const PoolStatistics::SizeClass* class_of_size(const PoolStatistics& statistics, std::uint64_t block_bytes) {
  for (const auto& entry : statistics.classes) {
    if (entry.block_bytes == block_bytes) return &entry;
  }
  return nullptr;
}

TEST(Pool, EveryBlockIsAlignedAndHasTheSizeAskedFor) {
  const auto pool = Pool::create();
  for (std::uint64_t bytes : {1ull, 63ull, 64ull, 65ull, 1000ull, 4097ull, (2ull << 20) - 1, 2ull << 20, 5ull << 20}) {
    const Storage storage = must_allocate(*pool, bytes);
    ASSERT_EQ(storage.bytes.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(storage.bytes.data()) % kTensorAlignment, 0u);
    std::memset(storage.bytes.data(), 0x5a, storage.bytes.size());  // all of it can be written
  }
}

TEST(Pool, BlocksOfAHugePageAndMoreStartOnAHugePage) {
  const auto pool = Pool::create();
  const Storage storage = must_allocate(*pool, 3 << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(storage.bytes.data()) % (2 << 20), 0u);
}

TEST(Pool, SizesAreRoundedUpToPowersOfTwoFromSixtyFour) {
  const auto pool = Pool::create();
  const Storage a = must_allocate(*pool, 1);
  const Storage b = must_allocate(*pool, 65);
  const Storage c = must_allocate(*pool, 1025);
  const PoolStatistics statistics = pool->statistics();
  ASSERT_EQ(statistics.classes.size(), 3u);
  EXPECT_EQ(statistics.classes[0].block_bytes, 64u);
  EXPECT_EQ(statistics.classes[1].block_bytes, 128u);
  EXPECT_EQ(statistics.classes[2].block_bytes, 2048u);
  EXPECT_EQ(statistics.allocated_bytes, 64u + 128u + 2048u);
}

TEST(Pool, BlockGivenBackServesTheNextAllocationOfItsClass) {
  const auto pool = Pool::create();
  const std::byte* first = must_allocate(*pool, 1000).bytes.data();
  EXPECT_EQ(must_allocate(*pool, 600).bytes.data(), first);
  EXPECT_NE(must_allocate(*pool, 100).bytes.data(), first);
  const PoolStatistics statistics = pool->statistics();
  EXPECT_EQ(statistics.hits, 1u);
  EXPECT_EQ(statistics.misses, 2u);
  EXPECT_EQ(class_of_size(statistics, 1024)->hits, 1u);
  EXPECT_EQ(class_of_size(statistics, 1024)->misses, 1u);
}

TEST(Pool, BlockInUseIsNeverGivenOutAgain) {
  const auto pool = Pool::create();
  std::vector<Storage> held;
  std::vector<const std::byte*> addresses;
  for (int i = 0; i < 100; ++i) {
    held.push_back(must_allocate(*pool, 256));
    addresses.push_back(held.back().bytes.data());
  }
  std::sort(addresses.begin(), addresses.end());
  for (std::size_t i = 1; i < addresses.size(); ++i) ASSERT_GE(addresses[i] - addresses[i - 1], 256);
}

TEST(Pool, CopiesOfAStorageShareItAndTheLastOneGivesItBack) {
  const auto pool = Pool::create();
  Storage first = must_allocate(*pool, 64);
  Storage second = first;
  first = {};
  EXPECT_EQ(pool->statistics().allocated_bytes, 64u);
  second = {};
  EXPECT_EQ(pool->statistics().allocated_bytes, 0u);
  EXPECT_EQ(pool->statistics().reserved_bytes, 64u);
}

TEST(Pool, WaitingBlocksNeverExceedTheLimit) {
  const auto pool = Pool::create({.cached_bytes_max = 1000});
  {
    std::vector<Storage> held;
    for (int i = 0; i < 10; ++i) held.push_back(must_allocate(*pool, 256));
    EXPECT_EQ(pool->statistics().allocated_bytes_peak, 2560u);
  }
  const PoolStatistics statistics = pool->statistics();
  EXPECT_EQ(statistics.allocated_bytes, 0u);
  EXPECT_EQ(statistics.reserved_bytes, 768u);
  EXPECT_EQ(statistics.allocated_bytes_peak, 2560u);
}

TEST(Pool, TrimGivesEverythingWaitingToTheSystemAndNothingInUse) {
  const auto pool = Pool::create();
  const Storage held = must_allocate(*pool, 64);
  std::memset(held.bytes.data(), 1, 64);
  must_allocate(*pool, 4096);
  must_allocate(*pool, 4 << 20);
  EXPECT_EQ(pool->trim(), 4096u + (4u << 20));
  EXPECT_EQ(pool->trim(), 0u);
  EXPECT_EQ(pool->statistics().reserved_bytes, 64u);
  EXPECT_EQ(held.bytes[63], std::byte{1});
}

TEST(Pool, StorageOutlivesThePoolItCameFrom) {
  Storage storage;
  {
    const auto pool = Pool::create();
    storage = must_allocate(*pool, 100);
  }
  std::memset(storage.bytes.data(), 7, storage.bytes.size());
  EXPECT_EQ(storage.bytes[99], std::byte{7});
}

TEST(Pool, ZeroBytesNeedNoBlock) {
  const auto pool = Pool::create();
  const Storage storage = must_allocate(*pool, 0);
  EXPECT_TRUE(storage.bytes.empty());
  EXPECT_EQ(pool->statistics().misses, 0u);
}

TEST(Pool, ImpossibleSizesAreErrorsNamingTheSize) {
  const auto pool = Pool::create();
  for (std::uint64_t bytes : {std::numeric_limits<std::uint64_t>::max(), std::uint64_t{1} << 63,
                              (std::uint64_t{1} << 62) + 1, std::uint64_t{1} << 47}) {
    const Result<Storage> storage = pool->allocate(bytes);
    ASSERT_FALSE(storage.has_value()) << bytes;
    EXPECT_EQ(storage.error().code, ErrorCode::kNoMemory);
    EXPECT_NE(storage.error().message.find(std::to_string(bytes)), std::string::npos);
  }
  EXPECT_EQ(pool->statistics().allocated_bytes, 0u);
}

TEST(Pool, ThreadsNeverShareABlockAndTheBooksBalance) {
  const auto pool = Pool::create({.cached_bytes_max = 64 << 10});
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937 random(static_cast<unsigned>(id));
      std::vector<Storage> held;
      for (int step = 0; step < 3000; ++step) {
        if (held.size() < 8 && random() % 2 == 0) {
          held.push_back(must_allocate(*pool, 1 + random() % 5000));
          std::memset(held.back().bytes.data(), id, held.back().bytes.size());
        } else if (!held.empty()) {
          const std::size_t i = random() % held.size();
          for (std::byte byte : held[i].bytes) ASSERT_EQ(byte, static_cast<std::byte>(id));
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const PoolStatistics statistics = pool->statistics();
  EXPECT_EQ(statistics.allocated_bytes, 0u);
  EXPECT_LE(statistics.reserved_bytes, 64u << 10);
  EXPECT_GT(statistics.hits, 0u);
  EXPECT_EQ(pool->trim(), statistics.reserved_bytes);
}

}  // namespace
}  // namespace butterfly
