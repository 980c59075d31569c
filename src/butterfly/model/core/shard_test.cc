#include "butterfly/model/core/shard.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

ModelConfig config() {
  ModelConfig c;
  c.heads = 32;
  c.kv_heads = 4;
  c.head_dim = 64;
  c.model_dim = 2048;
  c.ff_dim = 5632;
  c.vocab = 32000;
  return c;
}

TEST(Shard, AllSlicesAreTheWholeModel) {
  const Shard shard = shard_of(config(), {});
  EXPECT_EQ(shard.heads, (IndexRange{0, 32}));
  EXPECT_EQ(shard.kv_heads, (IndexRange{0, 4}));
  EXPECT_EQ(shard.ff, (IndexRange{0, 5632}));
  EXPECT_EQ(shard.vocab, (IndexRange{0, 32000}));
}

TEST(Shard, NeighboursShareTheKeyValueHeadsThatBothRead) {
  const Shard left = shard_of(config(), {0, 12});
  const Shard right = shard_of(config(), {12, 32});
  EXPECT_EQ(left.heads, (IndexRange{0, 12}));
  EXPECT_EQ(right.heads, (IndexRange{12, 32}));
  EXPECT_EQ(left.kv_heads, (IndexRange{0, 2})) << "heads 8 to 11 read the second";
  EXPECT_EQ(right.kv_heads, (IndexRange{1, 4})) << "heads 12 to 15 read it too";
  EXPECT_EQ(right.kv(), (IndexRange{64, 256}));
  EXPECT_EQ(right.q_dim(), 20 * 64);
}

TEST(Shard, EverythingIsHeldByExactlyOneMemberWhateverTheShape) {
  for (const int heads : {1, 3, 8, 12, 40}) {
    for (const int head_dim : {8, 32, 80}) {
      for (const int size : {1, 31, 96, 352, 50257}) {
        ModelConfig c = config();
        c.heads = c.kv_heads = heads;
        c.head_dim = head_dim;
        c.ff_dim = c.vocab = size;
        Shard last = shard_of(c, {0, 1});
        EXPECT_EQ(last.heads.begin + last.ff.begin + last.vocab.begin, 0);
        for (int slice = 1; slice < kReductionSlices; ++slice) {
          const Shard shard = shard_of(c, {slice, slice + 1});
          EXPECT_EQ(shard.heads.begin, last.heads.end);
          EXPECT_EQ(shard.ff.begin, last.ff.end);
          EXPECT_EQ(shard.vocab.begin, last.vocab.end);
          EXPECT_EQ(shard.kv_heads.size(), shard.heads.size()) << "as many as query heads";
          last = shard;
        }
        EXPECT_EQ(last.heads.end, heads);
        EXPECT_EQ(last.ff.end, size);
        EXPECT_EQ(last.vocab.end, size);
      }
    }
  }
}

TEST(Shard, SlicesOfAttentionAreWholeHeadsThatNoBlockOfActivationsCrosses) {
  ModelConfig c = config();
  c.heads = c.kv_heads = 12;
  c.head_dim = 8;
  const SliceBorders borders = attention_slices(c);
  for (int slice = 0; slice <= kReductionSlices; ++slice) EXPECT_EQ(borders.at(slice) % kQuantBlock, 0);
  EXPECT_EQ(shard_of(c, {0, 15}).heads.size(), 0) << "two units of 64 columns for 32 slices";
  EXPECT_EQ(shard_of(c, {15, 16}).heads, (IndexRange{0, 8}));
}

}  // namespace
}  // namespace butterfly
