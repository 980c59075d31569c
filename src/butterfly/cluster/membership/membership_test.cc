#include "butterfly/cluster/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/cluster/membership/fake_stage_test.h"

namespace butterfly {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// Starts an epoch over everybody and moves some data through it.
std::unique_ptr<ClusterSession> working_epoch(Membership& membership, PipelineChannels& ends) {
  const Members members = membership.members();
  auto session = membership.next_epoch(members);
  StartRequest request = fake_request(static_cast<int>(members.nodes.size()));
  request.epoch = membership.epoch();
  auto started = session->start(request, after_ms(kLongMs));
  EXPECT_TRUE(started) << started.error().message;
  if (!started) return session;
  ends = std::move(*started);
  const Status pumped = pump(ends, static_cast<int>(members.nodes.size()), 5);
  EXPECT_TRUE(pumped) << pumped.error().message;
  return session;
}

TEST(Membership, EpochFollowsEpochOverTheSameConnections) {
  ThreadWorker a;
  ThreadWorker b;
  const auto membership = membership_of({a.address(), b.address()});
  for (std::uint32_t epoch = 1; epoch <= 5; ++epoch) {
    PipelineChannels ends;
    const auto session = working_epoch(*membership, ends);
    EXPECT_EQ(membership->epoch(), Epoch(epoch));
    EXPECT_EQ(a.stage.assignment.epoch, Epoch(epoch));
    EXPECT_FALSE(session->failed());
    session->stop();
  }
  EXPECT_EQ(a.stage.loads, 5);
}

TEST(Membership, AnEpochThatIsReplacedWhileItLoadsIsGivenUp) {
  ThreadWorker worker;
  const auto membership = membership_of({worker.address()});
  std::atomic<bool> go{false};
  worker.stage.after_load = [&]() -> Result<std::uint64_t> {
    while (!go) std::this_thread::sleep_for(milliseconds(1));
    return 1;
  };
  {
    const auto slow = membership->next_epoch(membership->members());
    StartRequest request = fake_request(1);
    request.epoch = membership->epoch();
    EXPECT_EQ(slow->start(request, after_ms(100)).error().code, ErrorCode::kTimeout);
  }
  go = true;
  PipelineChannels ends;
  const auto session = working_epoch(*membership, ends);
  EXPECT_EQ(worker.stage.assignment.epoch, Epoch(2));
}

TEST(Membership, TheEpochAfterADeathHasTheSurvivors) {
  ThreadWorker a;
  auto b = std::make_unique<ThreadWorker>();
  ThreadWorker c;
  const auto membership = membership_of({a.address(), b->address(), c.address()});
  PipelineChannels ends;
  auto session = working_epoch(*membership, ends);
  const std::uint64_t before = membership->version();
  const std::string lost = b->address();
  b.reset();
  EXPECT_FALSE(ends.output->receive({}, after_ms(kLongMs)));
  EXPECT_TRUE(has_members(*membership, 2));
  EXPECT_NE(membership->version(), before);
  EXPECT_THAT(membership->last_change(), HasSubstr(lost));
  ends = {};
  session.reset();
  session = working_epoch(*membership, ends);
  EXPECT_EQ(c.stage.assignment.rank, Rank(1));
}

TEST(Membership, AWorkerThatComesBackIsAMemberAgain) {
  auto worker = std::make_unique<ThreadWorker>();
  const ThreadWorker other;
  const std::string address = worker->address();
  const auto membership = membership_of({address, other.address()});
  worker.reset();
  ASSERT_TRUE(has_members(*membership, 1));
  worker = std::make_unique<ThreadWorker>(WorkerOptions{.listen = address, .drain_timeout = milliseconds(50)});
  ASSERT_TRUE(has_members(*membership, 2));
  EXPECT_EQ(membership->members().nodes[0].address, address) << "in its old place";
  PipelineChannels ends;
  const auto session = working_epoch(*membership, ends);
}

TEST(Membership, AWorkerJoinsByItself) {
  ThreadWorker first;
  const auto membership = membership_of({first.address()}, "127.0.0.1:0");
  ThreadWorker second({.join = membership->join_address(), .drain_timeout = milliseconds(50)});
  ASSERT_TRUE(has_members(*membership, 2));
  EXPECT_THAT(membership->last_change(), HasSubstr(second.address() + " joined"));
  PipelineChannels ends;
  const auto session = working_epoch(*membership, ends);
  EXPECT_EQ(second.stage.assignment.rank, Rank(1));
}

TEST(Membership, AnnouncementsOfNobodyAreForgotten) {
  const ThreadWorker first;
  const auto membership = membership_of({first.address()}, "127.0.0.1:0");
  for (int i = 0; i < 400; ++i) {
    // Far more than may be dialled at once.
    const std::string stranger = fmt::format("127.0.0.{}:{}", 2 + i % 200, 1 + i);
    const Introduction said{.role = ConnectionRole::kJoin, .session = make_session_id(), .label = stranger};
    EXPECT_TRUE(connect_tcp(membership->join_address(), {.introduction = said}, after_ms(kLongMs)));
  }
  EXPECT_EQ(membership->members().nodes.size(), 1u);
}

TEST(Membership, ACoordinatorMayBeginWithNobody) {
  const auto membership = membership_of({}, "127.0.0.1:0");
  EXPECT_TRUE(membership->members().nodes.empty());
  const ThreadWorker worker({.join = membership->join_address(), .drain_timeout = milliseconds(50)});
  EXPECT_TRUE(has_members(*membership, 1));
}

TEST(Membership, AWorkerThatLeavesServesUntilItIsReleased) {
  ThreadWorker stays;
  ThreadWorker leaves({.drain_timeout = milliseconds(kLongMs)});
  const auto membership = membership_of({stays.address(), leaves.address()});
  PipelineChannels ends;
  auto session = working_epoch(*membership, ends);
  std::thread stopping([&] { leaves.stop(); });
  ASSERT_TRUE(has_members(*membership, 1));
  EXPECT_THAT(membership->last_change(), HasSubstr("leaves"));
  EXPECT_TRUE(pump(ends, 2, 5)) << "it works as long as the epoch needs it";
  ends = {};
  session.reset();
  session = working_epoch(*membership, ends);
  stopping.join();
  EXPECT_TRUE(leaves.status);
}

TEST(Membership, AWorkerThatStandsByLeavesAtOnce) {
  ThreadWorker works;
  ThreadWorker idle({.drain_timeout = milliseconds(10 * kLongMs)});
  const auto membership = membership_of({works.address(), idle.address()});
  const auto session = membership->next_epoch(membership->members());
  StartRequest request = fake_request(1);
  request.epoch = membership->epoch();
  ASSERT_TRUE(session->start(request, after_ms(kLongMs)));
  idle.stop();
  EXPECT_FALSE(session->failed());
}

TEST(Membership, WeightsAreLoadedAheadWhileAnEpochRuns) {
  ThreadWorker a;
  ThreadWorker b;
  for (ThreadWorker* worker : {&a, &b}) worker->stage.wanted = {{.name = "w", .bytes_max = 1000}};
  const auto membership = membership_of({a.address(), b.address()});
  const auto running = membership->next_epoch(membership->members());
  StartRequest request = fake_request(1);
  request.epoch = membership->epoch();
  auto ends = running->start(request, after_ms(kLongMs));
  ASSERT_TRUE(ends) << ends.error().message;
  {
    const auto preparing = membership->next_epoch(membership->members());
    StartRequest ahead = fake_request(2);
    ahead.epoch = membership->epoch();
    ahead.purpose = Purpose::kPrepare;
    const auto prepared = preparing->start(ahead, after_ms(kLongMs));
    ASSERT_TRUE(prepared) << prepared.error().message;
    EXPECT_EQ(prepared->input, nullptr);
    EXPECT_EQ(a.stage.prepared_epoch, 2u);
    EXPECT_EQ(b.stage.prepared_epoch, 2u);
    EXPECT_TRUE(pump(*ends, 1, 5)) << "nothing was disturbed";
  }
  EXPECT_TRUE(pump(*ends, 1, 5));
  EXPECT_EQ(a.stage.loads, 1);
}

TEST(Membership, AWorkerThatIsLeftOutIsNotDialledForAWhile) {
  const ThreadWorker a;
  const ThreadWorker b;
  const auto membership = membership_of({a.address(), b.address()});
  membership->leave_out(b.address());
  EXPECT_TRUE(has_members(*membership, 1));
  EXPECT_FALSE(membership->wait_for_change(membership->version(), after_ms(500), {}));
}

TEST(Membership, WaitingForAChangeEndsWhenItIsNotWantedAnyMore) {
  const ThreadWorker worker;
  const auto membership = membership_of({worker.address()});
  std::stop_source stop;
  std::jthread impatient([&] {
    std::this_thread::sleep_for(milliseconds(50));
    stop.request_stop();
  });
  EXPECT_FALSE(membership->wait_for_change(membership->version(), after_ms(10 * kLongMs), stop.get_token()));
}

}  // namespace
}  // namespace butterfly
