#include "butterfly/plan/partition/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "butterfly/plan/cost/cost.h"
#include "butterfly/plan/partition/strategy.h"

namespace butterfly {
namespace {

ModelConfig named_or_die(const std::string& name) {
  Result<ModelConfig> config = named_config(name);
  EXPECT_TRUE(config.has_value()) << name;
  return config ? *config : ModelConfig{};
}

ModelConfig small_model(int layers) {
  ModelConfig config = named_or_die("butterfly-demo");
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
  for (const StageAssignment& stage : plan.stages()) counts.push_back(stage.last_layer - stage.first_layer);
  return counts;
}

/// What every plan promises, whatever made it.
void expect_whole(const Plan& plan, int layers, int nodes) {
  ASSERT_FALSE(plan.shares.empty());
  int next = 0;
  for (std::size_t i = 0; i < plan.shares.size(); ++i) {
    EXPECT_EQ(plan.shares[i].work.first_layer, next);
    EXPECT_GT(plan.shares[i].work.last_layer, next);
    next = plan.shares[i].work.last_layer;
    EXPECT_EQ(plan.shares[i].work.embedding, i == 0);
    EXPECT_EQ(plan.shares[i].work.head, i + 1 == plan.shares.size());
  }
  EXPECT_EQ(next, layers);
  std::vector<int> all = plan.nodes();
  all.insert(all.end(), plan.standby_nodes.begin(), plan.standby_nodes.end());
  std::sort(all.begin(), all.end());
  ASSERT_EQ(static_cast<int>(all.size()), nodes);
  for (int i = 0; i < nodes; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], i);
}

/// Those that give every node whole layers in the order of the nodes, as long as nothing speaks against it.
class EveryEvenStrategy : public testing::TestWithParam<std::string> {};

TEST_P(EveryEvenStrategy, NinetySixLayersOverFourEqualNodesAreTwentyFourEach) {
  const Plan plan = must_plan(named_or_die("gpt-3-175b"), equal_nodes(4), {.strategy = GetParam()});
  EXPECT_EQ(layer_counts(plan), (std::vector<int>{24, 24, 24, 24}));
  expect_whole(plan, 96, 4);
}

TEST_P(EveryEvenStrategy, EveryLayerHasOneStageForAnyNumbersOfLayersAndNodes) {
  for (int layers : {1, 2, 5, 22}) {
    for (int nodes : {1, 2, 3, 4, 7, 30}) {
      const Plan plan = must_plan(small_model(layers), equal_nodes(nodes), {.strategy = GetParam()});
      expect_whole(plan, layers, nodes);
      const std::vector<int> counts = layer_counts(plan);
      EXPECT_LE(*std::max_element(counts.begin(), counts.end()), (layers + nodes - 1) / nodes);
    }
  }
}

TEST_P(EveryEvenStrategy, MoreNodesThanLayersLeaveTheLastOnesStandingBy) {
  const Plan plan = must_plan(small_model(3), equal_nodes(5), {.strategy = GetParam()});
  EXPECT_EQ(layer_counts(plan), (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(plan.nodes(), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(plan.standby_nodes, (std::vector<int>{3, 4}));
}

TEST_P(EveryEvenStrategy, MissingMemoryNamesTheNodeAndTheBytes) {
  std::vector<NodeDescriptor> nodes = equal_nodes(2);
  const Plan plan = must_plan(small_model(4), nodes, {.strategy = GetParam()});
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i].memory_bytes = plan.shares[i].prediction.memory_bytes();
  EXPECT_TRUE(make_plan(small_model(4), nodes, {.strategy = GetParam()}).has_value());
  nodes[1].memory_bytes -= 1;
  const Result<Plan> refused = make_plan(small_model(4), nodes, {.strategy = GetParam()});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
  EXPECT_NE(refused.error().message.find("n1 has "), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find(": 1 bytes (1 B) are missing"), std::string::npos) << refused.error().message;
}

INSTANTIATE_TEST_SUITE_P(Names, EveryEvenStrategy, testing::Values("uniform", "sequential", "balanced"));

TEST(Plan, UnknownStrategyIsRefusedListingTheKnown) {
  const Result<Plan> plan = make_plan(small_model(4), equal_nodes(2), {.strategy = "random"});
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(plan.error().message,
            "unknown split strategy 'random', known are uniform (also sequential), balanced, greedy, topology, tensor, "
            "hybrid, custom, auto");
}

TEST(Plan, ImpossibleRequestsAreErrors) {
  EXPECT_FALSE(make_plan(small_model(4), PlanCluster{}).has_value());
  const auto refused = [](const PlanOptions& options) {
    const Result<Plan> plan = make_plan(small_model(4), equal_nodes(2), options);
    return !plan && plan.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({.context = -1}));
  EXPECT_TRUE(refused({.context = small_model(4).context + 1}));
  EXPECT_TRUE(refused({.sequences = 0}));
  EXPECT_TRUE(refused({.context = 64, .prompt = 65}));
  EXPECT_TRUE(refused({.prompt = -1}));
  EXPECT_TRUE(refused({.chunk = 0}));
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
  // Last, as it is the fastest with the head too.
  EXPECT_EQ(plan.shares.back().node, 1);
  EXPECT_EQ(layer_counts(plan), (std::vector<int>{20, 20, 40}));
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
  const StepShape step = decode_shape({.context = 64, .sequences = 2});
  const NodeRates rates = node_rates(nodes[0], cost.weight_type);
  const double block = block_s(cost, step, rates);
  EXPECT_DOUBLE_EQ(plan.shares[0].prediction.decode_s, 2 * block + embedding_s(step, rates));
  EXPECT_DOUBLE_EQ(plan.shares[1].prediction.decode_s, 3 * block + head_s(cost, step, rates));
  EXPECT_DOUBLE_EQ(plan.predicted_latency_s(), plan.shares[0].prediction.decode_s + plan.shares[1].prediction.decode_s);
  EXPECT_EQ(plan.predicted_slowest_s(), plan.shares[1].prediction.decode_s);
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
  EXPECT_EQ(plan.nodes(), (std::vector<int>{1, 2}));
  EXPECT_EQ(plan.standby_nodes, (std::vector<int>{0}));
  EXPECT_TRUE(plan.shares[0].work.embedding);
}

TEST(Plan, SmallNodeTakesOnlyWhatItHolds) {
  std::vector<NodeDescriptor> nodes = equal_nodes(2);
  const Plan even = must_plan(small_model(8), nodes, {.strategy = "balanced"});
  ASSERT_EQ(layer_counts(even)[0], 4);
  nodes[0].memory_bytes = even.shares[0].prediction.memory_bytes() - 1;
  // The larger node goes first: with the head it would be slower.
  const Plan plan = must_plan(small_model(8), nodes, {.strategy = "balanced"});
  EXPECT_EQ(plan.nodes(), (std::vector<int>{1, 0}));
  EXPECT_EQ(layer_counts(plan), (std::vector<int>{5, 3}));
}

TEST(Plan, Gpt3OverFourEqualNodesIsOptimalAndOnePercentAboveTheMean) {
  const std::vector<NodeDescriptor> nodes = equal_nodes(4);
  const Plan plan = must_plan(named_or_die("gpt-3-175b"), nodes, {.strategy = "balanced"});
  EXPECT_EQ(layer_counts(plan), (std::vector<int>{24, 24, 24, 24}));
  EXPECT_EQ(plan.gap(), 0.0);
  // The head makes the last stage the slowest, and is less than a layer: nobody can take anything off it.
  EXPECT_EQ(plan.predicted_slowest_s(), plan.shares[3].prediction.decode_s);
  EXPECT_GT(plan.prediction.load_balance_factor, 0.97);
  EXPECT_LT(plan.prediction.load_balance_factor, 0.995);
  EXPECT_DOUBLE_EQ(plan.prediction.load_balance_factor,
                   plan.shares[1].prediction.decode_s / plan.predicted_slowest_s());
}

TEST(Plan, RefusalsSayWhatWouldHelp) {
  ModelConfig config = named_or_die("llama-1.1b");
  std::vector<NodeDescriptor> nodes = equal_nodes(2);
  nodes[0].memory_bytes = nodes[1].memory_bytes = std::uint64_t{2} << 30;
  const Result<Plan> refused =
      make_plan(config, nodes, {.strategy = "balanced", .context = config.context, .sequences = 40});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
  for (const char* part :
       {"are missing; ", " more memory there", "weights of a smaller type", "or more nodes would help"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << part << ": " << refused.error().message;
  }
  config.weight_type = DType::kQ4_0;
  const Result<Plan> shorter =
      make_plan(config, nodes, {.strategy = "balanced", .context = config.context, .sequences = 120});
  ASSERT_FALSE(shorter.has_value());
  const std::string& message = shorter.error().message;
  const std::size_t at = message.find("a context of ");
  ASSERT_NE(at, std::string::npos) << message;
  const int context = std::stoi(message.substr(at + std::string("a context of ").size()));
  EXPECT_TRUE(make_plan(config, nodes, {.strategy = "balanced", .context = context, .sequences = 120}).has_value());
  EXPECT_EQ(message.find("smaller type"), std::string::npos);
}

TEST(Plan, AContextThatDoesNotFitIsHalvedUnlessItWasAskedFor) {
  const ModelConfig config = named_or_die("llama-3.2-1b");
  std::vector<NodeDescriptor> nodes = equal_nodes(1);
  const Plan whole = must_plan(config, nodes, {.strategy = "balanced"});
  EXPECT_EQ(whole.context, config.context);
  const StagePrediction& held = whole.shares.front().prediction;
  nodes[0].memory_bytes = held.memory_bytes() - held.kv_bytes / 2;
  EXPECT_EQ(must_plan(config, nodes, {.strategy = "balanced"}).context, config.context / 2);
  const auto refused = make_plan(config, nodes, {.strategy = "balanced", .context = config.context});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
  nodes[0].memory_bytes = held.weight_bytes / 2;
  EXPECT_FALSE(make_plan(config, nodes, {.strategy = "balanced"}).has_value());
}

TEST(Plan, EveryStrategyGivesEverySliceOfEveryLayerToOneNodeOnce) {
  for (const Strategy& strategy : strategies()) {
    if (strategy.needs_custom) continue;
    for (const PlanGoal goal : {PlanGoal::kLatency, PlanGoal::kThroughput, PlanGoal::kMemory}) {
      for (int nodes : {1, 3, 9, 20}) {
        const Plan plan = must_plan(small_model(6), equal_nodes(nodes),
                                    {.strategy = std::string(strategy.name), .sequences = 4, .goal = goal});
        std::vector<int> owners(6 * kReductionSlices, 0);
        for (const StageAssignment& stage : plan.stages()) {
          EXPECT_EQ(stage.embedding, stage.first_layer == 0);
          EXPECT_EQ(stage.head, stage.last_layer == 6);
          for (int layer = stage.first_layer; layer < stage.last_layer; ++layer) {
            for (int slice = stage.slices.first; slice < stage.slices.last; ++slice) {
              ++owners[static_cast<std::size_t>(layer * kReductionSlices + slice)];
            }
          }
        }
        EXPECT_EQ(owners, std::vector<int>(6 * kReductionSlices, 1)) << strategy.name << " over " << nodes;
        EXPECT_GT(plan.prediction.tokens_per_s, 0.0);
      }
    }
  }
}

TEST(Plan, ComparisonHasEveryStrategyAndCustomOnlyWhereOneIsGiven) {
  const PlanCluster cluster = cluster_of(equal_nodes(2));
  PlanOptions options;
  const auto compared = compare_plans(small_model(4), cluster, options);
  ASSERT_TRUE(compared.has_value());
  EXPECT_EQ(compared->size(), strategies().size() - 1);
  options.custom = *parse_custom_plan("n1 0-2\nn0 3\n");
  const auto with_custom = compare_plans(small_model(4), cluster, options);
  ASSERT_TRUE(with_custom.has_value());
  ASSERT_EQ(with_custom->size(), strategies().size());
  for (const ComparedPlan& one : *with_custom) {
    if (one.strategy != "custom") continue;
    ASSERT_TRUE(one.plan.has_value());
    EXPECT_EQ(one.plan->nodes(), (std::vector<int>{1, 0}));
  }
  EXPECT_FALSE(make_plan(small_model(4), cluster, {.strategy = "custom"}).has_value());
}

TEST(Plan, GoalsHaveNames) {
  for (const PlanGoal goal : {PlanGoal::kLatency, PlanGoal::kThroughput, PlanGoal::kMemory}) {
    EXPECT_EQ(parse_plan_goal(to_string(goal)).value(), goal);
  }
  EXPECT_EQ(parse_plan_goal("speed").error().message, "unknown goal 'speed', known are latency, throughput, memory");
}

TEST(Plan, TiedHeadIsStoredOnceWhereItMeetsTheEmbedding) {
  const ModelConfig config = small_model(5);
  ASSERT_TRUE(config.tied_head);
  const Result<ModelCost> cost = model_cost(config, DType::kF16);
  ASSERT_TRUE(cost.has_value());
  const std::uint64_t one = must_plan(config, equal_nodes(1), {}).shares[0].prediction.weight_bytes;
  const Plan two = must_plan(config, equal_nodes(2), {});
  EXPECT_EQ(two.shares[0].prediction.weight_bytes + two.shares[1].prediction.weight_bytes, one + cost->tied_bytes);
  EXPECT_EQ(one, 4 * parameter_count(config));
}

TEST(Plan, CacheGrowsWithContextAndSequences) {
  const std::uint64_t one = must_plan(small_model(4), equal_nodes(1), {.context = 100}).shares[0].prediction.kv_bytes;
  EXPECT_EQ(one, 100u * 4 * 2 * 4 * 32 * 2);  // positions, layers, keys and values, heads, elements, bytes
  EXPECT_EQ(must_plan(small_model(4), equal_nodes(1), {.context = 200, .sequences = 3}).shares[0].prediction.kv_bytes,
            6 * one);
}

// Fails when a server's texts are planned as one, or each of them gets memory for a whole context.
TEST(Plan, TextsThatShareTheirMemoryCountAsWorkAlone) {
  const ModelConfig config = small_model(8);
  const std::vector<NodeDescriptor> nodes = equal_nodes(2);
  const auto planned = [&](int sequences, int side_by_side) {
    return must_plan(
        config, nodes,
        {.strategy = "balanced", .sequences = sequences, .side_by_side = side_by_side, .goal = PlanGoal::kThroughput});
  };
  const Plan one = planned(1, 0), served = planned(1, 16), whole = planned(16, 0);
  EXPECT_EQ(served.shares[0].prediction.kv_bytes, one.shares[0].prediction.kv_bytes);
  EXPECT_EQ(16 * one.shares[0].prediction.kv_bytes, whole.shares[0].prediction.kv_bytes);
  EXPECT_EQ(served.prediction.tokens_per_s, whole.prediction.tokens_per_s);
  EXPECT_GT(served.prediction.tokens_per_s, 2 * one.prediction.tokens_per_s);
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

}  // namespace
}  // namespace butterfly
