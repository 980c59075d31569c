// Runs whose ranks hold parts of the state end with the weights of the run on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "butterfly/train/run/tiny_run_test.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

/// Parameters of several chunks, so that ranks have something to divide.
ModelConfig divisible_shape() {
  ModelConfig config = tiny_shape();
  config.layers = 2;
  config.model_dim = 64;
  config.head_dim = 32;
  config.rope.dim = 32;
  config.ff_dim = 320;
  return config;
}

RunConfig divided_run(ParallelStrategy strategy, int ranks) {
  RunConfig config = tiny_run();
  config.shape = divisible_shape();
  config.global_batch = 12;
  config.micro_batch = 1;
  config.steps = 4;
  config.parallel.strategy = strategy;
  config.parallel.ranks = ranks;
  config.parallel.bucket_bytes = 64 * 1024;
  return config;
}

struct RankResult {
  Result<TrainResult> result = make_error(ErrorCode::kUnavailable, "did not run");
  std::vector<StepReport> steps{};
  double kept = 0.0;  // share of the weights that it has of its own, at the end
};

double share_of_own_weights(const ParameterSet& parameters) {
  const std::span<const float> own = parameters.own_weights();
  return 1.0 - static_cast<double>(std::ranges::count(own, 0.0F)) / static_cast<double>(own.size());
}

/// Each rank as a thread; rank 0's observer counts its steps.
std::vector<RankResult> run_ranks(const RunConfig& config) {
  const int ranks = config.parallel.ranks;
  const auto collectives = make_inproc_collectives(ranks);
  std::vector<RankResult> results(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      RankResult& mine = results[static_cast<std::size_t>(rank)];
      Collectives* of_rank = collectives[static_cast<std::size_t>(rank)].get();
      auto trainer = RankTrainer::create(config, {.rank = rank,
                                                  .size = ranks,
                                                  .collectives = ranks == 1 ? nullptr : of_rank,
                                                  .speeds = config.parallel.speeds});
      if (!trainer) {
        mine.result = tl::unexpected(trainer.error());
        return of_rank->abort();
      }
      TrainObserver observer;
      observer.step = [&](const StepReport& report, std::int64_t) { mine.steps.push_back(report); };
      mine.result = (*trainer)->run(observer, {});
      mine.kept = share_of_own_weights((*trainer)->parameters());
      if (!mine.result) of_rank->abort();
    });
  }
  threads.clear();
  return results;
}

std::string hash_of(const RunConfig& config) {
  const auto results = run_ranks(config);
  for (const RankResult& rank : results) {
    EXPECT_TRUE(rank.result) << (rank.result ? "" : rank.result.error().message);
    if (!rank.result) return "failed";
    EXPECT_EQ(rank.result->weights_hash, results[0].result->weights_hash);
    EXPECT_EQ(rank.steps.back().loss, results[0].steps.back().loss);
  }
  return results[0].result->weights_hash;
}

constexpr ParallelStrategy kDivided[] = {ParallelStrategy::kZero1, ParallelStrategy::kZero2, ParallelStrategy::kZero3,
                                         ParallelStrategy::kHybrid};

TEST(ShardedRun, EndsWithTheBitsOfOneRank) {
  const std::string one = hash_of(divided_run(ParallelStrategy::kDdp, 1));
  for (const ParallelStrategy strategy : kDivided) {
    for (const int ranks : {2, 3}) {
      EXPECT_EQ(hash_of(divided_run(strategy, ranks)), one) << static_cast<int>(strategy) << ", " << ranks << " ranks";
    }
  }
}

// Fails when rank 0, which makes the weights of ranks on other machines, keeps them.
TEST(ShardedRun, WhoGivesOthersTheirPartKeepsItsOwnAlone) {
  RunConfig config = divided_run(ParallelStrategy::kZero3, 2);
  config.parallel.mirror = 0;
  const std::string one = hash_of(config);
  config.parallel.workers = {"b:1"};
  const auto results = run_ranks(config);
  ASSERT_TRUE(results[0].result) << results[0].result.error().message;
  EXPECT_EQ(results[0].result->weights_hash, one);
  EXPECT_LT(results[0].kept, 0.7);
}

TEST(ShardedRun, UnevenSharesAndGroupsDoNotShow) {
  const std::string one = hash_of(divided_run(ParallelStrategy::kDdp, 1));
  for (const ParallelStrategy strategy : kDivided) {
    RunConfig config = divided_run(strategy, 3);
    config.parallel.speeds = {1, 5, 2};
    config.parallel.state_shares = {3, 1, 2};
    EXPECT_EQ(hash_of(config), one) << static_cast<int>(strategy);
  }
  RunConfig groups = divided_run(ParallelStrategy::kHybrid, 4);
  groups.parallel.shard_group = 2;
  EXPECT_EQ(hash_of(groups), one);
}

TEST(ShardedRun, HoldsForEveryKindOfModelAndPrecision) {
  const auto check = [](const char* what, const std::function<void(RunConfig&)>& change) {
    RunConfig config = divided_run(ParallelStrategy::kDdp, 1);
    change(config);
    const std::string one = hash_of(config);
    config.parallel.strategy = ParallelStrategy::kZero3;
    config.parallel.ranks = 2;
    EXPECT_EQ(hash_of(config), one) << what;
  };
  check("bf16", [](RunConfig& config) { config.precision = Precision::kBfloat16; });
  check("recomputed", [](RunConfig& config) { config.recompute = Recompute::kBlock; });
  check("tied", [](RunConfig& config) { config.shape.tied_head = true; });
  check("sgd", [](RunConfig& config) { config.optimizer.kind = OptimizerKind::kSgd; });
  check("frozen", [](RunConfig& config) { config.frozen = {"blk.0."}; });
  check("evaluated", [](RunConfig& config) { config.evaluate_every = 1; });
  check("experts", [](RunConfig& config) { config.shape = tiny_expert_shape(); });
}

TEST(ShardedRun, ItsVerdictIsValidAndItsBytesAreTheFormulas) {
  // What a rank sends of (n - 1) / n of the parameters: gradients once, weights once or twice.
  const std::pair<ParallelStrategy, double> kTimes[] = {
      {ParallelStrategy::kZero1, 2.0}, {ParallelStrategy::kZero2, 2.0}, {ParallelStrategy::kZero3, 3.0}};
  constexpr int kRanks = 3;
  for (const auto& [strategy, times] : kTimes) {
    RunConfig config = divided_run(strategy, kRanks);
    config.steps = 2;
    config.shape.ff_dim = 2048;
    config.global_batch = kRanks;
    config.parallel.deterministic = false;
    config.parallel.mirror = 0;
    const auto results = run_ranks(config);
    double bytes = 0.0;
    for (const RankResult& rank : results) {
      ASSERT_TRUE(rank.result) << rank.result.error().message;
      EXPECT_TRUE(rank.result->verdict.valid) << to_string(rank.result->verdict);
      bytes += static_cast<double>(rank.steps.back().reduced.bytes_sent);
    }
    const ParameterSet parameters = ParameterSet::create(config.shape).value();
    const double expected = times * (kRanks - 1) * static_cast<double>(parameters.weights().size_bytes());
    EXPECT_NEAR(bytes, expected, 0.01 * expected) << static_cast<int>(strategy);
  }
}

TEST(ShardedRun, WithoutDeterminismTheLossesAreThoseOfOneRankWithinRounding) {
  RunConfig config = divided_run(ParallelStrategy::kDdp, 1);
  config.parallel.deterministic = false;
  const double one = run_ranks(config)[0].steps.back().loss;
  for (const ParallelStrategy strategy : kDivided) {
    config.parallel.strategy = strategy;
    config.parallel.ranks = 3;
    EXPECT_NEAR(run_ranks(config)[0].steps.back().loss, one, 1e-5) << static_cast<int>(strategy);
  }
}

/// Passes on what another does, but the member does not hear that a barrier was passed: it was cut off at that moment.
class UnheardBarrier final : public Collectives {
 public:
  explicit UnheardBarrier(Collectives& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Status all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                    AllReduceAlgorithm algorithm) override {
    return inner_.all_reduce(data, element_bytes, reduce, algorithm);
  }
  std::uint64_t all_reduce_bytes(std::uint64_t bytes, AllReduceAlgorithm algorithm) const override {
    return inner_.all_reduce_bytes(bytes, algorithm);
  }
  Status all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) override {
    return inner_.all_to_all(parts, mine);
  }
  Status all_gather(std::span<const MutableByteSpan> parts) override { return inner_.all_gather(parts); }
  Status broadcast(MutableByteSpan data, int root) override { return inner_.broadcast(data, root); }
  Status barrier() override {
    BF_TRY(inner_.barrier());
    inner_.abort();
    return make_error(ErrorCode::kUnavailable, "cut off");
  }
  CollectiveStats stats() const override { return inner_.stats(); }
  void abort() override { inner_.abort(); }

 private:
  Collectives& inner_;
};

/// Ranks whose epochs the test begins and ends.
struct EpochRanks {
  std::vector<std::unique_ptr<RankTrainer>> trainers{};
  std::vector<std::unique_ptr<Collectives>> kept{};  // trainers hold those of the epoch before

  /// All take part; after step `last` (-1: never) rank 0 ends the epoch. `unheard`: the rank that does not hear of a
  /// barrier. The hashes of those who came to the end.
  std::vector<std::string> epoch(const RunConfig& config, std::int64_t last, int unheard = -1) {
    const auto size = static_cast<int>(trainers.size());
    auto made = make_inproc_collectives(size);
    if (unheard >= 0) {
      auto& cut_off = made[static_cast<std::size_t>(unheard)];
      kept.push_back(std::move(cut_off));
      cut_off = std::make_unique<UnheardBarrier>(*kept.back());
    }
    std::vector<std::string> hashes(trainers.size());
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto at = static_cast<std::size_t>(rank);
        const TrainRank place{.rank = rank, .size = size, .collectives = made[at].get()};
        if (trainers[at] == nullptr) {
          trainers[at] = RankTrainer::create(config, place).value();
        } else {
          ASSERT_TRUE(trainers[at]->adopt(place));
        }
        TrainObserver observer;
        observer.step = [&](const StepReport& report, std::int64_t) {
          if (rank == 0 && report.step == last) made[at]->abort();
        };
        const auto result = trainers[at]->run(observer, {});
        if (result) hashes[at] = result->weights_hash;
        if (!result) made[at]->abort();
      });
    }
    threads.clear();
    for (auto& collectives : made) kept.push_back(std::move(collectives));
    return hashes;
  }
  void lose(int rank) { trainers.erase(trainers.begin() + rank); }
};

TEST(ShardedRun, ARankThatDidNotHearThatAllHadTakenOverLearnsItInTheNextEpoch) {
  for (const ParallelStrategy strategy :
       {ParallelStrategy::kZero1, ParallelStrategy::kZero2, ParallelStrategy::kZero3}) {
    RunConfig config = divided_run(strategy, 4);
    config.steps = 8;
    RunConfig alone = divided_run(ParallelStrategy::kDdp, 1);
    alone.steps = 8;
    EpochRanks ranks;
    ranks.trainers.resize(4);
    (void)ranks.epoch(config, 2);
    ranks.lose(3);
    (void)ranks.epoch(config, -1, 1);  // ends at the barrier: ranks 0 and 2 have passed it, rank 1 does not know
    ranks.lose(2);
    const std::vector<std::string> hashes = ranks.epoch(config, -1);
    EXPECT_EQ(hashes, std::vector<std::string>(2, hash_of(alone))) << static_cast<int>(strategy);
  }
}

class ShardedCheckpoint : public ::testing::Test {
 protected:
  RunConfig saved(ParallelStrategy strategy, int ranks) {
    RunConfig config = divided_run(strategy, ranks);
    config.checkpoint.directory = folder_.path() + "/run";
    config.checkpoint.every_steps = 2;
    config.checkpoint.keep = 9;
    return config;
  }
  std::string middle() const { return checkpoint_path(folder_.path() + "/run", 2); }

  TestFolder folder_;
};

TEST_F(ShardedCheckpoint, IsReadByAnotherNumberOfRanksAndAnotherStrategy) {
  const std::string whole = hash_of(saved(ParallelStrategy::kZero3, 3));
  EXPECT_FALSE(std::filesystem::exists(middle() + "/weights.f32"));
  EXPECT_TRUE(std::filesystem::exists(middle() + "/moment-1.0002.f32"));
  const std::pair<ParallelStrategy, int> kOthers[] = {{ParallelStrategy::kDdp, 1},
                                                      {ParallelStrategy::kZero1, 4},
                                                      {ParallelStrategy::kZero2, 2},
                                                      {ParallelStrategy::kZero3, 2}};
  for (const auto& [strategy, ranks] : kOthers) {
    RunConfig next = divided_run(strategy, ranks);
    next.resume = middle();
    EXPECT_EQ(hash_of(next), whole) << static_cast<int>(strategy) << ", " << ranks << " ranks";
  }
}

TEST_F(ShardedCheckpoint, OfOneRankIsReadByRanksThatHoldParts) {
  const std::string whole = hash_of(saved(ParallelStrategy::kDdp, 1));
  for (const ParallelStrategy strategy : kDivided) {
    RunConfig next = divided_run(strategy, 3);
    next.resume = middle();
    EXPECT_EQ(hash_of(next), whole) << static_cast<int>(strategy);
  }
}

TEST_F(ShardedCheckpoint, AChangedByteOfAPartIsNamed) {
  (void)hash_of(saved(ParallelStrategy::kZero2, 2));
  const std::string part = middle() + "/moment-0.0001.f32";
  {
    std::fstream file(part, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.put('x');
  }
  RunConfig next = divided_run(ParallelStrategy::kDdp, 1);
  next.resume = middle();
  const auto refused = run_ranks(next)[0].result;
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr(part));
  EXPECT_THAT(refused.error().message, HasSubstr("corrupt"));
}

TEST_F(ShardedCheckpoint, AMissingPartIsNamed) {
  (void)hash_of(saved(ParallelStrategy::kZero2, 2));
  std::filesystem::remove(middle() + "/weights.0001.f32");
  RunConfig next = divided_run(ParallelStrategy::kDdp, 1);
  next.resume = middle();
  const auto refused = run_ranks(next)[0].result;
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("weights.0001.f32: is missing"));
}

TEST(ShardedRunConfig, WhatDoesNotGoTogetherIsRefused) {
  RunConfig config = divided_run(ParallelStrategy::kZero1, 2);
  config.parallel.deterministic = false;
  config.parallel.compression = GradientCompression::kInt8;
  EXPECT_THAT(validate(config).error().message, HasSubstr("packs the gradients of ddp"));
  config = divided_run(ParallelStrategy::kHybrid, 3);
  config.parallel.shard_group = 2;
  EXPECT_THAT(validate(config).error().message, HasSubstr("does not divide the 3 ranks"));
  config = divided_run(ParallelStrategy::kZero3, 2);
  config.parallel.shard_group = 2;
  EXPECT_THAT(validate(config).error().message, HasSubstr("only hybrid has groups"));
  config = divided_run(ParallelStrategy::kZero3, 2);
  config.parallel.state_shares = {1, 2, 3};
  EXPECT_THAT(validate(config).error().message, HasSubstr("3 numbers for a group of 2"));
}

}  // namespace
}  // namespace butterfly
