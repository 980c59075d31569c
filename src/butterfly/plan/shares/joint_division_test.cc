#include "butterfly/plan/shares/joint_division.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "butterfly/model/core/shard.h"
#include "butterfly/plan/cost/cost.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/plan/partition/strategy.h"
#include "butterfly/plan/pipeline/best_split.h"

namespace butterfly {
namespace {

/// A member whose runs cost in proportion to their size; experts come in lumps of `lump` slices.
JointCosts member(double slice_s, double expert_s, int lump, double memory) {
  JointCosts costs{.memory = memory};
  for (auto* all : {&costs.slices_s, &costs.experts_s, &costs.slices_bytes, &costs.experts_bytes}) {
    all->assign(ModelCost::kRuns, 0.0);
  }
  for (int first = 0; first < kReductionSlices; ++first) {
    for (int last = first + 1; last <= kReductionSlices; ++last) {
      const std::size_t run = ModelCost::run({.first = first, .last = last});
      const double lumps = last / lump - first / lump;
      costs.slices_s[run] = slice_s * (last - first);
      costs.slices_bytes[run] = last - first;
      costs.experts_s[run] = expert_s * lumps;
      costs.experts_bytes[run] = 3.0 * lumps * lump;
    }
  }
  return costs;
}

/// Every pair of divisions among three members.
double by_every_division(const std::vector<JointCosts>& members) {
  double least = kInfinity;
  constexpr int kAll = kReductionSlices;
  for (int a = 1; a < kAll - 1; ++a) {
    for (int b = a + 1; b < kAll; ++b) {
      for (int x = 0; x <= kAll; ++x) {
        for (int y = x; y <= kAll; ++y) {
          const std::vector<HeldSlices> held{{{0, a}, {0, x}}, {{a, b}, {x, y}}, {{b, kAll}, {y, kAll}}};
          bool fits = true;
          for (std::size_t m = 0; m < 3; ++m) {
            fits = fits && members[m].slices_bytes[ModelCost::run(held[m])] +
                                   members[m].experts_bytes[ModelCost::run(held[m].experts)] <=
                               members[m].memory;
          }
          if (fits) least = std::min(least, slowest_s(members, held));
        }
      }
    }
  }
  return least;
}

TEST(JointDivision, TheSlowestMemberIsAsFastAsInEveryDivision) {
  std::mt19937 random(2);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  int feasible = 0;
  for (int instance = 0; instance < 60; ++instance) {
    const int lump = 1 << (random() % 4);
    std::vector<JointCosts> members;
    for (int i = 0; i < 3; ++i) {
      members.push_back(
          member(uniform(0.1, 2.0), uniform(0.1, 4.0), lump, random() % 2 == 0 ? 1e9 : uniform(8.0, 90.0)));
    }
    const double least = by_every_division(members);
    const auto held = divide_jointly(members);
    ASSERT_EQ(held.has_value(), least < kInfinity) << instance;
    if (!held) continue;
    ++feasible;
    EXPECT_NEAR(slowest_s(members, *held), least, 2e-6 * least) << instance;
    HeldSlices before = HeldSlices::none();
    for (const HeldSlices& own : *held) {
      EXPECT_TRUE(own.follows(before));
      EXPECT_GT(own.count(), 0);
      before = own;
    }
    EXPECT_TRUE(before.ends());
  }
  EXPECT_GT(feasible, 30);
}

TEST(JointDivision, ExpertsWithFewerSumsStayWithinTheLimit) {
  std::vector<JointCosts> members;
  for (const double speed : {1.0, 1.7, 0.6, 1.2, 0.9}) members.push_back(member(1 / speed, 2 / speed, 1, 1e9));
  const auto sums = [](const std::vector<HeldSlices>& all) {
    int count = 0;
    for (const HeldSlices& held : all) count += subtree_count(held.experts);
    return count;
  };
  const auto even = divide_jointly(members);
  ASSERT_TRUE(even);
  const double limit = 1.3 * slowest_s(members, *even);
  const auto fewer = fewest_expert_sums(members, *even, limit);
  ASSERT_TRUE(fewer);
  EXPECT_LT(sums(*fewer), sums(*even));
  EXPECT_LE(slowest_s(members, *fewer), limit);
}

/// A slow node with room, beside fast ones without: experts are many bytes of which a token reads few, heads are read
/// every time. Fails where experts go with the slices.
TEST(JointDivision, ANodeWithMuchMemoryAndLittleSpeedHoldsMoreExpertsThanSlices) {
  ModelConfig config = *named_config("qwen3-30b-a3b");
  config.weight_type = DType::kQ4_0;
  const PlanOptions options{.strategy = "tensor", .context = 512};
  PlanCluster cluster;
  cluster.nodes.push_back({.name = "fast", .memory_read_gb_per_s = 60.0, .fp32_gflops = 600.0});
  cluster.nodes.push_back({.name = "large", .memory_read_gb_per_s = 20.0, .fp32_gflops = 200.0});
  const PlanningProblem problem = *planning_problem(config, cluster, options);
  const std::uint64_t whole = share_bytes(problem.cost, problem.whole(0, config.layers), problem.load).total();
  cluster.nodes[0].memory_bytes = whole * 3 / 10;
  const Result<Plan> plan = make_plan(config, cluster, options);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_EQ(plan->shares.size(), 2u);
  const HeldSlices& fast = plan->shares[0].work.slices;
  EXPECT_GT(fast.count(), 20) << "by its speed";
  EXPECT_LT(fast.experts.count(), 11) << "by its memory";
  EXPECT_LE(plan->shares[0].prediction.memory_bytes(), cluster.nodes[0].memory_bytes);
  // Coupled, it could hold no more slices than experts.
  Plan coupled = *plan;
  for (PlannedShare& share : coupled.shares) share.work.slices = SliceRange(share.work.slices.experts);
  EXPECT_LT(plan->prediction.slowest_s, predict(problem, coupled.placement()).whole.slowest_s);
}

TEST(JointDivision, DenseModelsHaveNoRunsOfExperts) {
  PlanCluster cluster;
  for (const double speed : {10.0, 17.0, 23.0, 8.0}) {
    cluster.nodes.push_back({.memory_read_gb_per_s = speed, .fp32_gflops = 10 * speed});
  }
  const Result<Plan> plan = make_plan(*named_config("llama-1.1b"), cluster, {.strategy = "tensor", .context = 128});
  ASSERT_TRUE(plan.has_value());
  for (const PlannedShare& share : plan->shares) EXPECT_TRUE(share.work.slices.experts_follow());
}

}  // namespace
}  // namespace butterfly
