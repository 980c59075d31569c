#include "butterfly/plan/shares/custom.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace butterfly {
namespace {

PlanCluster three_nodes() {
  PlanCluster cluster;
  for (const char* name : {"alpha", "beta", "gamma"}) cluster.nodes.push_back({.name = name});
  cluster.nodes[1].address = "10.0.0.2:7000";
  return cluster;
}

std::string refusal(std::string_view text, int layers = 8) {
  const Result<CustomPlan> plan = parse_custom_plan(text);
  if (!plan) return plan.error().message;
  const auto shares = resolve(*plan, layers, three_nodes());
  return shares ? "" : shares.error().message;
}

TEST(CustomPlan, StagesAndGroupsAreReadAsWritten) {
  const auto plan =
      parse_custom_plan("# by hand\n 2 0-1\r\nalpha 2-7 slices 0-19 # the fast one\n10.0.0.2:7000 2-7 slices 20-31");
  ASSERT_TRUE(plan.has_value());
  const auto shares = resolve(*plan, 8, three_nodes());
  ASSERT_TRUE(shares.has_value()) << shares.error().message;
  const std::vector<Share> expected{
      {.node = 2, .work = {.first_layer = 0, .last_layer = 2, .embedding = true}},
      {.node = 0, .work = {.first_layer = 2, .last_layer = 8, .head = true, .slices = {0, 20}}},
      {.node = 1, .work = {.first_layer = 2, .last_layer = 8, .head = true, .slices = {20, 32}}},
  };
  EXPECT_EQ(*shares, expected);
}

TEST(CustomPlan, NodeMayHaveSeveralStages) {
  EXPECT_EQ(refusal("alpha 0-1\nbeta 2-3\nalpha 4-7"), "");
}

TEST(CustomPlan, LinesThatSaySomethingElseAreRefusedByNumber) {
  const std::string form = "', expected NODE FIRST-LAST [slices FIRST-LAST] [experts FIRST-LAST]";
  EXPECT_EQ(refusal("alpha 0-3\nbeta four"), "line 2 of the custom plan is 'beta four" + form);
  for (const char* line : {"alpha", "alpha 3-1", "alpha -1-3", "alpha 0-", "alpha 0-3 slices", "alpha 0-3 rows 0-3",
                           "alpha 0-99999999999", "alpha 0-3 slices 3-x", "alpha 0-3 experts",
                           "alpha 0-3 experts 1-2 experts 3-4", "alpha 0-3 slices all experts none"}) {
    EXPECT_EQ(refusal(line), "line 1 of the custom plan is '" + std::string(line) + form);
  }
}

TEST(CustomPlan, GapsOverlapsAndUnknownNodesGetOneSentenceEach) {
  EXPECT_EQ(refusal("alpha 0-2\nbeta 4-7"), "the custom plan gives layer 3 to nobody");
  EXPECT_EQ(refusal("alpha 0-2"), "the custom plan gives layer 3 to nobody");
  EXPECT_EQ(refusal(""), "the custom plan gives layer 0 to nobody");
  EXPECT_EQ(refusal("alpha 0-4\nbeta 4-7"), "the custom plan gives layer 4 to beta too, after another");
  EXPECT_EQ(refusal("alpha 0-7\nbeta 0-7"), "the custom plan gives layer 0 to beta too, after another");
  EXPECT_EQ(refusal("alpha 0-8"), "the custom plan gives layers 0 to 8 to alpha, the model has 0 to 7");
  EXPECT_EQ(refusal("delta 0-7"), "the custom plan names 'delta', none of the 3 nodes is called so");
  EXPECT_EQ(refusal("3 0-7"), "the custom plan names '3', none of the 3 nodes is called so");
}

TEST(CustomPlan, GroupsHaveEachSliceOnceAndEachNodeOnce) {
  EXPECT_EQ(refusal("alpha 0-7 slices 0-15\nbeta 0-7 slices 20-31"),
            "the custom plan gives slice 16 of layers 0 to 7 to nobody");
  EXPECT_EQ(refusal("alpha 0-7 slices 0-15"), "the custom plan gives slice 16 of layers 0 to 7 to nobody");
  EXPECT_EQ(refusal("alpha 0-7 slices 4-31"), "the custom plan gives slice 0 of layers 0 to 7 to nobody");
  EXPECT_EQ(refusal("alpha 0-7 slices 0-19\nbeta 0-7 slices 16-31"),
            "the custom plan gives slice 16 of layers 0 to 7 to beta too, after another");
  EXPECT_EQ(refusal("alpha 0-7 slices 0-35"), "the custom plan gives slices 0 to 35 to alpha, there are 0 to 31");
  EXPECT_EQ(refusal("alpha 0-7 slices 0-15\nalpha 0-7 slices 16-31"),
            "the custom plan names alpha twice in the group of layers 0 to 7");
}

/// 64 experts: two in a slice.
Result<std::vector<Share>> with_experts(std::string_view text, int experts = 64) {
  BF_ASSIGN_OR_RETURN(const CustomPlan plan, parse_custom_plan(text));
  std::vector<int> borders;
  for (int slice = 0; slice <= kReductionSlices; ++slice) borders.push_back(experts * slice / kReductionSlices);
  return resolve(plan, 8, three_nodes(), borders);
}

std::string refusal_with_experts(std::string_view text, int experts = 64) {
  const auto shares = with_experts(text, experts);
  return shares ? "" : shares.error().message;
}

TEST(CustomPlan, ExpertsHaveARangeOfTheirOwn) {
  const auto shares = with_experts("alpha 0-7 slices 0-25 experts 0-7\nbeta 0-7 slices 26-31 experts 8-63");
  ASSERT_TRUE(shares) << shares.error().message;
  EXPECT_EQ((*shares)[0].work.slices, HeldSlices({0, 26}, {0, 4}));
  EXPECT_EQ((*shares)[1].work.slices, HeldSlices({26, 32}, {4, 32}));
  const auto first = with_experts("alpha 0-7 slices none experts 0-61\nbeta 0-7 experts 62-63");
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ((*first)[0].work.slices, HeldSlices({0, 0}, {0, 31}));
  EXPECT_EQ((*first)[1].work.slices, HeldSlices({0, 32}, {31, 32}));
  const auto last = with_experts("alpha 0-7 slices 0-31 experts none\nbeta 0-7 slices none experts 0-63");
  ASSERT_TRUE(last) << last.error().message;
  EXPECT_EQ((*last)[0].work.slices, HeldSlices({0, 32}, {0, 0}));
  EXPECT_EQ((*last)[1].work.slices, HeldSlices({32, 32}, {0, 32}));
  // A member that says nothing of experts has those that go with its slices; of eight, the slices 0 to 11 have three.
  const auto few = with_experts("alpha 0-7 slices 0-11\nbeta 0-7 slices 12-31 experts 3-7", 8);
  ASSERT_TRUE(few) << few.error().message;
  EXPECT_EQ((*few)[0].work.slices, HeldSlices({0, 12}, {0, 12}));
  EXPECT_EQ((*few)[1].work.slices, HeldSlices({12, 32}, {12, 32}));
}

TEST(CustomPlan, GroupsHaveEachExpertOnceAndWholeSlicesOfThem) {
  constexpr const char* kTwo = "alpha 0-7 slices 0-15 experts {}\nbeta 0-7 slices 16-31 experts {}";
  const auto refused = [&](std::string_view a, std::string_view b) {
    return refusal_with_experts(fmt::format(fmt::runtime(kTwo), a, b));
  };
  EXPECT_EQ(refused("0-7", "10-63"), "the custom plan gives expert 8 of layers 0 to 7 to nobody");
  EXPECT_EQ(refused("0-7", "8-61"), "the custom plan gives expert 62 of layers 0 to 7 to nobody");
  EXPECT_EQ(refused("0-7", "6-63"), "the custom plan gives expert 6 of layers 0 to 7 to beta too, after another");
  EXPECT_EQ(refused("0-7", "8-64"),
            "the custom plan gives experts 8 to 64 of layers 0 to 7 to beta, there are 0 to 63");
  EXPECT_EQ(refused("0-6", "7-63"),
            "the custom plan gives experts 0 to 6 of layers 0 to 7 to alpha; 64 experts are added up in 32 slices, one "
            "of which has experts 6 to 7 together");
  EXPECT_EQ(refusal_with_experts("alpha 0-7 slices 0-31\nbeta 0-7 slices none"),
            "the custom plan gives beta neither slices nor experts of layers 0 to 7");
  EXPECT_EQ(refusal("alpha 0-7 slices 0-31 experts none\nbeta 0-7 slices none experts 0-63"),
            "the custom plan gives experts of layers 0 to 7 to alpha, the model has none");
}

TEST(CustomPlan, NameOfTwoNodesIsNoName) {
  PlanCluster cluster = three_nodes();
  cluster.nodes[2].name = "alpha";
  const auto shares = resolve({.shares = {{.node = "alpha", .first_layer = 0, .last_layer = 8}}}, 8, cluster);
  ASSERT_FALSE(shares.has_value());
  EXPECT_EQ(shares.error().message, "the custom plan names 'alpha', nodes 0 and 2 are both called so");
}

}  // namespace
}  // namespace butterfly
