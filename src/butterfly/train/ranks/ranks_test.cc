// Ranks whose trainers only count: what happens around them. tests/distributed/train_ranks_test.cc trains.
#include "butterfly/train/ranks/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/base/test_folder_test.h"
#include "butterfly/machine/usage/recorded_process.h"

namespace butterfly {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What a rank does at a step, beside its part of it; at kFailing when it could not do its part.
constexpr std::int64_t kFailing = -1;
using Incident = std::function<Status(const TrainRank& rank, int epoch, std::int64_t step)>;

/// Each step adds up one number of each rank; a rank that is behind catches up after an adopt().
class CountingTrainer final : public RankTrainer {
 public:
  CountingTrainer(const RunConfig& config, const TrainRank& rank, Incident incident)
      : steps_(config.steps), rank_(rank), incident_(std::move(incident)) {}

  Result<TrainResult> run(const TrainObserver& observer, std::stop_token /*stop*/) override {
    for (; step_ < steps_; ++step_) {
      if (incident_) BF_TRY(incident_(rank_, epoch_, step_));
      if (const Status met = meet(); !met) {
        if (incident_) BF_TRY(incident_(rank_, epoch_, kFailing));
        return tl::unexpected(met.error());
      }
      if (observer.step) observer.step({.step = step_}, steps_);
    }
    TrainResult result{.weights_hash = fmt::format("{} ranks", rank_.size), .steps_done = step_};
    for (const double speed : rank_.speeds) result.weights_hash += fmt::format(" {}", speed);
    return result;
  }

  Status adopt(const TrainRank& rank) override {
    rank_ = rank;
    ++epoch_;
    if (rank.collectives == nullptr) return {};
    std::vector<std::int64_t> steps(static_cast<std::size_t>(rank.size), step_);
    std::vector<MutableByteSpan> parts;
    for (auto& step : steps) parts.push_back(std::as_writable_bytes(std::span(&step, 1)));
    BF_TRY(rank.collectives->all_gather(parts));
    step_ = std::ranges::max(steps);
    return {};
  }

  const ParameterSet& parameters() const override { std::abort(); }

 private:
  Status meet() {
    if (rank_.collectives == nullptr) return {};
    float one = 1.0F;
    const ReduceFunction add = [](MutableByteSpan into, ByteSpan from) {
      float sum = 0.0F, term = 0.0F;
      std::memcpy(&sum, into.data(), sizeof(sum));
      std::memcpy(&term, from.data(), sizeof(term));
      sum += term;
      std::memcpy(into.data(), &sum, sizeof(sum));
    };
    BF_TRY(rank_.collectives->all_reduce(std::as_writable_bytes(std::span(&one, 1)), sizeof(float), add,
                                         AllReduceAlgorithm::kAuto));
    if (one == static_cast<float>(rank_.size)) return {};
    return make_error(ErrorCode::kBadData, "{} ranks add up to {}", rank_.size, one);
  }

  const std::int64_t steps_;
  TrainRank rank_;
  const Incident incident_;
  int epoch_ = 1;
  std::int64_t step_ = 0;
};

struct Ran {
  Result<TrainResult> result;
  std::vector<std::string> notes;
};

RunConfig config_of(RankEngine engine, int ranks) {
  RunConfig config;
  config.steps = 50;
  config.parallel = {.ranks = ranks, .engine = engine};
  return config;
}

Ran run_processes(const RunConfig& config, const Incident& incident = {}) {
  Ran run{.result = make_error(ErrorCode::kIo, "not run"), .notes = {}};
  TrainObserver observer;
  observer.note = [&](const std::string& note) { run.notes.push_back(note); };
  RanksOptions options{
      .make_trainer = [&](const RunConfig& made, const TrainRank& rank) -> Result<std::unique_ptr<RankTrainer>> {
        return std::make_unique<CountingTrainer>(made, rank, incident);
      },
      .member_timeout = std::chrono::milliseconds(20'000)};
  run.result = train_with_ranks(config, observer, {}, options);
  return run;
}

/// Kills the process whose rank it is; ranks of the first epoch.
Incident kill_at(int rank, std::int64_t step) {
  return [=](const TrainRank& here, int epoch, std::int64_t now) -> Status {
    if (epoch == 1 && here.rank == rank && now == step) ::raise(SIGKILL);
    return {};
  };
}

bool has_children() {
  return ::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD;
}

class DistRanks : public ::testing::TestWithParam<RankEngine> {};

TEST_P(DistRanks, AllTakePartAndRankZerosResultIsReturned) {
  for (const int ranks : {1, 2, 4}) {
    RunConfig config = config_of(GetParam(), ranks);
    int steps = 0;
    const Ran run = run_processes(config, [&](const TrainRank& rank, int, std::int64_t) -> Status {
      if (rank.rank == 0) ++steps;
      return {};
    });
    ASSERT_TRUE(run.result) << run.result.error().message;
    EXPECT_EQ(run.result->steps_done, 50);
    EXPECT_EQ(run.result->weights_hash, fmt::format("{} ranks", ranks));
    EXPECT_EQ(steps, 50);
  }
  EXPECT_FALSE(has_children());
}

TEST_P(DistRanks, AnErrorThatNoEpochMendsEndsAllAndIsTheOneReturned) {
  for (const int culprit : {0, 2}) {
    const Ran run =
        run_processes(config_of(GetParam(), 3), [&](const TrainRank& rank, int, std::int64_t step) -> Status {
          if (rank.rank != culprit || step != 7) return {};
          return make_error(ErrorCode::kNoMemory, "rank {} has 3 bytes where 4 are needed", rank.rank);
        });
    ASSERT_FALSE(run.result);
    EXPECT_EQ(run.result.error().code, ErrorCode::kNoMemory);
    EXPECT_THAT(run.result.error().message, HasSubstr(fmt::format("rank {} has 3 bytes", culprit)));
  }
  EXPECT_FALSE(has_children());
}

INSTANTIATE_TEST_SUITE_P(Engines, DistRanks, ::testing::Values(RankEngine::kInproc, RankEngine::kTcp),
                         [](const auto& kind) { return kind.param == RankEngine::kTcp ? "Processes" : "Threads"; });

TEST(FaultsRankProcesses, AKilledOneIsNamedAndTheOthersFinish) {
  for (const std::int64_t step : {0, 1, 25, 49}) {
    for (const int victim : {1, 3}) {
      const Ran run = run_processes(config_of(RankEngine::kTcp, 4), kill_at(victim, step));
      ASSERT_TRUE(run.result) << run.result.error().message;
      EXPECT_EQ(run.result->steps_done, 50);
      EXPECT_EQ(run.result->weights_hash, "3 ranks");
      EXPECT_THAT(run.notes, ::testing::Contains(::testing::AllOf(HasSubstr(fmt::format("rank {} (process ", victim)),
                                                                  HasSubstr("is lost: killed by signal 9"))));
    }
  }
  EXPECT_FALSE(has_children());
}

TEST(FaultsRankProcesses, OneAfterTheOtherUntilRankZeroIsAlone) {
  const Ran run =
      run_processes(config_of(RankEngine::kTcp, 4), [](const TrainRank& rank, int epoch, std::int64_t) -> Status {
        if (rank.rank == 1 && epoch <= 3) ::raise(SIGKILL);
        return {};
      });
  ASSERT_TRUE(run.result) << run.result.error().message;
  EXPECT_EQ(run.result->weights_hash, "1 ranks");
}

TEST(FaultsRankProcesses, SeveralAtOnce) {
  const Ran run =
      run_processes(config_of(RankEngine::kTcp, 5), [](const TrainRank& rank, int epoch, std::int64_t step) -> Status {
        if (epoch == 1 && step == 10 && rank.rank >= 2) ::raise(SIGKILL);
        return {};
      });
  ASSERT_TRUE(run.result) << run.result.error().message;
  EXPECT_EQ(run.result->weights_hash, "2 ranks");
}

TEST(FaultsRankProcesses, AnotherOneWhileTheOthersFindTogether) {
  for (const unsigned delay_us : {50U, 200U, 500U, 1000U, 2000U, 4000U, 8000U}) {
    RunConfig config = config_of(RankEngine::kTcp, 5);
    config.steps = 2000;
    const Ran run = run_processes(config, [=](const TrainRank& rank, int epoch, std::int64_t step) -> Status {
      if (epoch == 1 && rank.rank == 3 && step == 5) ::raise(SIGKILL);
      if (epoch == 1 && rank.rank == 1 && step == kFailing) ::ualarm(delay_us, 0);  // which ends the process
      return {};
    });
    ASSERT_TRUE(run.result) << run.result.error().message;
    EXPECT_EQ(run.result->steps_done, 2000);
    EXPECT_EQ(run.result->weights_hash, "3 ranks") << "after " << delay_us << " us";
  }
  EXPECT_FALSE(has_children());
}

TEST(FaultsRankProcesses, SpeedsStayWithTheirProcesses) {
  RunConfig config = config_of(RankEngine::kTcp, 4);
  config.parallel.speeds = {1, 2, 3, 4};
  const Ran run = run_processes(config, kill_at(2, 5));
  ASSERT_TRUE(run.result) << run.result.error().message;
  EXPECT_EQ(run.result->weights_hash, "3 ranks 1 2 4");
}

TEST(FaultsRankProcesses, AnEpochThatEndsWithoutALossIsBegunAgain) {
  const Ran run =
      run_processes(config_of(RankEngine::kTcp, 3), [](const TrainRank& rank, int epoch, std::int64_t step) -> Status {
        if (epoch > 1 || step != 3 || rank.rank != 1) return {};
        return make_error(ErrorCode::kProtocol, "the line was bad");
      });
  ASSERT_TRUE(run.result) << run.result.error().message;
  EXPECT_EQ(run.result->weights_hash, "3 ranks");
}

TEST(FaultsRankProcesses, EpochsThatEndAgainAndAgainEndTheRun) {
  const Ran run =
      run_processes(config_of(RankEngine::kTcp, 2), [](const TrainRank& rank, int, std::int64_t step) -> Status {
        if (step != 3 || rank.rank != 0) return {};
        return make_error(ErrorCode::kProtocol, "the line is bad");
      });
  ASSERT_FALSE(run.result);
  EXPECT_THAT(run.result.error().message, HasSubstr("3 epochs ended although no rank is lost"));
  EXPECT_THAT(run.result.error().message, HasSubstr("the line is bad"));
  EXPECT_FALSE(has_children());
}

TEST(FaultsRankProcesses, WithoutRankZeroTheOthersEndWithAnError) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // the others become this process's when rank 0 is gone
  const pid_t leader = ::fork();
  if (leader == 0) {
    run_processes(config_of(RankEngine::kTcp, 3), kill_at(0, 5));
    ::_exit(42);
  }
  std::vector<int> ends;
  const Deadline deadline = after_ms(20'000);
  while (ends.size() < 3 && std::chrono::steady_clock::now() < deadline) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    if (ended == leader) {
      EXPECT_TRUE(WIFSIGNALED(status));
      ends.push_back(-1);
    } else if (ended > 0) {
      ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -2);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  EXPECT_THAT(ends, ::testing::UnorderedElementsAre(-1, 1, 1));
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

/// The recordings in a folder whose names begin with `role`.
std::vector<trace::Recording> recordings(const std::string& folder, const std::string& role) {
  std::vector<trace::Recording> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with(role + "-")) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    auto parsed = trace::parse_recording(std::as_bytes(std::span(bytes)));
    EXPECT_TRUE(parsed) << parsed.error().message;
    if (parsed) all.push_back(std::move(*parsed));
  }
  return all;
}

TEST(Ranks, EachProcessWritesARecordingOfItsOwn) {
  // The recorder's thread may hold a lock of the sanitizer's allocator, which a child would wait for in vain.
  if (kThreadsWatched) GTEST_SKIP() << "forks beside a thread that allocates";
  if (trace::kRingSpans < 4096) GTEST_SKIP() << "a ring of " << trace::kRingSpans << " spans is too small";
  const TestFolder folder;
  ASSERT_EQ(::setenv(kRecordFolder, folder.path().c_str(), 1), 0);
  {
    const RecordedProcess parent("train");
    trace::record(trace::Zone::kLoadModel, 1, 2, {});
    trace::hold(trace::Owner::kBuffers, 1000);
    const Ran run = run_processes(config_of(RankEngine::kTcp, 3));
    EXPECT_TRUE(run.result) << run.result.error().message;
    trace::hold(trace::Owner::kBuffers, -1000);
  }
  ::unsetenv(kRecordFolder);
  EXPECT_EQ(recordings(folder.path(), "train").size(), 1U);
  const std::vector<trace::Recording> ranks = recordings(folder.path(), "rank");
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_NE(ranks[0].fact("pid"), ranks[1].fact("pid"));
  for (const trace::Recording& rank : ranks) {
    EXPECT_EQ(rank.fact("role"), "rank");
    const auto is = [](trace::Zone zone) { return [=](const trace::Span& span) { return span.zone == zone; }; };
    EXPECT_EQ(std::ranges::count_if(rank.spans, is(trace::Zone::kAllReduce)), 50);
    EXPECT_EQ(std::ranges::count_if(rank.spans, is(trace::Zone::kLoadModel)), 0) << "of its parent";
    EXPECT_EQ(rank.samples.front().held_bytes[static_cast<std::size_t>(trace::Owner::kBuffers)], 0U) << "of its parent";
  }
}

}  // namespace
}  // namespace butterfly
