#include "butterfly/plan/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "butterfly/plan/cost.h"
#include "butterfly/plan/strategy.h"

namespace butterfly {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

ModelConfig must_named(const std::string& name) {
  Result<ModelConfig> config = named_config(name);
  EXPECT_TRUE(config.has_value()) << name;
  return config ? *config : ModelConfig{};
}

ModelConfig small_model(int layers) {
  ModelConfig config = must_named("butterfly-demo");
  config.layers = layers;
  return config;
}

std::vector<NodeDescriptor> equal_nodes(int count) {
  std::vector<NodeDescriptor> nodes;
  for (int i = 0; i < count; ++i) {
    nodes.push_back({.name = fmt::format("n{}", i), .memory_read_gb_per_s = 10.0, .fp32_gflops = 100.0});
  }
  return nodes;
}

Plan must_plan(const ModelConfig& config, const std::vector<NodeDescriptor>& nodes, const PlanOptions& options) {
  const Result<Plan> plan = make_plan(config, nodes, options);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan ? *plan : Plan{};
}

std::vector<int> layer_counts(const Plan& plan) {
  std::vector<int> counts;
  for (const StageAssignment& stage : plan.stages) counts.push_back(stage.last_layer - stage.first_layer);
  return counts;
}

/// What every plan promises, whatever made it.
void expect_whole(const Plan& plan, int layers, int nodes) {
  ASSERT_FALSE(plan.stages.empty());
  ASSERT_EQ(plan.stages.size(), plan.node_of_stage.size());
  ASSERT_EQ(plan.stages.size(), plan.predictions.size());
  int next = 0;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    EXPECT_EQ(plan.stages[i].first_layer, next);
    EXPECT_GT(plan.stages[i].last_layer, next);
    next = plan.stages[i].last_layer;
    EXPECT_EQ(plan.stages[i].embedding, i == 0);
    EXPECT_EQ(plan.stages[i].head, i + 1 == plan.stages.size());
  }
  EXPECT_EQ(next, layers);
  std::vector<int> all = plan.node_of_stage;
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  all.insert(all.end(), plan.standby_nodes.begin(), plan.standby_nodes.end());
  std::sort(all.begin(), all.end());
  ASSERT_EQ(static_cast<int>(all.size()), nodes);
  for (int i = 0; i < nodes; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], i);
}

class EveryStrategy : public testing::TestWithParam<std::string> {};

TEST_P(EveryStrategy, NinetySixLayersOverFourEqualNodesAreTwentyFourEach) {
  const Plan plan = must_plan(must_named("gpt-3-175b"), equal_nodes(4), {.strategy = GetParam()});
  EXPECT_EQ(layer_counts(plan), (std::vector<int>{24, 24, 24, 24}));
  expect_whole(plan, 96, 4);
}

TEST_P(EveryStrategy, EveryLayerHasOneStageForAnyNumbersOfLayersAndNodes) {
  for (int layers : {1, 2, 5, 22}) {
    for (int nodes : {1, 2, 3, 4, 7, 30}) {
      const Plan plan = must_plan(small_model(layers), equal_nodes(nodes), {.strategy = GetParam()});
      expect_whole(plan, layers, nodes);
      const std::vector<int> counts = layer_counts(plan);
      EXPECT_LE(*std::max_element(counts.begin(), counts.end()), (layers + nodes - 1) / nodes);
    }
  }
}

TEST_P(EveryStrategy, MoreNodesThanLayersLeaveTheLastOnesStandingBy) {
  const Plan plan = must_plan(small_model(3), equal_nodes(5), {.strategy = GetParam()});
  EXPECT_EQ(layer_counts(plan), (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(plan.node_of_stage, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(plan.standby_nodes, (std::vector<int>{3, 4}));
}

TEST_P(EveryStrategy, MissingMemoryNamesTheNodeAndTheBytes) {
  std::vector<NodeDescriptor> nodes = equal_nodes(2);
  const Plan plan = must_plan(small_model(4), nodes, {.strategy = GetParam()});
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i].memory_bytes = plan.predictions[i].memory_bytes();
  EXPECT_TRUE(make_plan(small_model(4), nodes, {.strategy = GetParam()}).has_value());
  nodes[1].memory_bytes -= 1;
  const Result<Plan> refused = make_plan(small_model(4), nodes, {.strategy = GetParam()});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
  EXPECT_NE(refused.error().message.find("n1 has "), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find(": 1 bytes (1 B) are missing"), std::string::npos) << refused.error().message;
}

INSTANTIATE_TEST_SUITE_P(Names, EveryStrategy, testing::Values("uniform", "sequential", "balanced"));

TEST(Plan, UnknownStrategyIsRefusedListingTheKnown) {
  const Result<Plan> plan = make_plan(small_model(4), equal_nodes(2), {.strategy = "random"});
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(plan.error().message, "unknown split strategy 'random', known are uniform (also sequential), balanced");
}

TEST(Plan, ImpossibleRequestsAreErrors) {
  EXPECT_FALSE(make_plan(small_model(4), {}).has_value());
  const auto refused = [](const PlanOptions& options) {
    const Result<Plan> plan = make_plan(small_model(4), equal_nodes(2), options);
    return !plan && plan.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({.context = -1}));
  EXPECT_TRUE(refused({.context = small_model(4).context + 1}));
  EXPECT_TRUE(refused({.sequences = 0}));
  ModelConfig deep = small_model(4);
  deep.context = 1 << 20;
  const Result<Plan> huge = make_plan(deep, equal_nodes(2), {.sequences = std::numeric_limits<int>::max()});
  ASSERT_FALSE(huge.has_value());
  EXPECT_EQ(huge.error().code, ErrorCode::kInvalidArgument);
}

TEST(Plan, BalancingNodesNeverMeasuredIsRefusedAndUniformSaysUnknown) {
  std::vector<NodeDescriptor> nodes = equal_nodes(2);
  nodes[1].memory_read_gb_per_s = 0.0;
  EXPECT_FALSE(make_plan(small_model(4), nodes, {.strategy = "balanced"}).has_value());
  const Plan plan = must_plan(small_model(4), nodes, {});
  EXPECT_NE(describe(plan, nodes).find("unknown"), std::string::npos);
}

TEST(Plan, TwiceAsFastNodeGetsTwiceTheLayers) {
  std::vector<NodeDescriptor> nodes = equal_nodes(3);
  nodes[1].memory_read_gb_per_s = 20.0;
  nodes[1].fp32_gflops = 200.0;
  ModelConfig config = small_model(80);
  config.vocab = 16;  // a head that weighs nothing
  const Plan plan = must_plan(config, nodes, {.strategy = "balanced"});
  EXPECT_EQ(layer_counts(plan), (std::vector<int>{20, 40, 20}));
}

TEST(Plan, LayersThatDoNotDivideAreSpreadNotPiledUp) {
  for (int layers = 5; layers <= 40; ++layers) {
    for (int nodes = 2; nodes <= 5; ++nodes) {
      ModelConfig config = small_model(layers);
      config.vocab = 16;
      const std::vector<int> counts = layer_counts(must_plan(config, equal_nodes(nodes), {.strategy = "balanced"}));
      EXPECT_LE(*std::max_element(counts.begin(), counts.end()) - *std::min_element(counts.begin(), counts.end()), 1)
          << layers << " layers over " << nodes;
    }
  }
}

TEST(Plan, PredictionsAreTheSumsOfTheirParts) {
  const ModelConfig config = small_model(5);
  const std::vector<NodeDescriptor> nodes = equal_nodes(2);
  const Plan plan = must_plan(config, nodes, {.context = 64, .sequences = 2});
  const ModelCost cost = *model_cost(config, DType::kF16);
  const Load load{.context = 64, .sequences = 2};
  const double block = block_decode_s(cost, load, nodes[0]);
  EXPECT_DOUBLE_EQ(plan.predictions[0].decode_s, 2 * block + embedding_decode_s(cost, load, nodes[0]));
  EXPECT_DOUBLE_EQ(plan.predictions[1].decode_s, 3 * block + head_decode_s(cost, load, nodes[1]));
  EXPECT_DOUBLE_EQ(plan.predicted_latency_s(), plan.predictions[0].decode_s + plan.predictions[1].decode_s);
  EXPECT_EQ(plan.predicted_slowest_s(), plan.predictions[1].decode_s);
}

TEST(Plan, HeadCountsAsWorkOfTheLastStage) {
  ModelConfig config = small_model(12);
  config.vocab = 1 << 15;  // as much as ten blocks
  const Plan plan = must_plan(config, equal_nodes(2), {.strategy = "balanced"});
  EXPECT_GT(layer_counts(plan)[0], layer_counts(plan)[1]);
  EXPECT_EQ(layer_counts(must_plan(config, equal_nodes(2), {})), (std::vector<int>{6, 6}));
}

TEST(Plan, NodeTooSlowToHelpStandsBy) {
  std::vector<NodeDescriptor> nodes = equal_nodes(3);
  nodes[0].memory_read_gb_per_s = 0.001;
  const Plan plan = must_plan(small_model(4), nodes, {.strategy = "balanced"});
  EXPECT_EQ(plan.node_of_stage, (std::vector<int>{1, 2}));
  EXPECT_EQ(plan.standby_nodes, (std::vector<int>{0}));
  EXPECT_TRUE(plan.stages[0].embedding);
}

TEST(Plan, SmallNodeTakesOnlyWhatItHolds) {
  std::vector<NodeDescriptor> nodes = equal_nodes(2);
  const Plan even = must_plan(small_model(8), nodes, {.strategy = "balanced"});
  ASSERT_EQ(layer_counts(even)[0], 4);
  nodes[0].memory_bytes = even.predictions[0].memory_bytes() - 1;
  const Plan plan = must_plan(small_model(8), nodes, {.strategy = "balanced"});
  EXPECT_EQ(layer_counts(plan), (std::vector<int>{3, 5}));
}

TEST(Plan, TiedHeadIsStoredOnceWhereItMeetsTheEmbedding) {
  const ModelConfig config = small_model(5);
  ASSERT_TRUE(config.tied_head);
  const Result<ModelCost> cost = model_cost(config, DType::kF16);
  ASSERT_TRUE(cost.has_value());
  const std::uint64_t one = must_plan(config, equal_nodes(1), {}).predictions[0].weight_bytes;
  const Plan two = must_plan(config, equal_nodes(2), {});
  EXPECT_EQ(two.predictions[0].weight_bytes + two.predictions[1].weight_bytes, one + cost->tied_bytes);
  EXPECT_EQ(one, 4 * parameter_count(config));
}

TEST(Plan, CacheGrowsWithContextAndSequences) {
  const std::uint64_t one = must_plan(small_model(4), equal_nodes(1), {.context = 100}).predictions[0].kv_bytes;
  EXPECT_EQ(one, 100u * 4 * 2 * 4 * 32 * 2);  // positions, layers, keys and values, heads, elements, bytes
  EXPECT_EQ(must_plan(small_model(4), equal_nodes(1), {.context = 200, .sequences = 3}).predictions[0].kv_bytes,
            6 * one);
}

TEST(Plan, DescriptionNamesStagesStandbyNodesAndTimes) {
  const std::vector<NodeDescriptor> nodes = equal_nodes(3);
  const Plan plan = must_plan(small_model(2), nodes, {.strategy = "balanced"});
  const std::string text = describe(plan, nodes);
  for (const char* part :
       {"n0", "n1", "embedding, 0-0", "1-1, head", "n2 stands by", "strategy balanced", "per token"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

/// Every way to give `layers` to `nodes` in order, with zeros.
void for_each_split(int nodes, int layers, std::vector<int>& counts,
                    const std::function<void(const std::vector<int>&)>& visit) {
  if (nodes == 1) {
    counts.push_back(layers);
    visit(counts);
    counts.pop_back();
    return;
  }
  for (int count = 0; count <= layers; ++count) {
    counts.push_back(count);
    for_each_split(nodes - 1, layers - count, counts, visit);
    counts.pop_back();
  }
}

TEST(Plan, BalancedReachesTheMinimumThatTryingEverySplitFinds) {
  std::mt19937 random(7);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  int feasible = 0, infeasible = 0, uneven = 0;
  for (int instance = 0; instance < 300; ++instance) {
    const int layers = 1 + static_cast<int>(random() % 9);
    const int count = 1 + static_cast<int>(random() % 4);
    ModelConfig config = small_model(layers);
    config.vocab = 1 << (4 + random() % 12);
    config.tied_head = random() % 2 == 0;
    const PlanOptions options{.strategy = "balanced", .context = 512, .sequences = 1 + static_cast<int>(random() % 20)};
    const ModelCost cost = *model_cost(config, options.kv_type);
    std::vector<NodeDescriptor> nodes = equal_nodes(count);
    const PlanningProblem whole{.layers = layers,
                                .cost = cost,
                                .load = {.context = 512, .sequences = static_cast<std::uint64_t>(options.sequences)},
                                .nodes = nodes};
    const auto need = static_cast<double>(whole.weight_bytes(0, layers) + whole.kv_bytes(0, layers));
    for (NodeDescriptor& node : nodes) {
      node.memory_read_gb_per_s = uniform(1.0, 20.0);
      node.fp32_gflops = uniform(5.0, 100.0);
      if (random() % 2 == 0) node.memory_bytes = static_cast<std::uint64_t>(uniform(0.1, 0.8) * need);
    }
    double minimum = kInfinity;
    std::uint64_t least_missing = std::numeric_limits<std::uint64_t>::max();
    std::vector<int> scratch;
    for_each_split(count, layers, scratch, [&](const std::vector<int>& counts) {
      double slowest = 0.0;
      std::uint64_t missing = 0;
      for (int node = 0, first = 0; node < count; ++node) {
        const int last = first + counts[static_cast<std::size_t>(node)];
        if (last > first) {
          slowest = std::max(slowest, whole.decode_s(node, first, last));
          missing += whole.missing_bytes(node, first, last);
        }
        first = last;
      }
      least_missing = std::min(least_missing, missing);
      if (missing == 0) minimum = std::min(minimum, slowest);
    });
    const Result<Plan> plan = make_plan(config, nodes, options);
    ASSERT_EQ(plan.has_value(), least_missing == 0) << "instance " << instance;
    if (!plan) {
      EXPECT_EQ(plan.error().code, ErrorCode::kNoMemory);
      ++infeasible;
      continue;
    }
    ++feasible;
    expect_whole(*plan, layers, count);
    ASSERT_EQ(plan->predicted_slowest_s(), minimum) << "instance " << instance;
    const std::vector<int> counts = layer_counts(*plan);
    if (*std::max_element(counts.begin(), counts.end()) > *std::min_element(counts.begin(), counts.end()) + 1) ++uneven;
  }
  // The instances must be worth trying.
  EXPECT_GT(feasible, 100);
  EXPECT_GT(infeasible, 10);
  EXPECT_GT(uneven, 50);
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
