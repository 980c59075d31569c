// Workers and coordinators as processes of their own, killed in the middle of their work.
// Every fork happens while this process has one thread: a child of a process with threads may not start its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "butterfly/cluster/membership/fake_stage_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

/// A forked process, killed and waited for at the end of its scope.
class Process {
 public:
  /// `body` runs in the child and says one line through `say`, then goes on until it is killed or returns.
  explicit Process(const std::function<void(const std::function<void(const std::string&)>& say)>& body) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlives the test
      ::close(pipe[0]);
      body([&](const std::string& line) {
        const std::string text = line + "\n";
        if (::write(pipe[1], text.data(), text.size()) < 0) ::_exit(1);
      });
      ::_exit(0);
    }
    ::close(pipe[1]);
    for (char c = 0; ::read(pipe[0], &c, 1) == 1 && c != '\n';) line_ += c;
    ::close(pipe[0]);
  }
  Process(const Process&) = delete;
  ~Process() { kill(); }

  const std::string& line() const { return line_; }
  void signal(int number) const { ::kill(child_, number); }
  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_ = -1;
  std::string line_;
};

/// A worker process that says its address.
class WorkerProcess : public Process {
 public:
  explicit WorkerProcess(const std::vector<WeightRequest>& wanted = {}, const WorkerOptions& options = {})
      : Process([&](const auto& say) {
          FakeStage stage;
          stage.wanted = wanted;
          const auto server = WorkerServer::create(options, stage);
          if (!server) return;
          say((*server)->address());
          static_cast<void>((*server)->run({}));
        }) {}
};

TEST(ClusterFaults, DataPassesWorkerProcesses) {
  const WorkerProcess a, b, c, d;
  const std::vector<std::string> all{a.line(), b.line(), c.line(), d.line()};
  for (int count = 1; count <= 4; ++count) {
    const auto session = connect_cluster({all.begin(), all.begin() + count}, after_ms(10'000));
    ASSERT_TRUE(session) << session.error().message;
    auto ends = (*session)->start(fake_request(count), after_ms(20'000));
    ASSERT_TRUE(ends) << ends.error().message;
    const Status pumped = pump(*ends, count, 30);
    EXPECT_TRUE(pumped) << pumped.error().message;
  }
}

TEST(ClusterFaults, AKilledWorkerIsNamedAndEndsTheWaitWithinASecond) {
  for (std::size_t victim = 0; victim < 3; ++victim) {
    WorkerProcess workers[3];
    const auto session =
        connect_cluster({workers[0].line(), workers[1].line(), workers[2].line()}, after_ms(10'000)).value();
    auto ends = session->start(fake_request(3), after_ms(20'000));
    ASSERT_TRUE(ends) << ends.error().message;
    ASSERT_TRUE(pump(*ends, 3, 3));
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      workers[victim].signal(SIGKILL);
    });
    const auto answer = ends->output->receive({}, after_ms(1050));
    killer.join();
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable) << answer.error().message;
    EXPECT_THAT(answer.error().message, HasSubstr(workers[victim].line()));
    EXPECT_THAT(answer.error().message, HasSubstr(fmt::format("stage {} of 3", victim + 1)));
    EXPECT_TRUE(session->failed());
    const Status sent = ends->input->send({}, after_ms(1000));
    ASSERT_FALSE(sent);
    EXPECT_THAT(sent.error().message, HasSubstr(workers[victim].line()));
  }
}

/// Three members of a tensor group at work, one of which gets a signal; afterwards the other two are a group.
void expect_survivors_go_on(std::size_t victim, int signal, SharedMemoryUse use) {
  WorkerProcess workers[3]{WorkerProcess({}, {.shared_memory = use}), WorkerProcess({}, {.shared_memory = use}),
                           WorkerProcess({}, {.shared_memory = use})};
  const MembershipOptions options{
      .workers = {workers[0].line(), workers[1].line(), workers[2].line()},
      .cluster = {.heartbeat = std::chrono::milliseconds(50), .dead_after = std::chrono::milliseconds(400)}};
  const auto membership = Membership::create(options, after_ms(10'000)).value();
  {
    const auto session = membership->next_epoch(membership->members());
    StartRequest request = fake_request(fake_group_plan({3}));
    request.epoch = membership->epoch();
    auto ends = session->start(request, after_ms(20'000));
    ASSERT_TRUE(ends) << ends.error().message;
    EXPECT_EQ(ends->shares[0].exchange,
              use == SharedMemoryUse::kAllowed ? ExchangeEngine::kSharedMemory : ExchangeEngine::kChannels);
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      workers[victim].signal(signal);
    });
    Status pumped;
    while (pumped) pumped = pump(*ends, 1, 50);
    killer.join();
    EXPECT_EQ(pumped.error().code, ErrorCode::kUnavailable) << pumped.error().message;
    EXPECT_THAT(pumped.error().message, HasSubstr(workers[victim].line()));
    EXPECT_THAT(pumped.error().message, HasSubstr("stage 1 of 1, slices"));
  }
  while (membership->members().nodes.size() != 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto session = membership->next_epoch(membership->members());
  StartRequest request = fake_request(fake_group_plan({2}));
  request.epoch = membership->epoch();
  auto ends = session->start(request, after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  EXPECT_TRUE(pump(*ends, 1, 50));
}

TEST(ClusterFaults, AKilledMemberOfATensorGroupIsNamedAndTheOthersAreTheNextGroup) {
  for (const auto use : {SharedMemoryUse::kAllowed, SharedMemoryUse::kForbidden}) {
    for (std::size_t victim = 0; victim < 3; ++victim) expect_survivors_go_on(victim, SIGKILL, use);
  }
}

TEST(ClusterFaults, ASilentMemberOfATensorGroupIsGivenUpWhateverTheOthersWaitOn) {
  for (const auto use : {SharedMemoryUse::kAllowed, SharedMemoryUse::kForbidden}) {
    expect_survivors_go_on(1, SIGSTOP, use);
  }
}

TEST(ClusterFaults, TheSurvivorsOfADeathServeAgain) {
  WorkerProcess dying;
  const WorkerProcess living;
  {
    const auto session = connect_cluster({dying.line(), living.line()}, after_ms(10'000)).value();
    auto ends = session->start(fake_request(2), after_ms(20'000));
    ASSERT_TRUE(ends);
    dying.kill();
    EXPECT_FALSE(ends->output->receive({}, after_ms(5000)));
  }
  const auto session = connect_cluster({living.line()}, after_ms(10'000));
  ASSERT_TRUE(session) << session.error().message;
  auto ends = (*session)->start(fake_request(1), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  EXPECT_TRUE(pump(*ends, 1, 5));
}

TEST(ClusterFaults, AStoppedWorkerThatSaysNothingIsGivenUp) {
  const WorkerProcess worker;
  const auto session = connect_cluster({worker.line()}, after_ms(10'000),
                                       {.heartbeat = std::chrono::milliseconds(50),
                                        .dead_after = std::chrono::milliseconds(300),
                                        .release_timeout = std::chrono::milliseconds(100)})
                           .value();
  auto ends = session->start(fake_request(1), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  worker.signal(SIGSTOP);
  const auto answer = ends->output->receive({}, after_ms(60'000));
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().message, HasSubstr("went away"));
}

TEST(ClusterFaults, AWorkerServesTheNextCoordinatorAfterOneWasKilled) {
  const WorkerProcess worker;
  Process coordinator([&](const auto& say) {
    const auto session = connect_cluster({worker.line()}, after_ms(10'000));
    if (!session) return;
    auto ends = (*session)->start(fake_request(1), after_ms(20'000));
    say(ends && pump(*ends, 1, 3) ? "working" : "failed");
    ::pause();
  });
  ASSERT_EQ(coordinator.line(), "working");
  const auto busy = connect_cluster({worker.line()}, after_ms(10'000));
  ASSERT_FALSE(busy);
  EXPECT_THAT(busy.error().message, HasSubstr("busy"));
  coordinator.kill();
  const auto session = connect_cluster({worker.line()}, after_ms(10'000));
  ASSERT_TRUE(session) << session.error().message;
  auto ends = (*session)->start(fake_request(1), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  EXPECT_TRUE(pump(*ends, 1, 3));
}

TEST(ClusterFaults, ACoordinatorKilledWhileItSendsWeightsFreesTheWorker) {
  const WorkerProcess worker({{.name = "w", .bytes_max = 1000}});
  Process coordinator([&](const auto& say) {
    const auto session = connect_cluster({worker.line()}, after_ms(10'000));
    if (!session) return;
    StartRequest request = fake_request(1);
    request.weights = [&](const std::string&, const WeightPart&) -> Result<NamedBytes> {
      say("asked for a weight");
      ::pause();
      return {};
    };
    static_cast<void>((*session)->start(request, after_ms(60'000)));
  });
  ASSERT_EQ(coordinator.line(), "asked for a weight");
  coordinator.kill();
  const auto session = connect_cluster({worker.line()}, after_ms(10'000));
  ASSERT_TRUE(session) << session.error().message;
  EXPECT_TRUE((*session)->start(fake_request(1), after_ms(20'000)));
}

}  // namespace
}  // namespace butterfly
