#include "butterfly/plan/partition/uneven_layers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "butterfly/plan/pipeline/best_split.h"

namespace butterfly {
namespace {

/// Experts behind some dense layers whose MLP is several times as wide as what a token reads of the experts.
ModelConfig dense_first(int layers, int dense, int ff_dim = 4096) {
  ModelConfig config = *named_config("butterfly-demo");
  config.layers = layers;
  config.ff_dim = ff_dim;
  config.weight_type = DType::kQ4_0;
  config.moe = {.experts = 64, .experts_used = 4, .ff_dim = 64, .layers = {}, .shared_ff_dim = 64};
  for (int layer = 0; layer < layers; ++layer) config.moe.layers.push_back(layer < dense ? 0 : 1);
  return config;
}

/// The fastest slowest stage of every order of the nodes and all borders, by plain recursion.
double by_every_order(const PlanningProblem& problem) {
  std::vector<int> order(static_cast<std::size_t>(problem.nodes()));
  std::iota(order.begin(), order.end(), 0);
  double least = kInfinity;
  do {
    const auto counts = best_split(
        problem.nodes(), problem.layers,
        [&](int place, int first, int last) {
          const int node = order[static_cast<std::size_t>(place)];
          if (problem.missing_bytes(node, problem.whole(first, last)) > 0) return kInfinity;
          return problem.decode_s(node, first, last);
        },
        [](double a, double b) { return std::max(a, b); });
    if (!counts) continue;
    double slowest = 0.0;
    for (int place = 0, first = 0; place < problem.nodes(); ++place) {
      const int last = first + (*counts)[static_cast<std::size_t>(place)];
      if (last > first)
        slowest = std::max(slowest, problem.decode_s(order[static_cast<std::size_t>(place)], first, last));
      first = last;
    }
    least = std::min(least, slowest);
  } while (std::ranges::next_permutation(order).found);
  return least;
}

/// Fails where a dense layer is counted as one with experts: its time, its bytes or the exchanges.
TEST(UnevenLayers, BalancedEqualsEveryOrderOnRandomInstances) {
  std::mt19937 random(7);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  int feasible = 0, reordered = 0;
  for (int instance = 0; instance < 200; ++instance) {
    const int layers = 2 + static_cast<int>(random() % 9);
    ModelConfig config = dense_first(layers, static_cast<int>(random() % static_cast<unsigned>(layers)));
    // Some have windows besides, and some an encoder in the place of experts.
    if (instance % 3 == 1) {
      for (int layer = 0; layer < layers; ++layer) config.windows.push_back(layer % 2 == 0 ? 0 : 8);
    } else if (instance % 3 == 2) {
      config.moe = {};
      config.position = PositionKind::kNone;
      config.relative = {.buckets = 8, .distance = 32};
      config.encoder_layers = 1 + static_cast<int>(random() % static_cast<unsigned>(layers - 1));
    }
    if (random() % 3 == 0) std::ranges::shuffle(config.moe.layers, random);
    PlanCluster cluster;
    const int nodes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < nodes; ++i) {
      cluster.nodes.push_back({.name = fmt::format("n{}", i),
                               .memory_read_gb_per_s = uniform(1.0, 20.0),
                               .fp32_gflops = uniform(5.0, 100.0)});
    }
    const PlanOptions options{.strategy = "balanced", .context = 256};
    const PlanningProblem sizes = *planning_problem(config, cluster, options);
    const auto need = static_cast<double>(share_bytes(sizes.cost, sizes.whole(0, layers), sizes.load).total());
    for (NodeDescriptor& node : cluster.nodes) {
      if (random() % 2 == 0) node.memory_bytes = static_cast<std::uint64_t>(uniform(0.2, 0.9) * need);
    }
    const PlanningProblem problem = *planning_problem(config, cluster, options);
    const double least = by_every_order(problem);
    const Result<Plan> plan = make_plan(config, cluster, options);
    ASSERT_EQ(plan.has_value(), least < kInfinity) << "instance " << instance;
    if (!plan) continue;
    ++feasible;
    ASSERT_NEAR(plan->predicted_slowest_s(), least, 1e-8 * least) << "instance " << instance;
    ASSERT_NEAR(plan->gap(), 0.0, 1e-8) << "instance " << instance;
    if (!std::ranges::is_sorted(plan->shares, {}, &PlannedShare::node)) ++reordered;
  }
  EXPECT_GT(feasible, 120);
  EXPECT_GT(reordered, 20);
}

TEST(UnevenLayers, NodesOfOneSpeedGetFewerOfTheLargerLayers) {
  const ModelConfig config = dense_first(26, 2, 1024);
  PlanCluster cluster;
  for (int i = 0; i < 4; ++i) cluster.nodes.push_back({.memory_read_gb_per_s = 10.0, .fp32_gflops = 100.0});
  const Result<Plan> plan = make_plan(config, cluster, {.strategy = "balanced", .context = 256});
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_EQ(plan->shares.size(), 4u);
  EXPECT_LT(plan->shares[0].work.layers(), plan->shares[1].work.layers());
  EXPECT_GT(plan->prediction.load_balance_factor, 0.8);
}

TEST(UnevenLayers, OfManyNodesNoPlanFallsBelowTheBound) {
  std::mt19937 random(3);
  for (int instance = 0; instance < 10; ++instance) {
    const ModelConfig config = dense_first(40, 3);
    PlanCluster cluster;
    for (int i = 0; i < 16; ++i) {
      const double speed = std::uniform_real_distribution<>(2.0, 20.0)(random);
      cluster.nodes.push_back({.memory_read_gb_per_s = speed, .fp32_gflops = 10 * speed});
    }
    const Result<Plan> plan = make_plan(config, cluster, {.strategy = "balanced", .context = 256});
    ASSERT_TRUE(plan.has_value());
    EXPECT_GT(plan->slowest_bound_s, 0.0);
    EXPECT_GE(plan->gap(), 0.0);
    EXPECT_LT(plan->gap(), 0.5) << "what each node could hold at its best place, all of them at once";
  }
}

/// A tensor group over layers that are not alike holds what its plan says.
TEST(UnevenLayers, MembersOfAGroupAreCountedWithTheLayersThatTheyHave) {
  const ModelConfig config = dense_first(8, 3);
  PlanCluster cluster;
  for (const double speed : {10.0, 20.0}) {
    cluster.nodes.push_back({.memory_read_gb_per_s = speed, .fp32_gflops = 10 * speed});
  }
  const PlanningProblem problem = *planning_problem(config, cluster, {.context = 256});
  const StageAssignment dense = problem.whole(0, 3), experts = problem.whole(5, 8);
  const ShareBytes first = share_bytes(problem.cost, dense, problem.load);
  const ShareBytes last = share_bytes(problem.cost, experts, problem.load);
  EXPECT_EQ(first.weights, 3 * problem.cost.dense_block.weight_bytes + problem.cost.embedding.weight_bytes);
  EXPECT_NE(problem.cost.dense_block.weight_bytes, problem.cost.block.weight_bytes);
  EXPECT_EQ(last.weights - (problem.cost.head.weight_bytes), 3 * problem.cost.block.weight_bytes);
}

}  // namespace
}  // namespace butterfly
