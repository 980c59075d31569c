#include "butterfly/train/gradients/reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "butterfly/train/gradients/gradient_codec.h"
#include "butterfly/train/gradients/gradient_tree.h"
#include "butterfly/train/gradients/replicas_test.h"

namespace butterfly {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kElements = 2000 + 16;  // neither whole buckets nor whole parts

/// The definition: leaves [first, first + count) of a tree whose leaves from `total` on are not there.
Floats tree_sum(int step, int first, int count, int total) {
  if (count == 1) return leaf_gradients(kElements, step, first);
  const Floats left = tree_sum(step, first, count / 2, total);
  if (first + count / 2 >= total) return left;
  const Floats right = tree_sum(step, first + count / 2, count / 2, total);
  Floats sum(kElements);
  for (std::size_t i = 0; i < kElements; ++i) sum[i] = left[i] + right[i];
  return sum;
}

Floats tree_sum(int step, int total) {
  return tree_sum(step, 0, static_cast<int>(std::bit_ceil(static_cast<unsigned>(total))), total);
}

std::vector<double> exact_sum(int step, int total) {
  std::vector<double> sum(kElements, 0.0);
  for (int leaf = 0; leaf < total; ++leaf) {
    const Floats values = leaf_gradients(kElements, step, leaf);
    for (std::size_t i = 0; i < kElements; ++i) sum[i] += values[i];
  }
  return sum;
}

void expect_near_exact(const Floats& sum, int step, int total, double tolerance) {
  const std::vector<double> exact = exact_sum(step, total);
  for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], exact[i], tolerance) << i;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(GradientTree, MaximalSubtreesAreAlignedPowersOfTwo) {
  EXPECT_THAT(maximal_subtrees(0, 8), ElementsAre(Subtree{0, 8}));
  EXPECT_THAT(maximal_subtrees(3, 8), ElementsAre(Subtree{3, 1}, Subtree{4, 4}));
  EXPECT_THAT(maximal_subtrees(1, 7), ElementsAre(Subtree{1, 1}, Subtree{2, 2}, Subtree{4, 2}, Subtree{6, 1}));
  EXPECT_THAT(maximal_subtrees(5, 5), ElementsAre());
}

TEST(LocalReducer, DeterministicSumsAreTheTreesWithAndWithoutATeam) {
  ThreadTeam team(2);
  for (ThreadTeam* used : {static_cast<ThreadTeam*>(nullptr), &team}) {
    TestReplica replica{.gradients = Floats(kElements, 0.0F), .reducer = {}};
    replica.reducer = make_local_reducer(replica.gradients, true, used);
    for (const int total : {1, 2, 3, 5, 6, 7, 8, 13, 16}) {
      ASSERT_TRUE(Replicas::take_step(replica, total, {.first = 0, .last = total, .total = total}));
      EXPECT_TRUE(same_bits(replica.gradients, tree_sum(total, total))) << total << " micro-batches";
    }
  }
}

TEST(DistCanonicalReducer, AnyNumberOfRanksAndAnySharesGiveTheTreesBits) {
  struct Case {
    int ranks;
    std::vector<double> speeds;
  };
  for (const int total : {8, 13}) {
    for (const Case& tried : std::vector<Case>{{1, {}},
                                               {2, {}},
                                               {2, {5, 2}},
                                               {3, {}},
                                               {3, {1, 5, 2}},
                                               {4, {}},
                                               {4, {1, 1, 4, 2}},
                                               {5, {2, 1, 1, 1, 3}},
                                               {8, {}}}) {
      Replicas replicas(tried.ranks, kElements, {.deterministic = true, .bucket_bytes = 1000});
      for (int step = 0; step < 2; ++step) {
        const auto reports = replicas.step(step, total, tried.speeds);
        const Floats expected = tree_sum(step, total);
        for (const TestReplica& replica : replicas.replicas) {
          ASSERT_TRUE(same_bits(replica.gradients, expected)) << tried.ranks << " ranks, " << total << " micro-batches";
        }
        for (const ReduceReport& report : reports) EXPECT_EQ(report.bytes_sent, report.formula_bytes);
      }
    }
  }
}

TEST(DistCanonicalReducer, SharesThatDoNotMakeUpTheStepAreRefused) {
  Replicas replicas(2, kElements, {.deterministic = true});
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto report = Replicas::take_step(replicas.replicas[rank], 0, {.first = 0, .last = 2, .total = 4});
      ASSERT_FALSE(report);
      EXPECT_EQ(report.error().code, ErrorCode::kProtocol);
      EXPECT_THAT(report.error().message, HasSubstr("rank 1 computes micro-batches [0, 2) of 4"));
    });
  }
}

TEST(DistBucketReducer, SumsAllMicroBatchesOfAllRanks) {
  for (const int ranks : {2, 3, 4}) {
    for (const std::int64_t bucket_bytes : {64, 1000, 1 << 20}) {
      Replicas replicas(ranks, kElements, {.bucket_bytes = bucket_bytes});
      for (int step = 0; step < 3; ++step) {
        const auto reports = replicas.step(step, 7);
        expect_near_exact(replicas.replicas[0].gradients, step, 7, 0.05);
        for (const TestReplica& replica : replicas.replicas) {
          ASSERT_TRUE(same_bits(replica.gradients, replicas.replicas[0].gradients));
        }
        for (const ReduceReport& report : reports) {
          EXPECT_EQ(report.bytes_sent, report.formula_bytes);
          EXPECT_GT(report.communication_s, 0.0);
        }
      }
    }
  }
}

TEST(DistBucketReducer, ReducesWhileTheLastBackwardPassGoesOn) {
  // Rank 1 has finished its backward pass; rank 0 waits in the middle of its own for the first bucket to be the sum.
  Replicas replicas(2, kElements, {.bucket_bytes = 64});
  const Floats both[] = {leaf_gradients(kElements, 0, 0), leaf_gradients(kElements, 0, 1)};
  std::jthread other(
      [&] { EXPECT_TRUE(Replicas::take_step(replicas.replicas[1], 0, {.first = 1, .last = 2, .total = 2})); });
  TestReplica& replica = replicas.replicas[0];
  replica.reducer->begin_step({.first = 0, .last = 1, .total = 2});
  std::ranges::copy(both[0], replica.gradients.begin());
  replica.reducer->gradients_ready(0, {.begin = kElements - 100, .end = kElements});
  // The second operation begins when the first, over the last elements, is over.
  while (replicas.collectives[0]->stats().operations < 2) std::this_thread::yield();
  EXPECT_EQ(replica.gradients[0], both[0][0]) << "summed before it was final";
  replica.reducer->micro_batch_done(0);
  EXPECT_TRUE(replica.reducer->finish());
  EXPECT_EQ(replica.gradients[0], both[0][0] + both[1][0]);
}

TEST(DistBucketReducer, ALostRankIsAnErrorOfTheStepAndNotAHang) {
  for (const bool deterministic : {false, true}) {
    Replicas replicas(3, kElements, {.deterministic = deterministic, .bucket_bytes = 1000});
    std::vector<std::jthread> threads;
    for (const std::size_t rank : {0U, 2U}) {
      threads.emplace_back([&, rank] {
        const int first = static_cast<int>(rank);
        const auto report =
            Replicas::take_step(replicas.replicas[rank], 0, {.first = first, .last = first + 1, .total = 3});
        ASSERT_FALSE(report);
        EXPECT_EQ(report.error().code, ErrorCode::kUnavailable);
      });
    }
    replicas.collectives[1]->abort();
  }
}

TEST(DistBucketReducer, GivingUpAStepInItsMiddleWakesTheOthers) {
  Replicas replicas(2, kElements, {.bucket_bytes = 1000});
  std::jthread other([&] {
    const auto report = Replicas::take_step(replicas.replicas[1], 0, {.first = 1, .last = 2, .total = 2});
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, ErrorCode::kUnavailable);
  });
  TestReplica& replica = replicas.replicas[0];
  replica.reducer->begin_step({.first = 0, .last = 1, .total = 2});
  replica.reducer->gradients_ready(0, {.begin = kElements / 2, .end = kElements});
  replica.reducer.reset();
}

TEST(DistCompressedReducer, AllRanksEndWithTheSameBits) {
  for (std::size_t method = 1; method < kGradientCompressions; ++method) {
    const auto compression = static_cast<GradientCompression>(method);
    for (const int ranks : {2, 5}) {
      Replicas replicas(ranks, kElements, {.compression = compression, .bucket_bytes = 3000});
      for (int step = 0; step < 4; ++step) {
        const auto reports = replicas.step(step, 7);
        for (const TestReplica& replica : replicas.replicas) {
          ASSERT_TRUE(same_bits(replica.gradients, replicas.replicas[0].gradients)) << method << " " << ranks;
        }
        for (const ReduceReport& report : reports) EXPECT_EQ(report.bytes_sent, report.formula_bytes) << method;
      }
    }
  }
}

TEST(DistCompressedReducer, SumsOfAllStepsAndWhatIsResidualAreAllGradients) {
  for (const auto method : {GradientCompression::kFp16, GradientCompression::kBf16, GradientCompression::kInt8,
                            GradientCompression::kAuto}) {
    Replicas replicas(3, kElements, {.compression = method, .bucket_bytes = 3000});
    std::vector<double> delivered(kElements, 0.0), all(kElements, 0.0);
    for (int step = 0; step < 20; ++step) {
      replicas.step(step, 3);
      const std::vector<double> exact = exact_sum(step, 3);
      std::vector<double> residual(kElements, 0.0);
      for (TestReplica& replica : replicas.replicas) {
        const auto residuals = replica.reducer->residuals();
        ASSERT_EQ(residuals.size(), 1U);
        for (std::size_t i = 0; i < kElements; ++i) residual[i] += residuals[0][i];
      }
      for (std::size_t i = 0; i < kElements; ++i) {
        delivered[i] += replicas.replicas[0].gradients[i];
        all[i] += exact[i];
        ASSERT_NEAR(delivered[i] + residual[i], all[i], 0.01 * (step + 1)) << "element " << i << " after step " << step;
      }
    }
  }
}

TEST(DistCompressedReducer, LosslessMethodsSumInTheOrderOfRanks) {
  for (const auto method : {GradientCompression::kLz4, GradientCompression::kZstd}) {
    Replicas replicas(3, kElements, {.compression = method, .bucket_bytes = 1000});
    replicas.step(0, 3);
    Floats expected = leaf_gradients(kElements, 0, 0);
    for (const int rank : {1, 2}) add_to(expected, leaf_gradients(kElements, 0, rank));
    EXPECT_TRUE(same_bits(replicas.replicas[0].gradients, expected));
    EXPECT_TRUE(replicas.replicas[0].reducer->residuals().empty());
  }
}

TEST(DistCompressedReducer, Int8SendsLittleMoreThanAQuarter) {
  Replicas replicas(2, kElements, {.compression = GradientCompression::kInt8, .bucket_bytes = 4096});
  const auto reports = replicas.step(0, 2);
  const auto ratio = static_cast<double>(reports[0].uncompressed_bytes) / static_cast<double>(reports[0].bytes_sent);
  EXPECT_NEAR(ratio, 128.0 / 34.0, 0.1);
}

TEST(DistCompressedReducer, WhatIsResidualIsPaidByABucketThatTravelsAsItIs) {
  Replicas replicas(2, kElements, {.compression = GradientCompression::kAuto, .bucket_bytes = 3000});
  for (TestReplica& replica : replicas.replicas) std::ranges::fill(replica.reducer->residuals()[0], 1000.0F);
  const auto reports = replicas.step(0, 2);  // nothing has been measured yet, so nothing is packed
  EXPECT_EQ(reports[0].buckets[0], 3U);
  const std::vector<double> exact = exact_sum(0, 2);
  for (std::size_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(replicas.replicas[0].gradients[i], exact[i] + 2000.0, 0.01) << i;
    ASSERT_EQ(replicas.replicas[0].reducer->residuals()[0][i], 0.0F) << i;
  }
}

TEST(DistCompressedReducer, AskingHowMuchResidualsTakeMakesNobodyPayThem) {
  Replicas replicas(2, kElements, {.compression = GradientCompression::kAuto, .bucket_bytes = 3000});
  std::vector<std::span<float>> residuals;
  for (TestReplica& replica : replicas.replicas) residuals.push_back(replica.reducer->residuals()[0]);
  replicas.step(0, 2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(replicas.replicas[rank].reducer->residual_bytes(), kElements * sizeof(float));
    std::ranges::fill(residuals[rank], 1000.0F);  // nobody has said so
  }
  replicas.step(1, 2);
  expect_near_exact(replicas.replicas[0].gradients, 1, 2, 0.01);
}

TEST(DistCompressedReducer, WhatIsWrittenToResidualsBetweenStepsIsPaidEachTime) {
  Replicas replicas(2, kElements, {.compression = GradientCompression::kAuto, .bucket_bytes = 3000});
  replicas.step(0, 2);
  for (TestReplica& replica : replicas.replicas) std::ranges::fill(replica.reducer->residuals()[0], 1000.0F);
  replicas.step(1, 2);
  const std::vector<double> exact = exact_sum(1, 2);
  for (std::size_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(replicas.replicas[0].gradients[i], exact[i] + 2000.0, 0.01) << i;
  }
}

/// Collectives over a line that takes a second for each 200 kB.
class SlowCollectives final : public Collectives {
 public:
  explicit SlowCollectives(Collectives& fast) : fast_(fast) {}
  int rank() const override { return fast_.rank(); }
  int size() const override { return fast_.size(); }
  Status all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                    AllReduceAlgorithm algorithm) override {
    return after([&] { return fast_.all_reduce(data, element_bytes, reduce, algorithm); });
  }
  std::uint64_t all_reduce_bytes(std::uint64_t bytes, AllReduceAlgorithm algorithm) const override {
    return fast_.all_reduce_bytes(bytes, algorithm);
  }
  Status all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) override {
    return after([&] { return fast_.all_to_all(parts, mine); });
  }
  Status all_gather(std::span<const MutableByteSpan> parts) override {
    return after([&] { return fast_.all_gather(parts); });
  }
  Status broadcast(MutableByteSpan data, int root) override { return fast_.broadcast(data, root); }
  Status barrier() override { return fast_.barrier(); }
  CollectiveStats stats() const override { return fast_.stats(); }
  void abort() override { fast_.abort(); }

 private:
  Status after(const std::function<Status()>& operation) {
    const std::uint64_t before = fast_.stats().bytes_sent;
    Status status = operation();
    std::this_thread::sleep_for(std::chrono::microseconds(5 * (fast_.stats().bytes_sent - before)));
    return status;
  }
  Collectives& fast_;
};

TEST(DistCompressedReducer, AutoPacksOnASlowLineAndAllRanksChooseAlike) {
  constexpr std::size_t kBig = 8192;
  auto fast = make_inproc_collectives(2);
  SlowCollectives lines[] = {SlowCollectives(*fast[0]), SlowCollectives(*fast[1])};
  std::vector<std::jthread> threads;
  std::array<std::uint32_t, 2> packed{};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      TestReplica replica{.gradients = Floats(kBig, 0.0F), .reducer = {}};
      replica.reducer = make_reducer({.gradients = replica.gradients,
                                      .collectives = &lines[rank],
                                      .compression = GradientCompression::kAuto,
                                      .bucket_bytes = kBig * sizeof(float)})
                            .value();
      for (int step = 0; step < 30; ++step) {
        const int first = static_cast<int>(rank);
        const auto report = Replicas::take_step(replica, step, {.first = first, .last = first + 1, .total = 2});
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_EQ(report->bytes_sent, report->formula_bytes);
        packed[rank] += 1 - report->buckets[0];
      }
    });
  }
  threads.clear();
  EXPECT_GT(packed[0], 0U);
  EXPECT_EQ(packed[0], packed[1]);
}

/// What two ranks with a slow line did in some steps.
struct SlowSteps {
  int lossy = 0, lossless = 0, plain_after_lossy = 0;
};

/// `gradient` and `residual` are those of each rank, each element, each step.
SlowSteps run_slow_steps(const std::function<float(int step, std::size_t i)>& gradient, float residual) {
  constexpr std::size_t kBig = 4096;
  auto fast = make_inproc_collectives(2);
  SlowCollectives lines[] = {SlowCollectives(*fast[0]), SlowCollectives(*fast[1])};
  SlowSteps steps;
  const auto member = [&](std::size_t rank) {
    Floats gradients(kBig);
    const auto reducer = make_reducer({.gradients = gradients,
                                       .collectives = &lines[rank],
                                       .compression = GradientCompression::kAuto,
                                       .bucket_bytes = kBig * sizeof(float)})
                             .value();
    const std::span<float> residuals = reducer->residuals()[0];  // once: who asks says that it may be other than zero
    bool lossy_before = false;
    for (int step = 0; step < 30; ++step) {
      if (residual != 0.0F) std::ranges::fill(reducer->residuals()[0], residual);
      for (std::size_t i = 0; i < kBig; ++i) gradients[i] = gradient(step, i);
      const int first = static_cast<int>(rank);
      reducer->begin_step({.first = first, .last = first + 1, .total = 2});
      reducer->gradients_ready(first, {.begin = 0, .end = kBig});
      reducer->micro_batch_done(first);
      const auto report = reducer->finish();
      ASSERT_TRUE(report) << report.error().message;
      bool lossy = false;
      for (std::size_t method = 0; method < kGradientCompressions; ++method)
        lossy = lossy || (report->buckets[method] > 0 && is_lossy(static_cast<GradientCompression>(method)));
      if (!lossy) {
        EXPECT_EQ(std::ranges::count(residuals, 0.0F), static_cast<std::ptrdiff_t>(kBig)) << "step " << step;
        if (residual != 0.0F) {
          EXPECT_EQ(gradients[7], 2 * (gradient(step, 7) + residual)) << "step " << step;
        }
      }
      if (rank == 0) {
        steps.lossy += lossy ? 1 : 0;
        steps.lossless += !lossy && report->buckets[0] == 0 ? 1 : 0;
        steps.plain_after_lossy += !lossy && lossy_before ? 1 : 0;
      }
      lossy_before = lossy;
    }
  };
  std::jthread other(member, 1);
  member(0);
  other.join();
  return steps;
}

// Fails when a bucket that was rounded and then travels with all its bits leaves its residual behind.
TEST(DistCompressedReducer, WhatRoundingOwesIsPaidByTheNextStepThatDoesNotRound) {
  std::mt19937 random(3);
  Floats noise(4096);
  for (float& value : noise) value = std::normal_distribution<float>()(random);
  const SlowSteps steps = run_slow_steps([&](int step, std::size_t i) { return noise[(i + 5 * step) % 4096]; }, 0.0F);
  EXPECT_GT(steps.lossy, 0);
  EXPECT_GT(steps.plain_after_lossy, 0);
}

TEST(DistCompressedReducer, WhatIsResidualIsPaidByABucketThatIsPackedWithoutRounding) {
  // Runs of two values: they pack well, and not so well that packing is refused (kExpansionMax).
  const auto gradient = [](int, std::size_t i) { return 1.0F + static_cast<float>((i / 32 * 2654435761U) >> 16 & 1U); };
  const SlowSteps steps = run_slow_steps(gradient, 1000.0F);
  EXPECT_GT(steps.lossless, 0);
}

TEST(Reducer, ImpossibleOptionsAreRefused) {
  const auto collectives = make_inproc_collectives(2);
  Floats gradients(100);
  const auto mixed = make_reducer({.gradients = gradients,
                                   .collectives = collectives[0].get(),
                                   .deterministic = true,
                                   .compression = GradientCompression::kInt8});
  ASSERT_FALSE(mixed);
  EXPECT_THAT(mixed.error().message, HasSubstr("compression = int8 and deterministic = true"));
  const auto empty = make_reducer({.gradients = gradients, .collectives = collectives[0].get(), .bucket_bytes = 8});
  ASSERT_FALSE(empty);
  EXPECT_THAT(empty.error().message, HasSubstr("bucket_bytes = 8"));
}

}  // namespace
}  // namespace butterfly
