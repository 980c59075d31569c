#include "butterfly/infer/deployment/known_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace butterfly {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<NodeDescriptor> kNodes{
    {.address = "10.0.0.1:7000", .memory_read_gb_per_s = 10, .matmuls = {{"q4_0", 8, 100}}},
    {.address = "10.0.0.1:7001", .memory_read_gb_per_s = 10},
    {.address = "10.0.0.2:7000", .memory_read_gb_per_s = 10}};

TEST(KnownCluster, ASlowWorkerIsPlannedForAsItShowedItself) {
  KnownCluster known;
  known.learn_slowness("10.0.0.1:7000", 2.0);
  const PlanCluster cluster = known.cluster(kNodes);
  EXPECT_DOUBLE_EQ(cluster.nodes[0].memory_read_gb_per_s, 5.0);
  EXPECT_DOUBLE_EQ(cluster.nodes[0].matmuls[0].decode_gb_per_s, 4.0);
  EXPECT_DOUBLE_EQ(cluster.nodes[0].matmuls[0].prefill_gflops, 50.0);
  EXPECT_DOUBLE_EQ(cluster.nodes[1].memory_read_gb_per_s, 10.0);
}

TEST(KnownCluster, WorkersOfOneAddressShareAHost) {
  EXPECT_THAT(KnownCluster().cluster(kNodes).host_of_node, ElementsAre(0, 0, 1));
}

TEST(KnownCluster, UntilALinkIsMeasuredThePlanAssumes) {
  const PlanCluster cluster = KnownCluster().cluster(kNodes);
  EXPECT_THAT(cluster.links, IsEmpty());
  EXPECT_TRUE(validate(cluster));
}

TEST(KnownCluster, MeasuredLinksAreUsedInTheirDirectionAndTheUnknownCountAsTheSlowest) {
  KnownCluster known;
  known.learn_link("10.0.0.1:7000", "10.0.0.2:7000", {.latency_us = 5, .gb_per_s = 4});
  known.learn_link("10.0.0.2:7000", "10.0.0.1:7000", {.latency_us = 6, .gb_per_s = 2});
  known.learn_link(KnownCluster::kHere, "10.0.0.1:7000", {.latency_us = 7, .gb_per_s = 8});
  known.learn_link(KnownCluster::kHere, "10.0.0.2:7000", {.latency_us = 9, .gb_per_s = 0});  // could not be measured
  const PlanCluster cluster = known.cluster(kNodes);
  EXPECT_DOUBLE_EQ(cluster.link(0, 2).gb_per_s, 4.0);
  EXPECT_DOUBLE_EQ(cluster.link(2, 0).gb_per_s, 2.0);
  EXPECT_DOUBLE_EQ(cluster.link(0, 1).gb_per_s, 2.0);
  EXPECT_DOUBLE_EQ(cluster.link(kCoordinator, 0).gb_per_s, 8.0);
  EXPECT_DOUBLE_EQ(cluster.link(kCoordinator, 2).gb_per_s, 2.0);
  EXPECT_TRUE(validate(cluster));
}

// Fails when a prediction is made of links that nobody measured, which may be a thousand times slower than assumed.
TEST(KnownCluster, NamesTheLinkInUseThatNobodyMeasured) {
  const std::vector<LinkUse> uses{
      {.from = kCoordinator, .to = 0}, {.from = 0, .to = 2}, {.from = 2, .to = kCoordinator}};
  KnownCluster known;
  EXPECT_EQ(known.unmeasured(kNodes, uses), "from the coordinator to 10.0.0.1:7000");
  known.learn_link(KnownCluster::kHere, "10.0.0.1:7000", {.gb_per_s = 1});
  EXPECT_EQ(known.unmeasured(kNodes, uses), "from 10.0.0.1:7000 to 10.0.0.2:7000");
  known.learn_link("10.0.0.1:7000", "10.0.0.2:7000", {.gb_per_s = 0});  // could not be measured
  EXPECT_EQ(known.unmeasured(kNodes, uses), "from 10.0.0.1:7000 to 10.0.0.2:7000");
  known.learn_link("10.0.0.1:7000", "10.0.0.2:7000", {.gb_per_s = 1});
  EXPECT_EQ(known.unmeasured(kNodes, uses), "from 10.0.0.2:7000 to the coordinator");
  known.learn_link(KnownCluster::kHere, "10.0.0.2:7000", {.gb_per_s = 1});
  EXPECT_EQ(known.unmeasured(kNodes, uses), "") << "the one from 1 to 2 is not used";
}

TEST(KnownCluster, LinksWithinThisHostNeedNoMeasuring) {
  std::vector<NodeDescriptor> nodes{
      {.address = "127.0.0.1:7000"}, {.address = "[::1]:7000"}, {.address = "localhost:7"}};
  const std::vector<LinkUse> uses{{.from = kCoordinator, .to = 0}, {.from = 0, .to = 1}, {.from = 1, .to = 2}};
  EXPECT_EQ(KnownCluster().unmeasured(nodes, uses), "");
  nodes[2].address = "127.example.org:7000";
  EXPECT_EQ(KnownCluster().unmeasured(nodes, uses), "from [::1]:7000 to 127.example.org:7000");
}

}  // namespace
}  // namespace butterfly
