#include "butterfly/wire/collective/collective_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "butterfly/wire/collective/collectives_mesh_test.h"

namespace butterfly {
namespace {

TEST(CollectiveQueue, RunsInOrderWhileItsOwnerGoesOn) {
  const auto queue = CollectiveQueue::create().value();
  std::atomic<bool> go{false};
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    queue->submit([&, i]() -> Status {
      while (!go) std::this_thread::yield();  // submit() has not waited for this
      order.push_back(i);
      return {};
    });
  }
  EXPECT_FALSE(go.exchange(true));
  ASSERT_TRUE(queue->wait_all());
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_TRUE(queue->wait_all());
}

TEST(CollectiveQueue, AfterAnErrorNothingRunsUntilItWasTold) {
  const auto queue = CollectiveQueue::create().value();
  std::atomic<int> ran{0};
  queue->submit([&]() -> Status { return ++ran, Status{}; });
  queue->submit([]() -> Status { return make_error(ErrorCode::kTimeout, "the first"); });
  queue->submit([&]() -> Status { return make_error(ErrorCode::kIo, "the {}", ++ran); });
  const Status status = queue->wait_all();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "the first");
  EXPECT_EQ(ran, 1);
  queue->submit([&]() -> Status { return ++ran, Status{}; });
  EXPECT_TRUE(queue->wait_all());
  EXPECT_EQ(ran, 2);
}

TEST(CollectiveQueue, ItsEndWaitsForTheOperationThatRuns) {
  std::atomic<bool> begun{false};
  std::atomic<bool> done{false};
  auto queue = CollectiveQueue::create().value();
  queue->submit([&]() -> Status {
    begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the destructor has time to go wrong
    done = true;
    return {};
  });
  while (!begun) std::this_thread::yield();
  queue.reset();
  EXPECT_TRUE(done);
}

TEST(CollectiveQueue, ReducesBucketsInOrderOnEveryMember) {
  const CollectivesMesh mesh("tcp", 3);
  mesh.expect_ok([&](Collectives& end) -> Status {
    const auto queue = CollectiveQueue::create().value();
    std::vector<std::vector<float>> buckets;
    for (std::size_t i = 0; i < 12; ++i) buckets.push_back(brought_by(end.rank(), 1 + 900 * i));
    for (auto& bucket : buckets) {
      queue->submit(
          [&] { return end.all_reduce(bytes_of(bucket), sizeof(float), add_floats, AllReduceAlgorithm::kAuto); });
    }
    BF_TRY(queue->wait_all());
    for (const auto& bucket : buckets) EXPECT_FALSE(wrong_sum(bucket, 3)) << *wrong_sum(bucket, 3);
    return {};
  });
}

TEST(CollectiveQueue, AnAbortEndsAWaitForAMemberThatDoesNotCome) {
  const CollectivesMesh mesh("threads", 2);
  const auto queue = CollectiveQueue::create().value();
  std::vector<float> values = brought_by(0, 100);
  queue->submit(
      [&] { return mesh.ends[0]->all_reduce(bytes_of(values), sizeof(float), add_floats, AllReduceAlgorithm::kAuto); });
  mesh.ends[0]->abort();
  const Status status = queue->wait_all();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace butterfly
