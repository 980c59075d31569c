#include "butterfly/plan/description/cluster_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace butterfly {
namespace {

PlanCluster two_nodes() {
  PlanCluster cluster;
  cluster.nodes = {{.name = "a"}, {.name = ""}};
  cluster.links = {{}, {.latency_us = 10.0, .gb_per_s = 1.0}, {.latency_us = 30.0, .gb_per_s = 2.0}, {}};
  cluster.coordinator_links = {{.latency_us = 5.0, .gb_per_s = 1.0}, {.latency_us = 6.0, .gb_per_s = 1.0}};
  return cluster;
}

std::string refusal(const PlanCluster& cluster) {
  const Status status = validate(cluster);
  return status ? "" : status.error().message;
}

TEST(PlanCluster, LinksHaveDirectionsAndItselfIsFree) {
  const PlanCluster cluster = two_nodes();
  EXPECT_EQ(cluster.link(0, 1).latency_us, 10.0);
  EXPECT_EQ(cluster.link(1, 0).latency_us, 30.0);
  EXPECT_EQ(cluster.link(kCoordinator, 1).latency_us, 6.0);
  EXPECT_EQ(cluster.link(1, kCoordinator).latency_us, 6.0);
  EXPECT_EQ(transfer_s(cluster.link(1, 1), 1e9), 0.0);
  EXPECT_EQ(refusal(cluster), "");
}

TEST(PlanCluster, UnknownLinksAreAssumed) {
  const PlanCluster cluster = cluster_of(two_nodes().nodes);
  EXPECT_EQ(cluster.link(0, 1).latency_us, kAssumedLink.latency_us);
  EXPECT_EQ(cluster.link(0, kCoordinator).gb_per_s, kAssumedLink.gb_per_s);
  EXPECT_EQ(refusal(cluster), "");
}

TEST(PlanCluster, TransferIsLatencyAndBytesOverBandwidth) {
  EXPECT_DOUBLE_EQ(transfer_s({.latency_us = 100.0, .gb_per_s = 0.5}, 1e6), 100e-6 + 2e-3);
  EXPECT_TRUE(std::isinf(transfer_s({}, 0.0)));
}

TEST(PlanCluster, HostsAreSharedOnlyWhereToldSo) {
  PlanCluster cluster = two_nodes();
  EXPECT_FALSE(cluster.same_host(0, 1));
  cluster.host_of_node = {4, 4};
  EXPECT_TRUE(cluster.same_host(0, 1));
  EXPECT_FALSE(cluster.same_host(kCoordinator, 1));
}

TEST(PlanCluster, ACoordinatorThatComputesIsTheFirstNode) {
  const PlanCluster all = with_coordinator(two_nodes(), {.name = "here"});
  ASSERT_EQ(all.size(), 3);
  EXPECT_EQ(all.name_of(0), "here");
  EXPECT_EQ(all.link(0, 2).latency_us, 6.0);
  EXPECT_EQ(all.link(2, 0).latency_us, 6.0);
  EXPECT_EQ(all.link(1, 2).latency_us, 10.0);
  EXPECT_EQ(all.link(2, 1).latency_us, 30.0);
  EXPECT_EQ(all.link(0, 1).latency_us, 5.0);
  EXPECT_FALSE(all.same_host(0, 1));
  EXPECT_FALSE(all.same_host(1, 2));
  EXPECT_EQ(refusal(all), "");
}

TEST(PlanCluster, ImpossibleClustersGetOneSentenceEach) {
  EXPECT_EQ(refusal({}), "a plan needs at least one node");
  PlanCluster cluster = two_nodes();
  cluster.links[1].latency_us = -1.0;
  EXPECT_EQ(refusal(cluster), "the latency of the link from a to node 1 is -1, expected a number of at least 0");
  cluster = two_nodes();
  cluster.links.pop_back();
  EXPECT_EQ(refusal(cluster), "a cluster with 3 links, expected 4 or none");
  cluster = two_nodes();
  cluster.nodes[0].fp32_gflops = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(refusal(cluster), "the fp32 rate of a is nan, expected a number of at least 0");
  cluster = two_nodes();
  cluster.nodes[1].matmuls = {{.type = "q4_0", .decode_gb_per_s = -2.0}};
  EXPECT_EQ(refusal(cluster), "the decode rate for q4_0 of node 1 is -2, expected a number of at least 0");
  cluster = two_nodes();
  cluster.coordinator_links[1] = {};
  EXPECT_EQ(refusal(cluster), "");  // over the other node
  cluster.links[2] = {};
  EXPECT_EQ(refusal(cluster), "no link connects node 1 with the coordinator or with a node it reaches");
}

}  // namespace
}  // namespace butterfly
