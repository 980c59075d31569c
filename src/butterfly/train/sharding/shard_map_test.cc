#include "butterfly/train/sharding/shard_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace butterfly {
namespace {

std::unique_ptr<TrainableTransformer> small_transformer() {
  ModelConfig config = *named_config("tinytransformer-tiny");
  return TrainableTransformer::create(config, {.micro_batch = 1, .seq = 8}).value();
}

class ShardMaps : public ::testing::TestWithParam<int> {};

TEST_P(ShardMaps, PartsCoverEachBucketAtChunksAndComeNearTheirShares) {
  const auto transformer = small_transformer();
  const ParameterSet& parameters = transformer->parameters();
  const int ranks = GetParam();
  std::vector<double> shares;
  for (int rank = 0; rank < ranks; ++rank) shares.push_back(rank + 1.0);
  const ShardMap map(parameters, transformer->units(),
                     {.ranks = ranks, .group = ranks, .shares = shares, .bucket_bytes = 1 << 18});
  std::vector<std::int64_t> borders{0};
  for (const UpdateChunk& chunk : update_chunks(parameters)) borders.push_back(chunk.range.begin);
  std::int64_t next = 0;
  for (std::size_t bucket = 0; bucket < map.buckets().size(); ++bucket) {
    EXPECT_EQ(map.buckets()[bucket].begin, next);
    for (int rank = 0; rank < ranks; ++rank) {
      const ParameterRange part = map.part(bucket, rank);
      EXPECT_EQ(part.begin, next);
      EXPECT_TRUE(std::ranges::binary_search(borders, part.begin) || part.begin == parameters.padded_size());
      next = part.end;
    }
    EXPECT_EQ(map.buckets()[bucket].end, next);
  }
  EXPECT_EQ(next, parameters.padded_size());
  const double sum = ranks * (ranks + 1) / 2.0;
  for (int rank = 0; rank < ranks; ++rank) {
    const double expected = static_cast<double>(parameters.padded_size()) * (rank + 1) / sum;
    EXPECT_NEAR(static_cast<double>(map.owned_elements(rank)), expected, 1.5 * UpdateChunk::kElements) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardMaps, ::testing::Values(1, 2, 3, 4, 7));

TEST(ShardMap, NoBucketCrossesAUnit) {
  const auto transformer = small_transformer();
  const auto units = transformer->units();
  const ShardMap map(transformer->parameters(), units, {.ranks = 2, .group = 2, .bucket_bytes = 1 << 30});
  std::size_t ranges = 0, seen = 0;
  for (int unit = 0; unit < map.units(); ++unit) {
    ranges += units[static_cast<std::size_t>(unit)].ranges.size();
    for (const std::size_t bucket : map.buckets_of(unit)) {
      EXPECT_EQ(map.buckets()[bucket].begin, units[static_cast<std::size_t>(unit)].ranges[seen > 0 && unit == 0].begin);
      ++seen;
    }
  }
  EXPECT_EQ(seen, ranges);
  EXPECT_EQ(map.buckets().size(), ranges);
}

TEST(ShardMap, GroupsHoldTheSame) {
  const auto transformer = small_transformer();
  const ShardMap map(transformer->parameters(), transformer->units(), {.ranks = 4, .group = 2});
  EXPECT_EQ(map.owned(0), map.owned(2));
  EXPECT_EQ(map.owned(1), map.owned(3));
  EXPECT_EQ(map.owned_elements(0) + map.owned_elements(1), transformer->parameters().padded_size());
}

// Fails when a unit that is given as a whole is divided, or is nobody's.
TEST(ShardMap, WholeUnitsAreTheirOwnersAndTheirMirrors) {
  const auto transformer = small_transformer();
  const auto units = transformer->units();
  const std::vector<int> owners{2, 0, 0, 1, 1};
  const ShardMap map(transformer->parameters(), units,
                     {.ranks = 3, .group = 3, .mirrors = 1, .owners = owners, .bucket_bytes = 1 << 18});
  std::int64_t all = 0;
  for (int rank = 0; rank < 3; ++rank) all += map.owned_elements(rank);
  EXPECT_EQ(all, transformer->parameters().padded_size());
  for (int unit = 0; unit < map.units(); ++unit) {
    const int owner = owners[static_cast<std::size_t>(unit)];
    for (const std::size_t bucket : map.buckets_of(unit)) {
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(map.part(bucket, rank).size(), rank == owner ? map.buckets()[bucket].size() : 0);
      }
    }
  }
  EXPECT_EQ(map.mirrored_by(0), std::vector<int>{2});
}

}  // namespace
}  // namespace butterfly
