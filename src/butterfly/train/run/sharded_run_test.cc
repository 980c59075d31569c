// Runs whose ranks hold parts of the state end with the weights of the run on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "butterfly/train/sharding/thread_ranks_test.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

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
  check("experts", [](RunConfig& config) { config.shape = tiny_expert_shape(); });
  if (kSanitized) return;
  check("recomputed", [](RunConfig& config) { config.recompute = Recompute::kBlock; });
  check("tied", [](RunConfig& config) { config.shape.tied_head = true; });
  check("sgd", [](RunConfig& config) { config.optimizer.kind = OptimizerKind::kSgd; });
  check("frozen", [](RunConfig& config) { config.frozen = {"blk.0."}; });
  check("evaluated", [](RunConfig& config) {
    config.evaluate_every = 1;
    config.data.validation_share = 0.1;
  });
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

// Fails when a pass of several micro-batches leaves one out, or counts one twice.
TEST(ShardedRun, AFastRankComputesSeveralMicroBatchesInOnePassAndSendsLess) {
  RunConfig config = divided_run(ParallelStrategy::kDdp, 1);
  config.parallel.deterministic = false;
  config.evaluate_every = 2;
  config.data.validation_share = 0.1;
  const double one = run_ranks(config)[0].steps.back().loss;
  for (const ParallelStrategy strategy : {ParallelStrategy::kZero2, ParallelStrategy::kZero3}) {
    if (kSanitized && strategy == ParallelStrategy::kZero2) continue;
    config.parallel.strategy = strategy;
    config.parallel.ranks = 2;
    config.parallel.mirror = 0;
    std::uint64_t sent[2] = {};
    for (const bool deterministic : {true, false}) {
      config.parallel.deterministic = deterministic;
      config.parallel.speeds = {3, 1};  // 9 and 3
      const auto results = run_ranks(config);
      for (const RankResult& rank : results) {
        ASSERT_TRUE(rank.result) << rank.result.error().message;
        EXPECT_TRUE(rank.result->verdict.valid) << to_string(rank.result->verdict);
        EXPECT_NEAR(rank.steps.back().loss, one, 1e-5) << static_cast<int>(strategy);
      }
      sent[deterministic ? 0 : 1] = results[0].steps.back().reduced.bytes_sent;
    }
    EXPECT_LT(sent[1], sent[0] / 2) << static_cast<int>(strategy);
  }
}

// Fails when a step of few micro-batches cannot follow speeds, or a pass that is no whole micro-batch is not counted.
TEST(ShardedRun, SharesFollowSpeedsToTheSequence) {
  RunConfig config = divided_run(ParallelStrategy::kDdp, 1);
  config.parallel.deterministic = false;
  config.micro_batch = 4;
  const double one = run_ranks(config)[0].steps.back().loss;
  for (const ParallelStrategy strategy : {ParallelStrategy::kDdp, ParallelStrategy::kZero1, ParallelStrategy::kZero3}) {
    config.parallel.strategy = strategy;
    config.parallel.ranks = 2;
    config.parallel.speeds = {17, 7};  // whole micro-batches would be 8 and 4
    const auto results = run_ranks(config);
    ASSERT_TRUE(results[0].result) << results[0].result.error().message;
    EXPECT_TRUE(results[0].result->verdict.valid) << to_string(results[0].result->verdict);
    EXPECT_NEAR(results[0].steps.back().loss, one, 1e-5) << static_cast<int>(strategy);
    ASSERT_EQ(results[0].result->ranks.size(), 2U);
    const int samples = results[0].result->ranks[1].samples;
    EXPECT_NE(samples % config.micro_batch, 0) << static_cast<int>(strategy);
    EXPECT_NEAR(samples, config.global_batch * 7.0 / 24.0, 0.5) << static_cast<int>(strategy);
  }
}

/// A rank that takes its time, and what rank 0 says of it.
struct SlowRank {
  static constexpr std::chrono::milliseconds kPass{kSanitized ? 200 : 30};  // far longer than a pass is
  explicit SlowRank(int slow, int times = 1)
      : pass([slow, times](int rank) {
          if (rank == slow) std::this_thread::sleep_for(times * kPass);
        }),
        note([this](const std::string& text) {
          if (text.find("divided by speed") != std::string::npos) divisions.push_back(text);
        }) {}

  std::vector<std::string> divisions{};
  std::function<void(int)> pass;
  std::function<void(const std::string&)> note;
};

// Fails when ranks that go through rounds together are taken to be equally fast, though they are seen not to be.
TEST(ShardedRun, ASlowRankGetsFewerMicroBatchesOnceItIsSeen) {
  RunConfig config = divided_run(ParallelStrategy::kDdp, 1);
  config.steps = 7;
  const std::string one = hash_of(config);
  for (const ParallelStrategy strategy :
       {ParallelStrategy::kZero2, ParallelStrategy::kZero3, ParallelStrategy::kHybrid}) {
    if (kSanitized && strategy != ParallelStrategy::kZero3) continue;
    config.parallel.strategy = strategy;
    config.parallel.ranks = 2;
    SlowRank slow(1);
    EXPECT_EQ(hash_of(config, {.pass = slow.pass, .note = slow.note}), one) << static_cast<int>(strategy);
    ASSERT_FALSE(slow.divisions.empty()) << static_cast<int>(strategy);
    EXPECT_THAT(slow.divisions.front(), AllOf(HasSubstr("after step 3 "), ContainsRegex("rank 1 [1-5] sequence")));
  }
}

// Fails when given speeds are overruled, or memory that was counted for equal shares is taken for others.
TEST(ShardedRun, WhatWasGivenIsNotDividedAnew) {
  for (const bool speeds : {true, false}) {
    if (kSanitized && speeds) continue;
    RunConfig config = divided_run(ParallelStrategy::kZero3, 2);
    config.steps = 4;
    if (speeds) config.parallel.speeds = {1, 1};
    if (!speeds) config.memory = "1GiB";
    SlowRank slow(1);
    (void)hash_of(config, {.pass = slow.pass, .note = slow.note});
    EXPECT_TRUE(slow.divisions.empty()) << slow.divisions.front();
  }
}

// Fails when ranks lose each other's parts where the work was divided by speed, or a rank was cut off while it was.
TEST(ShardedRun, RanksAreLostAfterAndWhileWorkIsDividedBySpeed) {
  RunConfig config = divided_run(ParallelStrategy::kDdp, 1);
  config.steps = 6;
  config.shape.layers = 6;
  config.global_batch = 6;
  const std::string one = hash_of(config);
  config.parallel.ranks = 3;
  for (const ParallelStrategy strategy : {ParallelStrategy::kZero3, ParallelStrategy::kPipeline}) {
    for (const int unheard : {-1, 1}) {
      if (kSanitized && unheard < 0) continue;
      config.parallel.strategy = strategy;
      SlowRank slow(1, strategy == ParallelStrategy::kPipeline ? 1 : 3);
      EpochRanks ranks;
      ranks.pass = slow.pass;
      ranks.note = slow.note;
      ranks.trainers.resize(3);
      (void)ranks.epoch(config, unheard < 0 ? 4 : -1, unheard);
      EXPECT_FALSE(slow.divisions.empty()) << static_cast<int>(strategy);
      ranks.lose(2);
      EXPECT_EQ(ranks.epoch(config, -1), std::vector<std::string>(2, one)) << static_cast<int>(strategy) << unheard;
    }
  }
}

RunConfig open_run_of(ParallelStrategy strategy) {
  RunConfig config = divided_run(strategy, 1);
  config.steps = 10;
  config.shape.layers = 3;                  // and a head: as many stages as the tests have ranks
  config.parallel.join_at = "127.0.0.1:0";  // what it is to a trainer: others may come
  return config;
}

std::string hash_of_ten_steps() {
  RunConfig alone = divided_run(ParallelStrategy::kDdp, 1);
  alone.steps = 10;
  alone.shape.layers = 3;
  return hash_of(alone);
}

// Fails, or hangs, when ranks that were not told where others may join divide the stages anew, and rank 0 does not.
TEST(ShardedRun, StagesOfARunThatCanBeJoinedStayOnAllRanks) {
  SlowRank slow(1);
  EpochRanks ranks;
  ranks.pass = slow.pass;
  ranks.note = slow.note;
  ranks.trainers.resize(3);
  const std::string expected = hash_of_ten_steps();
  EXPECT_EQ(ranks.epoch(open_run_of(ParallelStrategy::kPipeline), -1), std::vector<std::string>(3, expected));
  EXPECT_TRUE(slow.divisions.empty()) << slow.divisions.front();
}

TEST(ShardedRun, RanksThatJoinReceiveTheirPartsAndNoBitShowsIt) {
  const std::string expected = hash_of_ten_steps();
  for (const ParallelStrategy strategy :
       {ParallelStrategy::kDdp, ParallelStrategy::kZero1, ParallelStrategy::kZero3, ParallelStrategy::kPipeline}) {
    if (kSanitized && strategy < ParallelStrategy::kZero3) continue;
    const RunConfig config = open_run_of(strategy);
    EpochRanks ranks;
    ranks.trainers.resize(1);
    (void)ranks.epoch(config, 2);
    ranks.join();
    (void)ranks.epoch(config, 4);
    ranks.join();
    ranks.join();
    (void)ranks.epoch(config, 6);
    ranks.lose(1);
    ranks.join();
    EXPECT_EQ(ranks.epoch(config, -1), std::vector<std::string>(4, expected)) << static_cast<int>(strategy);
  }
}

TEST(ShardedRun, ARankThatJoinedAndDidNotHearThatAllHaveTheirPartsLearnsIt) {
  const std::string expected = hash_of_ten_steps();
  for (const int unheard : {0, 2}) {  // one of before, or the one that joins
    const RunConfig config = open_run_of(ParallelStrategy::kZero3);
    EpochRanks ranks;
    ranks.trainers.resize(2);
    (void)ranks.epoch(config, 2);
    ranks.join();
    (void)ranks.epoch(config, -1, unheard);
    ranks.lose(1);
    EXPECT_EQ(ranks.epoch(config, -1), std::vector<std::string>(2, expected)) << unheard;
  }
}

/// An epoch that nobody could begin leaves all as it was; so does one that a newcomer could not.
TEST(ShardedRun, ANewcomerOfAnEpochThatCameToNothingIsStillOne) {
  const std::string expected = hash_of_ten_steps();
  const RunConfig config = open_run_of(ParallelStrategy::kZero2);
  EpochRanks ranks;
  ranks.trainers.resize(2);
  (void)ranks.epoch(config, 2);
  ranks.join();
  ranks.broken_epoch(config);
  ranks.join();
  EXPECT_EQ(ranks.epoch(config, -1), std::vector<std::string>(4, expected));
}

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

/// Files on the disk, of which a test writes those of parts in its own way.
class PartsOnDisk : public CheckpointFiles {
 public:
  Status create_directory(const std::string& path) override { return disk_files().create_directory(path); }
  Status sync_directory(const std::string& path) override { return disk_files().sync_directory(path); }
  Status replace(const std::string& from, const std::string& to) override { return disk_files().replace(from, to); }
  Status remove(const std::string& path) override { return disk_files().remove(path); }
};

/// Rank 1's parts of the first save wait for a step that comes after it.
class WaitingPart final : public PartsOnDisk {
 public:
  static constexpr std::int64_t kStep = 4;
  Status write(const std::string& path, ByteSpan bytes) override {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (path.ends_with(".0001.f32") && steps < kStep && !late) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::chrono::steady_clock::now() > end) late = true;
    }
    return disk_files().write(path, bytes);
  }

  std::atomic<std::int64_t> steps{0};
  std::atomic<bool> late{false};
};

// Fails when a step waits for parts to be written, or they are written as later steps leave them.
TEST_F(ShardedCheckpoint, IsWrittenWhileStepsGoOnAndHoldsTheStepItIsOf) {
  for (const ParallelStrategy strategy : {ParallelStrategy::kZero1, ParallelStrategy::kZero3}) {
    std::filesystem::remove_all(folder_.path() + "/run");
    RunConfig config = saved(strategy, 2);
    config.steps = 6;
    WaitingPart files;
    const auto results =
        run_ranks(config, {.files = &files, .step = [&](int rank, const StepReport&) { files.steps += rank; }});
    ASSERT_TRUE(results[0].result) << results[0].result.error().message;
    EXPECT_FALSE(files.late);
    RunConfig next = divided_run(ParallelStrategy::kDdp, 1);
    next.steps = 6;
    next.resume = middle();
    EXPECT_EQ(hash_of(next), results[0].result->weights_hash);
  }
}

// Fails when a part that could not be written is missed, or ends the run before its last step.
TEST_F(ShardedCheckpoint, APartThatCannotBeWrittenIsToldAndTheRunGoesOn) {
  class Full final : public PartsOnDisk {
   public:
    Status write(const std::string& path, ByteSpan bytes) override {
      if (path.ends_with(".0001.f32")) return make_error(ErrorCode::kIo, "{}: no space left", path);
      return disk_files().write(path, bytes);
    }
  } full;
  const auto results = run_ranks(saved(ParallelStrategy::kZero2, 2), {.files = &full});
  ASSERT_FALSE(results[0].result);
  EXPECT_THAT(results[0].result.error().message, HasSubstr("no space left"));
  EXPECT_EQ(results[0].steps.size(), 4U);
  EXPECT_TRUE(saved_steps(folder_.path() + "/run").empty());
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
