// Runs on one rank are the oracle for runs on several, threads and processes, undisturbed or with one killed: in the
// deterministic mode byte for byte, otherwise within what the order of sums allows.
// Every fork happens while this process has one thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <thread>

#include "butterfly/train/ranks/ranks.h"
#include "butterfly/train/run/tiny_run_test.h"

namespace butterfly {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

struct Outcome {
  TrainResult result;
  std::vector<double> losses;
  std::vector<std::string> notes;
  std::vector<std::string> saved;  // checkpoints
};

RunConfig run_of(int ranks, RankEngine engine) {
  RunConfig config = tiny_run();
  config.steps = 20;
  config.global_batch = 16;  // 8 micro-batches
  config.parallel.ranks = ranks;
  config.parallel.engine = engine;
  config.parallel.bucket_bytes = 4096;
  return config;
}

/// With `at_step` called by rank 0 after each step.
Outcome train(const RunConfig& config, const std::function<void(std::int64_t, const Outcome&)>& at_step = {}) {
  Outcome outcome;
  TrainObserver observer;
  observer.note = [&](const std::string& note) { outcome.notes.push_back(note); };
  observer.saved = [&](std::int64_t, const std::string& path) { outcome.saved.push_back(path); };
  observer.step = [&](const StepReport& report, std::int64_t) {
    outcome.losses.push_back(report.loss);
    if (at_step) at_step(report.step, outcome);
  };
  const auto result = train_with_ranks(config, observer, {});
  EXPECT_TRUE(result) << result.error().message;
  if (result) outcome.result = *result;
  return outcome;
}

/// The process of a rank, as the run's notes name it.
pid_t process_of(const Outcome& outcome, int rank) {
  const std::string wanted = fmt::format("rank {} is process ", rank);
  for (const std::string& note : outcome.notes) {
    if (note.starts_with(wanted)) return std::stoi(note.substr(wanted.size()));
  }
  ADD_FAILURE() << "no note names rank " << rank;
  return -1;
}

TEST(TrainRanks, DeterministicRunsEndWithTheSameWeightsForAnyNumberOfRanks) {
  // Processes first: threads may leave some behind.
  const Outcome one = train(run_of(1, RankEngine::kTcp));
  EXPECT_FALSE(one.result.weights_hash.empty());
  for (const RankEngine engine : {RankEngine::kTcp, RankEngine::kInproc}) {
    for (const int ranks : {2, 3, 4}) {
      const Outcome several = train(run_of(ranks, engine));
      EXPECT_EQ(several.result.weights_hash, one.result.weights_hash) << ranks << " ranks";
      EXPECT_EQ(several.losses, one.losses) << ranks << " ranks";
    }
  }
}

TEST(TrainRanks, UnevenSharesAreNotSeenInTheWeights) {
  RunConfig uneven = run_of(3, RankEngine::kTcp);
  uneven.parallel.speeds = {1, 5, 2};
  EXPECT_EQ(train(uneven).result.weights_hash, train(run_of(1, RankEngine::kTcp)).result.weights_hash);
}

TEST(TrainRanks, TheDefaultModeStaysWithinTheOrderOfSums) {
  RunConfig alone = run_of(1, RankEngine::kTcp);
  alone.parallel.deterministic = false;
  const Outcome one = train(alone);
  for (const int ranks : {2, 3}) {
    RunConfig config = run_of(ranks, RankEngine::kTcp);
    config.parallel.deterministic = false;
    const Outcome several = train(config);
    ASSERT_EQ(several.losses.size(), one.losses.size());
    for (std::size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(several.losses[i], one.losses[i], 1e-4) << i;
  }
}

/// Buckets that are summed in shared memory, and a rest that is too small for it.
RunConfig large_run_of(int ranks, RankEngine engine) {
  RunConfig config = run_of(ranks, engine);
  config.shape.layers = 2;
  config.shape.model_dim = 64;
  config.shape.heads = 4;
  config.shape.kv_heads = 2;
  config.shape.head_dim = config.shape.rope.dim = 16;
  config.shape.ff_dim = 256;
  config.steps = 8;
  config.optimizer.rate = 3e-3;
  config.parallel.bucket_bytes = 300 << 10;
  return config;
}

bool shared_memory(const Outcome& outcome) {
  return std::ranges::any_of(
      outcome.notes, [](const std::string& note) { return note.find("in shared memory") != std::string::npos; });
}

TEST(TrainRanks, SharedMemoryAndConnectionsAndThreadsGiveTheSameBits) {
  for (const bool deterministic : {true, false}) {
    RunConfig alone = large_run_of(1, RankEngine::kTcp);
    alone.parallel.deterministic = deterministic;
    const std::string one = train(alone).result.weights_hash;
    for (const int ranks : {2, 3, 4}) {
      RunConfig config = large_run_of(ranks, RankEngine::kTcp);
      config.parallel.deterministic = deterministic;
      config.parallel.speeds.assign(static_cast<std::size_t>(ranks), 1.0);  // who computes what stays
      const Outcome shared = train(config);
      config.parallel.shared_memory = false;
      const Outcome connected = train(config);
      EXPECT_TRUE(shared_memory(shared)) << ranks << " ranks";
      EXPECT_FALSE(shared_memory(connected)) << ranks << " ranks";
      EXPECT_EQ(shared.result.weights_hash, connected.result.weights_hash) << ranks << " ranks";
      if (deterministic) {
        EXPECT_EQ(shared.result.weights_hash, one) << ranks << " ranks";
      }
      // What two ranks sum has one order; the rest of three or more is added in another one by threads.
      if (!deterministic && ranks > 2) continue;
      config.parallel.engine = RankEngine::kInproc;
      EXPECT_EQ(shared.result.weights_hash, train(config).result.weights_hash) << ranks << " ranks";
    }
  }
}

TEST(TrainRanks, WhatIsReadInSharedMemoryIsCountedAsWhatTravels) {
  RunConfig config = large_run_of(2, RankEngine::kTcp);
  config.parallel.deterministic = false;
  const RunSummary shared = train(config).result.summary;
  config.parallel.shared_memory = false;
  const RunSummary connected = train(config).result.summary;
  EXPECT_GT(shared.network_kb_per_s, 0.0);
  EXPECT_NEAR(shared.network_kb_per_s * shared.avg_step_time, connected.network_kb_per_s * connected.avg_step_time,
              1e-6 * connected.network_kb_per_s * connected.avg_step_time);
}

TEST(TrainRanks, PackedGradientsLearnAsWell) {
  RunConfig config = run_of(2, RankEngine::kTcp);
  config.steps = 60;
  config.parallel.deterministic = false;
  const double plain = train(config).losses.back();
  for (const auto method : {GradientCompression::kFp16, GradientCompression::kBf16, GradientCompression::kInt8,
                            GradientCompression::kLz4, GradientCompression::kZstd, GradientCompression::kAuto}) {
    config.parallel.compression = method;
    EXPECT_NEAR(train(config).losses.back(), plain, 0.05) << static_cast<int>(method);
  }
}

TEST(TrainRanks, ARankKilledInMidStepIsMissedByNobody) {
  const Outcome undisturbed = train(run_of(1, RankEngine::kTcp));
  for (const std::int64_t when : {0, 9, 18}) {
    const Outcome survivors = train(run_of(3, RankEngine::kTcp), [&](std::int64_t step, const Outcome& so_far) {
      // The others are in the middle of the next step, or about to begin it.
      if (step == when) ::kill(process_of(so_far, 2), SIGKILL);
    });
    EXPECT_EQ(survivors.result.steps_done, 20);
    EXPECT_EQ(survivors.result.weights_hash, undisturbed.result.weights_hash) << "killed after step " << when;
    EXPECT_THAT(survivors.notes, Contains(HasSubstr("is lost: killed by signal 9")));
  }
}

TEST(TrainRanks, ARankKilledWhileItsMemoryIsReadIsMissedByNobody) {
  const std::string undisturbed = train(large_run_of(1, RankEngine::kTcp)).result.weights_hash;
  for (const int delay_us : {0, 300, 1000, 2000, 3000, 5000}) {
    std::jthread killer;
    const Outcome survivors = train(large_run_of(3, RankEngine::kTcp), [&](std::int64_t step, const Outcome& so_far) {
      killer = {};  // waits for it: a process is killed before the run ends
      if (step != 4) return;
      killer = std::jthread([=, victim = process_of(so_far, 2)] {
        std::this_thread::sleep_for(std::chrono::microseconds(delay_us));  // anywhere in the step that begins
        ::kill(victim, SIGKILL);
      });
    });
    EXPECT_TRUE(shared_memory(survivors));
    EXPECT_EQ(survivors.result.steps_done, 8);
    EXPECT_EQ(survivors.result.weights_hash, undisturbed) << "killed " << delay_us << " us after a step";
  }
}

TEST(TrainRanks, ARunThatLostARankIsValid) {
  RunConfig config = large_run_of(3, RankEngine::kTcp);
  config.steps = 250;
  const Outcome survivors = train(config, [&](std::int64_t step, const Outcome& so_far) {
    if (step == 100) ::kill(process_of(so_far, 1), SIGKILL);
  });
  EXPECT_EQ(to_string(survivors.result.verdict), "valid");
}

RunConfig divided_run_of(ParallelStrategy strategy, int ranks) {
  RunConfig config = large_run_of(ranks, RankEngine::kTcp);
  config.parallel.strategy = strategy;
  return config;
}

TEST(TrainRanks, ProcessesThatHoldPartsEndWithTheSameWeights) {
  const std::string one = train(large_run_of(1, RankEngine::kTcp)).result.weights_hash;
  for (const auto strategy : {ParallelStrategy::kZero1, ParallelStrategy::kZero2, ParallelStrategy::kZero3}) {
    for (const int ranks : {2, 3}) {
      EXPECT_EQ(train(divided_run_of(strategy, ranks)).result.weights_hash, one)
          << static_cast<int>(strategy) << ", " << ranks << " ranks";
    }
  }
}

TEST(TrainRanks, TheMirrorOfAKilledRankGoesOnWithItsPart) {
  const std::string undisturbed = train(large_run_of(1, RankEngine::kTcp)).result.weights_hash;
  for (const auto strategy : {ParallelStrategy::kZero1, ParallelStrategy::kZero2, ParallelStrategy::kZero3}) {
    for (const int delay_us : {0, 1500, 5000}) {
      std::jthread killer;
      const Outcome survivors = train(divided_run_of(strategy, 3), [&](std::int64_t step, const Outcome& so_far) {
        killer = {};
        if (step != 2 && step != 4) return;  // the second leaves rank 0 alone
        killer = std::jthread([=, victim = process_of(so_far, step == 2 ? 1 : 2)] {
          std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
          ::kill(victim, SIGKILL);
        });
      });
      EXPECT_EQ(survivors.result.steps_done, 8);
      EXPECT_EQ(survivors.result.weights_hash, undisturbed) << static_cast<int>(strategy) << ", " << delay_us << " us";
    }
  }
}

/// Of 3 ranks that hold parts of the state, no copies of them, and a checkpoint every 3 steps, rank 2 is killed after
/// the step that `now` picks.
Outcome without_mirrors(ParallelStrategy strategy, const TestFolder& folder,
                        const std::function<bool(std::int64_t, const Outcome&)>& now) {
  RunConfig config = divided_run_of(strategy, 3);
  config.parallel.mirror = 0;
  config.checkpoint.directory = folder.path() + "/run";
  config.checkpoint.every_steps = 3;
  bool killed = false;
  return train(config, [&, killed](std::int64_t step, const Outcome& so_far) mutable {
    if (killed || !now(step, so_far)) return;
    killed = true;
    ::kill(process_of(so_far, 2), SIGKILL);
  });
}

TEST(TrainRanks, WithoutMirrorsTheRunGoesBackToItsCheckpoint) {
  const std::string undisturbed = train(large_run_of(1, RankEngine::kTcp)).result.weights_hash;
  const TestFolder folder;
  const Outcome survivors = without_mirrors(ParallelStrategy::kZero2, folder,
                                            [](std::int64_t, const Outcome& so_far) { return !so_far.saved.empty(); });
  EXPECT_EQ(survivors.result.weights_hash, undisturbed);
  EXPECT_THAT(survivors.notes, Contains(HasSubstr("the run goes back to " + folder.path())));
}

TEST(TrainRanks, WithoutMirrorsAndBeforeACheckpointTheRunBeginsAgain) {
  const std::string undisturbed = train(large_run_of(1, RankEngine::kTcp)).result.weights_hash;
  for (const auto strategy : {ParallelStrategy::kZero1, ParallelStrategy::kZero3, ParallelStrategy::kPipeline}) {
    const TestFolder folder;
    const Outcome survivors =
        without_mirrors(strategy, folder, [](std::int64_t step, const Outcome&) { return step == 2; });
    EXPECT_EQ(survivors.result.steps_done, 8);
    EXPECT_EQ(survivors.result.weights_hash, undisturbed) << static_cast<int>(strategy);
    EXPECT_THAT(survivors.notes, Contains(HasSubstr("the run goes back to its first step")));
  }
}

}  // namespace
}  // namespace butterfly
