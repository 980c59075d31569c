#include "butterfly/load_balancer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace butterfly {
namespace {

class LoadBalancerTest : public testing::Test {
 protected:
  void add(const std::string& id, double bandwidth = 0.0) {
    ASSERT_TRUE(
        registry_.register_node({.id = id, .capability = {.memory_bandwidth_gb_per_s = bandwidth}}).has_value());
  }
  static LoadBalancer::Ticket must_acquire(LoadBalancer& balancer, double cost = 1.0) {
    Result<LoadBalancer::Ticket> ticket = balancer.acquire(cost);
    EXPECT_TRUE(ticket.has_value());
    return std::move(*ticket);
  }
  static std::string next(LoadBalancer& balancer) { return must_acquire(balancer).node().id; }
  NodeRegistry registry_{{.heartbeat_timeout = {}}};
};

TEST_F(LoadBalancerTest, RoundRobinTakesTurns) {
  for (const char* id : {"a", "b", "c"}) add(id);
  LoadBalancer balancer(registry_, BalancePolicy::kRoundRobin);
  std::string order;
  for (int i = 0; i < 7; ++i) order += next(balancer);
  EXPECT_EQ(order, "abcabca");
}

TEST_F(LoadBalancerTest, RoundRobinStaysFairWhenNodesComeAndGo) {
  for (const char* id : {"a", "b", "c"}) add(id);
  LoadBalancer balancer(registry_, BalancePolicy::kRoundRobin);
  EXPECT_EQ(next(balancer), "a");
  ASSERT_TRUE(registry_.unregister_node("b").has_value());
  EXPECT_EQ(next(balancer), "c");
  add("d");
  EXPECT_EQ(next(balancer), "d");
  EXPECT_EQ(next(balancer), "a");
  ASSERT_TRUE(registry_.mark_unhealthy("c").has_value());
  EXPECT_EQ(next(balancer), "d");
}

TEST_F(LoadBalancerTest, TheFactorIsLeastOverGreatestNodeTime) {
  add("a");
  add("b");
  LoadBalancer balancer(registry_, BalancePolicy::kRoundRobin);
  EXPECT_EQ(balancer.load_balance_factor(), 0.0);
  const LoadBalancer::Ticket first = must_acquire(balancer, 4.0);
  EXPECT_EQ(balancer.load_balance_factor(), 0.0);
  const LoadBalancer::Ticket second = must_acquire(balancer, 1.0);
  EXPECT_DOUBLE_EQ(balancer.load_balance_factor(), 0.25);
}

TEST_F(LoadBalancerTest, ANodeOfTwiceTheBandwidthTakesHalfTheTime) {
  add("a", 20.0);
  add("b", 10.0);
  LoadBalancer balancer(registry_, BalancePolicy::kRoundRobin);
  const LoadBalancer::Ticket fast = must_acquire(balancer, 2.0);
  const LoadBalancer::Ticket slow = must_acquire(balancer, 1.0);
  EXPECT_DOUBLE_EQ(balancer.load_balance_factor(), 1.0);
}

TEST_F(LoadBalancerTest, LeastLoadedLooksAtCostsNotAtCounts) {
  add("a");
  add("b");
  LoadBalancer balancer(registry_, BalancePolicy::kLeastLoaded);
  const LoadBalancer::Ticket heavy = must_acquire(balancer, 10.0);
  EXPECT_EQ(heavy.node().id, "a");
  std::vector<LoadBalancer::Ticket> light;
  for (int i = 0; i < 5; ++i) light.push_back(must_acquire(balancer, 1.0));
  for (const LoadBalancer::Ticket& ticket : light) EXPECT_EQ(ticket.node().id, "b");
  const std::vector<NodeLoad> loads = balancer.loads();
  EXPECT_EQ(loads[0].active, 10.0);
  EXPECT_EQ(loads[0].served, 1u);
  EXPECT_EQ(loads[1].active, 5.0);
  EXPECT_EQ(loads[1].served, 5u);
}

TEST_F(LoadBalancerTest, EndedTicketsGiveTheirCostBackExactly) {
  add("a");
  LoadBalancer balancer(registry_);
  {
    const LoadBalancer::Ticket one = must_acquire(balancer, 0.1);
    const LoadBalancer::Ticket two = must_acquire(balancer, 0.2);
    const LoadBalancer::Ticket three = must_acquire(balancer, 0.3);
    EXPECT_GT(balancer.loads()[0].active, 0.5);
  }
  EXPECT_EQ(balancer.loads()[0].active, 0.0);
}

TEST_F(LoadBalancerTest, MovedTicketCountsOnce) {
  add("a");
  LoadBalancer balancer(registry_);
  LoadBalancer::Ticket first = must_acquire(balancer, 2.0);
  LoadBalancer::Ticket second = std::move(first);
  EXPECT_EQ(balancer.loads()[0].active, 2.0);
  second = must_acquire(balancer, 3.0);  // gives the first one back
  EXPECT_EQ(balancer.loads()[0].active, 3.0);
}

TEST_F(LoadBalancerTest, TicketMayOutliveTheBalancer) {
  add("a");
  auto balancer = std::make_unique<LoadBalancer>(registry_);
  std::optional<LoadBalancer::Ticket> ticket = must_acquire(*balancer);
  balancer.reset();
  EXPECT_EQ(ticket->node().id, "a");
  ticket.reset();
}

TEST_F(LoadBalancerTest, WeightedServesInProportionWithoutBursts) {
  add("slow", 10.0);
  add("fast", 30.0);
  LoadBalancer balancer(registry_, BalancePolicy::kWeighted);
  std::map<std::string, int> served;
  std::string last;
  for (int i = 0; i < 40; ++i) {
    const std::string id = next(balancer);
    ++served[id];
    if (id == "slow") {
      EXPECT_NE(last, "slow");
    }
    last = id;
  }
  EXPECT_EQ(served["slow"], 10);
  EXPECT_EQ(served["fast"], 30);
}

TEST_F(LoadBalancerTest, UnknownBandwidthWeighsLikeTheSlowestKnown) {
  add("unknown");
  add("slow", 10.0);
  add("fast", 20.0);
  LoadBalancer balancer(registry_, BalancePolicy::kWeighted);
  std::map<std::string, int> served;
  for (int i = 0; i < 40; ++i) ++served[next(balancer)];
  EXPECT_EQ(served["unknown"], 10);
  EXPECT_EQ(served["slow"], 10);
  EXPECT_EQ(served["fast"], 20);
}

TEST_F(LoadBalancerTest, NoHealthyNodeIsAnErrorThatCounts) {
  LoadBalancer balancer(registry_);
  EXPECT_EQ(balancer.acquire().error().code, ErrorCode::kUnavailable);
  add("a");
  ASSERT_TRUE(registry_.mark_unhealthy("a").has_value());
  EXPECT_EQ(balancer.acquire().error().message, "none of 1 registered nodes is healthy");
}

TEST_F(LoadBalancerTest, ImpossibleCostIsRefused) {
  add("a");
  LoadBalancer balancer(registry_);
  EXPECT_EQ(balancer.acquire(-1.0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(balancer.acquire(std::nan("")).has_value());
  EXPECT_EQ(balancer.loads()[0].served, 0u);
}

TEST_F(LoadBalancerTest, ThreadsTogetherLeaveNoLoadBehind) {
  for (const char* id : {"a", "b", "c"}) add(id);
  LoadBalancer balancer(registry_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) const LoadBalancer::Ticket ticket = must_acquire(balancer, 0.5);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t served = 0;
  for (const NodeLoad& load : balancer.loads()) {
    EXPECT_EQ(load.active, 0.0);
    served += load.served;
  }
  EXPECT_EQ(served, 2000u);
}

}  // namespace
}  // namespace butterfly
