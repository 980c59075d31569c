#include "butterfly/plan/partition/strategy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/model/core/shard.h"
#include "butterfly/plan/partition/arrangement.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/plan/pipeline/best_split.h"

namespace butterfly {
namespace {

/// A small model over a few nodes with random speeds, memories and links.
struct Instance {
  ModelConfig config;
  PlanCluster cluster;
  PlanOptions options;
};

Instance random_instance(std::mt19937& random, int nodes, int layers) {
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  Instance made{.config = *named_config("butterfly-demo"), .cluster = {}, .options = {}};
  made.config.layers = layers;
  made.config.vocab = 1 << (5 + random() % 11);
  made.config.tied_head = random() % 2 == 0;
  made.options = {
      .context = 256, .sequences = 1 + static_cast<int>(random() % 20), .goal = static_cast<PlanGoal>(random() % 3)};
  for (int i = 0; i < nodes; ++i) {
    made.cluster.nodes.push_back({.name = fmt::format("n{}", i),
                                  .memory_read_gb_per_s = uniform(1.0, 20.0),
                                  .fp32_gflops = uniform(5.0, 100.0)});
  }
  const auto link = [&] { return LinkDescriptor{.latency_us = uniform(1.0, 300.0), .gb_per_s = uniform(0.05, 5.0)}; };
  for (int i = 0; i < nodes * nodes; ++i) made.cluster.links.push_back(link());
  for (int i = 0; i < nodes; ++i) made.cluster.coordinator_links.push_back(link());
  const PlanningProblem problem = *planning_problem(made.config, made.cluster, made.options);
  const auto need = static_cast<double>(share_bytes(problem.cost, problem.whole(0, layers), problem.load).total());
  for (NodeDescriptor& node : made.cluster.nodes) {
    if (random() % 2 == 0) node.memory_bytes = static_cast<std::uint64_t>(uniform(0.1, 0.9) * need);
  }
  return made;
}

/// Every way to cut `total` into `parts` of at least 1.
void for_each_cut(int total, int parts, std::vector<int>& cut, const std::function<void()>& visit) {
  if (parts == 1) {
    cut.push_back(total);
    visit();
    cut.pop_back();
    return;
  }
  for (int part = 1; part <= total - parts + 1; ++part) {
    cut.push_back(part);
    for_each_cut(total - part, parts - 1, cut, visit);
    cut.pop_back();
  }
}

/// Every pipeline of groups there is, by plain recursion: next group, its layers, its slices.
class EveryPipeline {
 public:
  EveryPipeline(const PlanningProblem& problem, int members_max) : problem_(problem), members_max_(members_max) {}

  void visit(const std::function<void(const std::vector<Share>&)>& visit) {
    visit_ = visit;
    extend((1u << problem_.nodes()) - 1, 0);
  }

 private:
  void extend(unsigned unused, int first) {
    if (first == problem_.layers) return visit_(shares_);
    for (unsigned members = 1; members <= unused; ++members) {
      if ((members & ~unused) != 0) continue;
      std::vector<int> nodes;
      for (int node = 0; node < problem_.nodes(); ++node) {
        if ((members >> node & 1u) != 0) nodes.push_back(node);
      }
      if (static_cast<int>(nodes.size()) > members_max_) continue;
      for (int last = first + 1; last <= problem_.layers; ++last) add_group(nodes, unused & ~members, first, last);
    }
  }

  void add_group(const std::vector<int>& nodes, unsigned unused, int first, int last) {
    std::vector<int> cut;
    for_each_cut(kReductionSlices, static_cast<int>(nodes.size()), cut, [&] {
      const std::size_t before = shares_.size();
      int slice = 0;
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        StageAssignment work = problem_.whole(first, last);
        work.slices = {slice, slice + cut[i]};
        slice += cut[i];
        shares_.push_back({.node = nodes[i], .work = work});
      }
      extend(unused, last);
      shares_.resize(before);
    });
  }

  const PlanningProblem& problem_;
  const int members_max_;
  std::function<void(const std::vector<Share>&)> visit_;
  std::vector<Share> shares_;
};

double slowest_of(const PlanningProblem& problem, const std::vector<Share>& shares) {
  double slowest = 0.0;
  for (const Share& share : shares) {
    slowest = std::max(slowest, problem.decode_s(share.node, share.work.first_layer, share.work.last_layer));
  }
  return slowest;
}

struct Tried {
  double slowest = kInfinity;  // of plans of whole layers
  double score = kInfinity;    // of all plans
};

Tried try_everything(const PlanningProblem& problem) {
  Tried tried;
  EveryPipeline(problem, kReductionSlices).visit([&](const std::vector<Share>& shares) {
    if (problem.missing_bytes(shares) > 0) return;
    tried.score = std::min(tried.score, problem.score(shares));
    if (groups_of(shares).size() == shares.size()) {
      tried.slowest = std::min(tried.slowest, slowest_of(problem, shares));
    }
  });
  return tried;
}

double score_of(const PlanningProblem& problem, const Result<Plan>& plan) {
  return plan ? problem.score(plan->placement()) : kInfinity;
}

TEST(Strategies, BalancedAndAutoEqualExhaustiveSearchOnAThousandRandomInstances) {
  std::mt19937 random(11);
  int feasible = 0, infeasible = 0, reordered = 0, grouped = 0, scattered = 0;
  for (int instance = 0; instance < (kSanitized ? 50 : 1000); ++instance) {
    // Every division of 32 slices among four members takes its time.
    const int nodes = instance % 50 == 0 ? 4 : 1 + static_cast<int>(random() % 3);
    const int layers = 1 + static_cast<int>(random() % (nodes < 3 ? 7 : nodes == 3 ? 4 : 2));
    Instance made = random_instance(random, nodes, layers);
    const PlanningProblem problem = *planning_problem(made.config, made.cluster, made.options);
    const Tried tried = try_everything(problem);
    const auto plan_by = [&](const char* strategy) {
      made.options.strategy = strategy;
      return make_plan(made.config, made.cluster, made.options);
    };
    const Result<Plan> balanced = plan_by("balanced");
    ASSERT_EQ(balanced.has_value(), tried.slowest < kInfinity) << "instance " << instance;
    if (balanced) {
      ASSERT_EQ(balanced->predicted_slowest_s(), tried.slowest) << "instance " << instance;
      ASSERT_EQ(balanced->gap(), 0.0);
      if (!std::ranges::is_sorted(balanced->shares, {}, &PlannedShare::node)) ++reordered;
    }
    // Only scattered layers are no pipeline; they may fit or be better where no pipeline is.
    const double least = std::min(tried.score, score_of(problem, plan_by("greedy")));
    const Result<Plan> best = plan_by("auto");
    ASSERT_EQ(best.has_value(), least < kInfinity) << "instance " << instance;
    if (!best) {
      EXPECT_EQ(best.error().code, ErrorCode::kNoMemory);
      ++infeasible;
      continue;
    }
    ++feasible;
    if (tried.score > least) ++scattered;
    // Of four members not all divisions are tried.
    ASSERT_NEAR(problem.score(best->placement()), least, (nodes == 4 ? 0.02 : 1e-9) * least) << "instance " << instance;
    if (groups_of(best->placement()).size() < best->shares.size()) ++grouped;
  }
  if (kSanitized) return;
  // The instances must be worth trying.
  EXPECT_GT(feasible, 500);
  EXPECT_GT(infeasible, 30);
  EXPECT_GT(reordered, 100);
  EXPECT_GT(grouped, 50);
  EXPECT_LT(scattered, 100);
}

TEST(Strategies, AutoIsNeverWorseThanAnyOther) {
  std::mt19937 random(5);
  for (int instance = 0; instance < (kSanitized ? 2 : 8); ++instance) {
    Instance made = random_instance(random, 5 + static_cast<int>(random() % 6), 12 + static_cast<int>(random() % 12));
    made.options.strategy = "auto";
    const PlanningProblem problem = *planning_problem(made.config, made.cluster, made.options);
    const Result<Plan> best = make_plan(made.config, made.cluster, made.options);
    const auto compared = compare_plans(made.config, made.cluster, made.options);
    ASSERT_TRUE(compared.has_value());
    for (const ComparedPlan& other : *compared) {
      ASSERT_LE(score_of(problem, best), score_of(problem, other.plan)) << other.strategy << ", instance " << instance;
    }
  }
}

/// Two sites, alternating in the order given, with a thin link between them.
PlanCluster two_sites() {
  PlanCluster cluster;
  for (int i = 0; i < 6; ++i) {
    cluster.nodes.push_back({.name = fmt::format("n{}", i), .memory_bytes = std::uint64_t{8} << 20});
    cluster.nodes.back().memory_read_gb_per_s = 10.0;
    cluster.nodes.back().fp32_gflops = 100.0;
  }
  for (int a = 0; a < 6; ++a) {
    for (int b = 0; b < 6; ++b) {
      const bool near = a % 2 == b % 2;
      cluster.links.push_back({.latency_us = near ? 20.0 : 20'000.0, .gb_per_s = near ? 1.0 : 0.001});
    }
  }
  return cluster;
}

int crossings(const Plan& plan) {
  int count = 0;
  for (std::size_t i = 1; i < plan.shares.size(); ++i) {
    if (plan.shares[i].node % 2 != plan.shares[i - 1].node % 2) ++count;
  }
  return count;
}

TEST(Strategies, TopologyCrossesAThinLinkOnceWhereBalancedCrossesItAllTheTime) {
  ModelConfig config = *named_config("butterfly-demo");
  config.layers = 12;
  config.vocab = 64;
  PlanOptions options{.strategy = "balanced", .context = 64};
  const PlanCluster cluster = two_sites();
  const Result<Plan> balanced = make_plan(config, cluster, options);
  ASSERT_TRUE(balanced.has_value()) << balanced.error().message;
  EXPECT_EQ(crossings(*balanced), 5);
  options.strategy = "topology";
  const Result<Plan> annealed = make_plan(config, cluster, options);
  ASSERT_TRUE(annealed.has_value());
  EXPECT_EQ(crossings(*annealed), 1);
  EXPECT_LT(annealed->prediction.token_s, 0.5 * balanced->prediction.token_s);
  const Result<Plan> again = make_plan(config, cluster, options);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->placement(), annealed->placement());
}

TEST(Strategies, GreedyScattersLayersAndPaysInHops) {
  ModelConfig config = *named_config("butterfly-demo");
  config.layers = 12;
  const PlanCluster cluster =
      cluster_of(std::vector<NodeDescriptor>(6, {.memory_read_gb_per_s = 10.0, .fp32_gflops = 100.0}));
  PlanOptions options{.strategy = "greedy", .context = 64};
  const Result<Plan> greedy = make_plan(config, cluster, options);
  ASSERT_TRUE(greedy.has_value()) << greedy.error().message;
  options.strategy = "balanced";
  const Result<Plan> balanced = make_plan(config, cluster, options);
  EXPECT_GT(greedy->shares.size(), balanced->shares.size());
  EXPECT_GT(greedy->prediction.hops, balanced->prediction.hops);
  EXPECT_GT(greedy->prediction.token_s, balanced->prediction.token_s);
  EXPECT_NE(greedy->note.find("scattered"), std::string::npos);
}

TEST(Strategies, TensorGivesSlicesInProportionToSpeed) {
  ModelConfig config = *named_config("llama-1.1b");
  PlanCluster cluster;
  for (const double speed : {10.0, 30.0}) {
    cluster.nodes.push_back({.memory_read_gb_per_s = speed, .fp32_gflops = 10 * speed});
  }
  const Result<Plan> plan = make_plan(config, cluster, {.strategy = "tensor", .context = 128});
  ASSERT_TRUE(plan.has_value());
  ASSERT_EQ(plan->shares.size(), 2u);
  EXPECT_EQ(plan->shares[0].work.slices, (SliceRange{.first = 0, .last = 8}));
  EXPECT_EQ(plan->shares[1].work.slices, (SliceRange{.first = 8, .last = 32}));
  EXPECT_EQ(plan->prediction.groups, 1);
  EXPECT_GT(plan->prediction.exchange_s, 0.0);
  const Result<Plan> alone = make_plan(config, cluster, {.strategy = "uniform", .context = 128});
  EXPECT_LT(plan->prediction.token_s, alone->prediction.token_s);
}

/// Nodes that could not hold the model, of different memory and speed: whole experts go where there is room for them.
TEST(Strategies, ExpertsAreDividedByMemoryAndSpeed) {
  ModelConfig config = *named_config("qwen3-30b-a3b");
  config.weight_type = DType::kQ4_0;
  const PlanOptions options{.strategy = "tensor", .context = 512};
  PlanCluster one;
  one.nodes.push_back({.memory_read_gb_per_s = 10.0, .fp32_gflops = 100.0});
  const PlanningProblem problem = *planning_problem(config, one, options);
  const std::uint64_t whole = share_bytes(problem.cost, problem.whole(0, config.layers), problem.load).total();
  for (const std::vector<int>& sizes : {std::vector{2, 6}, {1, 2, 5}, {1, 2, 2, 1, 2}}) {
    PlanCluster cluster;
    for (const int size : sizes) {
      cluster.nodes.push_back({.memory_bytes = whole * static_cast<std::uint64_t>(size) * 5 / 32,
                               .memory_read_gb_per_s = 10.0 * size,
                               .fp32_gflops = 100.0 * size});
    }
    const Result<Plan> plan = make_plan(config, cluster, options);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    ASSERT_EQ(plan->shares.size(), sizes.size());
    std::vector<std::int64_t> experts(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const PlannedShare& share = plan->shares[i];
      const auto node = static_cast<std::size_t>(share.node);
      experts[node] = shard_of(config, share.work.slices).experts.size();
      EXPECT_LE(share.prediction.memory_bytes(), cluster.nodes[node].memory_bytes);
    }
    EXPECT_EQ(std::accumulate(experts.begin(), experts.end(), std::int64_t{0}), 128);
    for (std::size_t a = 0; a < sizes.size(); ++a) {
      for (std::size_t b = 0; b < sizes.size(); ++b) {
        if (sizes[a] <= sizes[b]) continue;
        EXPECT_GE(experts[a], experts[b]) << a << " " << b;
      }
      EXPECT_NEAR(static_cast<double>(experts[a]), 16.0 * sizes[a], 16.0) << a;
    }
  }
}

TEST(Strategies, TensorOverMoreNodesThanSlicesTakesTheFastest) {
  ModelConfig config = *named_config("llama-1.1b");
  PlanCluster cluster;
  for (int i = 0; i < kReductionSlices + 2; ++i) {
    cluster.nodes.push_back({.memory_read_gb_per_s = i == 3 || i == 7 ? 1.0 : 10.0, .fp32_gflops = 100.0});
  }
  const Result<Plan> plan = make_plan(config, cluster, {.strategy = "tensor", .context = 128});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->standby_nodes, (std::vector<int>{3, 7}));
  EXPECT_EQ(plan->shares.size(), static_cast<std::size_t>(kReductionSlices));
}

TEST(Strategies, HybridDividesWhatNoSingleNodeHolds) {
  ModelConfig config = *named_config("butterfly-demo");
  config.layers = 1;  // no pipeline can help
  PlanCluster cluster;
  for (int i = 0; i < 2; ++i) cluster.nodes.push_back({.memory_read_gb_per_s = 10.0, .fp32_gflops = 100.0});
  PlanOptions options{.strategy = "hybrid", .context = 64};
  const PlanningProblem problem = *planning_problem(config, cluster, options);
  const std::uint64_t whole = share_bytes(problem.cost, problem.whole(0, 1), problem.load).total();
  for (NodeDescriptor& node : cluster.nodes) node.memory_bytes = whole * 3 / 4;
  EXPECT_TRUE(make_plan(config, cluster, options).has_value());
  options.strategy = "balanced";
  const Result<Plan> refused = make_plan(config, cluster, options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
}

TEST(Strategies, OneSequenceHasNoUseForBalanceEvenWhereThroughputIsTheGoal) {
  ModelConfig config = *named_config("butterfly-demo");
  config.layers = 24;
  PlanCluster cluster;
  for (const double speed : {10.0, 15.0}) {
    cluster.nodes.push_back({.memory_read_gb_per_s = speed, .fp32_gflops = 10.0 * speed});
  }
  cluster.default_link = {.latency_us = 5'000.0, .gb_per_s = 1.0};  // too slow for a group
  PlanOptions options{.strategy = "hybrid", .context = 64};
  const PlanningProblem problem = *planning_problem(config, cluster, options);
  const std::uint64_t whole = share_bytes(problem.cost, problem.whole(0, 24), problem.load).total();
  for (NodeDescriptor& node : cluster.nodes) node.memory_bytes = whole * 9 / 10;
  const Result<Plan> latency = make_plan(config, cluster, options);
  options.goal = PlanGoal::kThroughput;
  const Result<Plan> throughput = make_plan(config, cluster, options);
  ASSERT_TRUE(latency.has_value() && throughput.has_value());
  EXPECT_EQ(throughput->placement(), latency->placement());
  EXPECT_GT(throughput->gap(), 0.1);
}

/// Nodes as throttled workers are: of one kind, some at a fraction of its speed. What can be reached is a matter of
/// rounding: 12 members have 2 or 3 slices each. Fails where shares are equal, or multiples of an eighth.
TEST(Strategies, SharesFollowSpeedsOfUnevenNodes) {
  const std::vector<double> speeds{1.0, 0.55, 0.8, 0.35, 0.65, 0.9, 0.45, 0.75, 0.5, 1.0, 0.6, 0.7};
  ModelConfig config = *named_config("llama-2-7b");
  config.weight_type = DType::kQ4_0;
  struct Expected {
    int nodes;
    double balance;  // least over greatest time
    double slowest;  // over the time that shares of any size would take
  };
  for (const auto& [nodes, balance, slowest] :
       {Expected{3, 0.9, 1.05}, {5, 0.85, 1.07}, {7, 0.75, 1.12}, {12, 0.6, 1.2}}) {
    PlanCluster cluster;
    double all = 0.0;
    for (int i = 0; i < nodes; ++i) {
      const double speed = speeds[static_cast<std::size_t>(i)];
      cluster.nodes.push_back({.memory_read_gb_per_s = 40.0 * speed, .fp32_gflops = 400.0 * speed});
      all += speed;
    }
    cluster.default_link = {.latency_us = 1.0, .gb_per_s = 100.0};
    const Result<Plan> plan = make_plan(config, cluster, {.strategy = "tensor", .context = 512});
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    EXPECT_EQ(plan->shares.size(), static_cast<std::size_t>(nodes));
    cluster.nodes.resize(1);
    const double alone = make_plan(config, cluster, {.strategy = "uniform", .context = 512})->prediction.slowest_s;
    const double over = plan->prediction.slowest_s * all / alone;
    EXPECT_GT(plan->prediction.load_balance_factor, balance) << nodes << " nodes";
    EXPECT_LT(over, slowest) << nodes << " nodes";
    EXPECT_NEAR(plan->prediction.slowest_s, plan->division_bound_s, 1e-3 * plan->division_bound_s) << nodes << " nodes";
    EXPECT_GE(plan->division_bound_s, plan->any_size_bound_s) << nodes << " nodes";
    EXPECT_NEAR(plan->any_size_bound_s, alone / all, 0.02 * alone / all) << nodes << " nodes";
    RecordProperty(fmt::format("of_{}_nodes", nodes),
                   fmt::format("{:.3f}, {:.3f}", plan->prediction.load_balance_factor, over));
  }
}

/// The groups that searches make, up to four members and beyond: every member has slices, every slice a member.
TEST(Strategies, DivisionsGiveEveryMemberASlice) {
  std::mt19937 random(3);
  for (const int members : {2, 3, 4, 7, 12, 32}) {
    const Instance made = random_instance(random, members, 6);
    const PlanningProblem problem = *planning_problem(made.config, made.cluster, made.options);
    GroupNodes nodes(static_cast<std::size_t>(members));
    std::iota(nodes.begin(), nodes.end(), 0);
    for (const auto search : {DivisionSearch::kEighths, DivisionSearch::kFine}) {
      SliceCosts costs(problem, goal_shape(problem, 1));
      for (const Slices& slices : group_table(costs, nodes, {.embedding = true}, search).divisions) {
        ASSERT_EQ(slices.size(), static_cast<std::size_t>(members));
        int next = 0;
        for (const SliceRange& own : slices) {
          ASSERT_EQ(own.first, next);
          ASSERT_GT(own.last, own.first);
          next = own.last;
        }
        ASSERT_EQ(next, kReductionSlices);
      }
    }
  }
}

TEST(Strategies, NamesAndAliasesAreUniqueAndFound) {
  std::vector<std::string_view> names;
  for (const Strategy& strategy : strategies()) {
    for (std::string_view name : {strategy.name, strategy.alias}) {
      if (name.empty()) continue;
      EXPECT_EQ(std::count(names.begin(), names.end(), name), 0);
      names.push_back(name);
      const auto found = find_strategy(name);
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(*found, &strategy);
    }
    EXPECT_FALSE(strategy.summary.empty());
  }
  EXPECT_FALSE(find_strategy("").has_value());
}

}  // namespace
}  // namespace butterfly
