// Epochs whose stages are tensor groups, over threads and over workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "butterfly/cluster/membership/cluster_nodes_test.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class GroupClusterTest : public NodesTest {};

std::vector<std::unique_ptr<ThreadWorker>> make_workers(int count, SharedMemoryUse use) {
  std::vector<std::unique_ptr<ThreadWorker>> workers;
  for (int i = 0; i < count; ++i) {
    workers.push_back(std::make_unique<ThreadWorker>(
        WorkerOptions{.drain_timeout = std::chrono::milliseconds(50), .shared_memory = use}));
  }
  return workers;
}

int sum(const std::vector<int>& values) {
  int total = 0;
  for (const int value : values) total += value;
  return total;
}

TEST_P(GroupClusterTest, EachStageIsWorkedOnByItsWholeGroup) {
  for (const std::vector<int>& groups : std::vector<std::vector<int>>{{2}, {8}, {2, 2}, {1, 3, 1}, {3, 1, 2}}) {
    const int nodes_wanted = sum(groups);
    const int stages = static_cast<int>(groups.size());
    Nodes nodes = make(nodes_wanted);
    const Plan plan = fake_group_plan(groups);
    run(nodes, plan, stages);
    for (int i = 0; i < nodes_wanted; ++i) {
      const Assignment& assignment = nodes.stage(static_cast<std::size_t>(i)).assignment;
      EXPECT_EQ(assignment.stage, plan.shares[static_cast<std::size_t>(i)].work);
      EXPECT_EQ(assignment.stages, stages);
      const auto group = static_cast<std::size_t>(groups[static_cast<std::size_t>(assignment.rank.value)]);
      EXPECT_EQ(assignment.group.size(), group == 1 ? 0 : group);
    }
  }
}

TEST_P(GroupClusterTest, ANodeMayBeAMemberOfSeveralGroups) {
  Nodes nodes = make(3);
  Plan plan = fake_group_plan({2, 2, 1, 3});
  const std::vector<int> placed{0, 1, 1, 0, 2, 2, 0, 1};
  for (std::size_t i = 0; i < placed.size(); ++i) plan.shares[i].node = placed[i];
  run(nodes, plan, 4);
}

TEST_P(GroupClusterTest, ManyLargeMessagesAreUnderWayAtOnce) {
  Nodes nodes = make(4);
  auto ends = nodes.session->start(fake_request(fake_group_plan({2, 2})), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  stream(*ends, 2, 60, 50'000);
}

TEST_P(GroupClusterTest, AMemberThatFailsEndsTheEpochAndIsNamedWithItsSlices) {
  Nodes nodes = make(3);
  nodes.stage(1).before_answer = []() -> Status { return make_error(ErrorCode::kNoMemory, "needs 9 GiB, has 4 GiB"); };
  auto ends = nodes.session->start(fake_request(fake_group_plan({3})), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  const Status pumped = pump(*ends, 1, 1);
  ASSERT_FALSE(pumped);
  EXPECT_EQ(pumped.error().code, ErrorCode::kNoMemory) << pumped.error().message;
  EXPECT_THAT(pumped.error().message, AllOf(HasSubstr("stage 1 of 1, slices 1-1"), HasSubstr("needs 9 GiB")));
  nodes.session->stop();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(nodes.stage(i).unloads, 1) << "nobody still waits for it";
}

TEST_P(GroupClusterTest, AMemberThatCannotLoadIsNamed) {
  Nodes nodes = make(2);
  nodes.stage(1).after_load = []() -> Result<std::uint64_t> {
    return make_error(ErrorCode::kNoMemory, "needs 9 GiB, has 4 GiB");
  };
  const auto ends = nodes.session->start(fake_request(fake_group_plan({2})), after_ms(20'000));
  ASSERT_FALSE(ends);
  EXPECT_EQ(ends.error().code, ErrorCode::kNoMemory);
  EXPECT_THAT(ends.error().message, HasSubstr("slices 1-31"));
}

TEST_P(GroupClusterTest, AMemberThatFailsWhereTheGroupMeetsEndsTheStartForAll) {
  Nodes nodes = make(3);
  nodes.stage(2).before_join = []() -> Status { return make_error(ErrorCode::kNoMemory, "needs 9 GiB, has 4 GiB"); };
  const auto ends = nodes.session->start(fake_request(fake_group_plan({3})), after_ms(20'000));
  ASSERT_FALSE(ends);
  EXPECT_EQ(ends.error().code, ErrorCode::kNoMemory) << ends.error().message;
  EXPECT_THAT(ends.error().message, HasSubstr("slices 2-31"));
}

TEST_P(GroupClusterTest, SlicesThatAreNotAllThereAndNodesThatAreTwoMembersAreRefused) {
  Nodes nodes = make(2);
  StartRequest gap = fake_request(fake_group_plan({2}));
  gap.plan.shares[1].work.slices.first = 3;
  EXPECT_EQ(nodes.session->start(gap, after_ms(1000)).error().code, ErrorCode::kInvalidArgument);
  StartRequest twice = fake_request(fake_group_plan({2}));
  for (PlannedShare& share : twice.plan.shares) share.node = 1;
  const auto refused = nodes.session->start(twice, after_ms(1000));
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("node 1 twice in one tensor group"));
  EXPECT_TRUE(nodes.session->start(fake_request(fake_group_plan({2})), after_ms(20'000))) << "a refusal costs nothing";
}

INSTANTIATE_TEST_SUITE_P(Kinds, GroupClusterTest, kNodeKinds, name_of_kind);

TEST(GroupCluster, WorkersOfOneHostShareMemoryUnlessOneForbidsIt) {
  for (const auto use : {SharedMemoryUse::kAllowed, SharedMemoryUse::kForbidden}) {
    ThreadWorker first({.drain_timeout = std::chrono::milliseconds(50), .shared_memory = use});
    ThreadWorker second;
    const auto session = connect_cluster({first.address(), second.address()}, after_ms(10'000)).value();
    auto ends = session->start(fake_request(fake_group_plan({2})), after_ms(20'000));
    ASSERT_TRUE(ends) << ends.error().message;
    const auto engine = use == SharedMemoryUse::kAllowed ? ExchangeEngine::kSharedMemory : ExchangeEngine::kChannels;
    EXPECT_THAT(ends->shares, Each(::testing::Field(&ReadyShare::exchange, engine)));
    EXPECT_TRUE(pump(*ends, 1, 10));
  }
}

// An exchange waits for a member as long as wait_timeout says; loading may take longer.
TEST(GroupCluster, AMemberThatLoadsForLongIsWaitedFor) {
  const auto patient = std::chrono::milliseconds(300);
  const WorkerOptions options{.wait_timeout = patient, .drain_timeout = std::chrono::milliseconds(50)};
  ThreadWorker first(options), second(options);
  second.stage.after_load = [&]() -> Result<std::uint64_t> {
    std::this_thread::sleep_for(3 * patient);  // this is how long it loads
    return std::uint64_t{1};
  };
  const auto session = connect_cluster({first.address(), second.address()}, after_ms(10'000)).value();
  auto ends = session->start(fake_request(fake_group_plan({2})), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  EXPECT_TRUE(pump(*ends, 1, 10));
}

TEST(GroupCluster, BytesOnTheWireAreThoseOfEveryConnection) {
  const auto workers = make_workers(3, SharedMemoryUse::kForbidden);
  const auto session = connect_cluster(addresses_of(workers), after_ms(10'000)).value();
  auto ends = session->start(fake_request(fake_group_plan({3})), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  const std::uint64_t before = session->data_traffic(after_ms(5000)).value().bytes;
  // In, to two followers, out; and between each two of three members in both directions.
  const std::uint64_t expected =
      before + 4 * (1000 + kFrameHeaderBytes) + 6 * (FakeStage::kExchangedBytes + kFrameHeaderBytes);
  EXPECT_EQ(bytes_of_a_message(*session, *ends, expected), expected);
}

TEST(GroupCluster, PreparingNeedsNoConnectionsBetweenMembers) {
  ThreadWorker first, second;
  auto membership = Membership::create({.workers = {first.address(), second.address()}}, after_ms(10'000)).value();
  const auto session = membership->next_epoch(membership->members());
  StartRequest request = fake_request(fake_group_plan({2}));
  request.epoch = membership->epoch();
  request.purpose = Purpose::kPrepare;
  const auto prepared = session->start(request, after_ms(20'000));
  ASSERT_TRUE(prepared) << prepared.error().message;
  EXPECT_EQ(first.stage.prepared_epoch, request.epoch.value);
  EXPECT_EQ(second.stage.prepared_epoch, request.epoch.value);
  session->stop();
}

TEST(FaultsGroupCluster, AMemberThatGoesAwayEndsTheEpochForAllAndTheNextOneWorks) {
  for (const auto use : {SharedMemoryUse::kAllowed, SharedMemoryUse::kForbidden}) {
    for (std::size_t victim = 0; victim < 3; ++victim) {
      const auto workers = make_workers(3, use);
      // It goes in the middle of a message, which the others have already begun.
      std::atomic<bool> strike{false};
      std::latch begun(1), gone(1);
      workers[victim]->stage.before_answer = [&]() -> Status {
        if (!strike) return {};
        begun.count_down();
        gone.wait();
        return make_error(ErrorCode::kUnavailable, "going");
      };
      auto membership = Membership::create({.workers = addresses_of(workers)}, after_ms(10'000)).value();
      auto session = membership->next_epoch(membership->members());
      StartRequest request = fake_request(fake_group_plan({3}));
      request.epoch = membership->epoch();
      auto ends = session->start(request, after_ms(20'000));
      ASSERT_TRUE(ends) << ends.error().message;
      ASSERT_TRUE(pump(*ends, 1, 5));
      strike = true;
      ASSERT_TRUE(ends->input->send({.payload = allocate_payload(1000).value()}, after_ms(5000)));
      begun.wait();
      std::thread stopping([&] { workers[victim]->stop(); });
      gone.count_down();
      const auto answer = ends->output->receive({}, after_ms(20'000));
      ASSERT_FALSE(answer);
      EXPECT_TRUE(ends_epoch(answer.error())) << answer.error().message;
      stopping.join();
      session->stop();
      ends->input.reset();
      while (membership->members().nodes.size() != 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      session = membership->next_epoch(membership->members());
      StartRequest again = fake_request(fake_group_plan({2}));
      again.epoch = membership->epoch();
      ends = session->start(again, after_ms(20'000));
      ASSERT_TRUE(ends) << ends.error().message;
      EXPECT_TRUE(pump(*ends, 1, 5));
      session->stop();
    }
  }
}

}  // namespace
}  // namespace butterfly
