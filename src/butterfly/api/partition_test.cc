#include "butterfly/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace butterfly {
namespace {

ModelInfo must_known(const std::string& name, const std::string& type = "f16") {
  const Result<ModelInfo> model = ModelInfo::known(name, type);
  EXPECT_TRUE(model.has_value());
  return *model;
}

Node node(const std::string& id, double speed, double memory_gb = 0.0) {
  return {.id = id,
          .capability = {.compute_gflops = 10.0 * speed, .memory_gb = memory_gb, .memory_bandwidth_gb_per_s = speed}};
}

Partition must_partition(const PartitionConfig& config, const ModelInfo& model, const std::vector<Node>& nodes) {
  const Result<Partition> partition = PartitionManager(config).partition(model, nodes);
  EXPECT_TRUE(partition.has_value()) << (partition ? "" : partition.error().message);
  return partition ? *partition : Partition{};
}

TEST(ModelInfo, KnownShapeTellsItsNumbers) {
  const ModelInfo model = must_known("llama-1.1b", "q4_0");
  EXPECT_EQ(model.name(), "llama-1.1b");
  EXPECT_EQ(model.layers(), 22);
  EXPECT_EQ(model.vocab(), 32000);
  EXPECT_EQ(model.context(), 2048);
  EXPECT_EQ(model.weight_type(), "q4_0");
  EXPECT_NEAR(static_cast<double>(model.parameters()), 1.1e9, 0.01e9);
}

TEST(ModelInfo, UnknownShapesTypesAndFilesAreErrors) {
  EXPECT_EQ(ModelInfo::known("llama-9z").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ModelInfo::known("llama-1.1b", "q9").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ModelInfo::known("llama-1.1b", "i32").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ModelInfo::open("/no/such/model.gguf").error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(ModelInfo::known_names().empty());
}

TEST(PartitionManager, FourEqualNodesGetTwentyFourOfNinetySixLayers) {
  const std::vector<Node> nodes{node("a", 10), node("b", 10), node("c", 10), node("d", 10)};
  for (const char* strategy : {"uniform", "balanced"}) {
    const Partition partition = must_partition({.strategy = strategy}, must_known("gpt-3-175b"), nodes);
    ASSERT_EQ(partition.stages.size(), 4u) << strategy;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(partition.stages[i].node_id, nodes[i].id);
      EXPECT_EQ(partition.stages[i].first_layer, static_cast<int>(i) * 24);
      EXPECT_EQ(partition.stages[i].last_layer, static_cast<int>(i) * 24 + 24);
    }
    EXPECT_TRUE(partition.stages.front().embedding);
    EXPECT_TRUE(partition.stages.back().head);
    EXPECT_GT(partition.quality.load_balance_factor, 0.97);
    EXPECT_LE(partition.quality.load_balance_factor, 1.0);
  }
}

TEST(PartitionManager, QualityFollowsFromTheStages) {
  const std::vector<Node> nodes{node("a", 10, 4.0), node("b", 20)};
  const Partition partition = must_partition({.strategy = "uniform"}, must_known("llama-1.1b"), nodes);
  ASSERT_EQ(partition.stages.size(), 2u);
  const PartitionStage& a = partition.stages[0];
  const PartitionStage& b = partition.stages[1];
  EXPECT_DOUBLE_EQ(partition.quality.latency_s, a.decode_s + b.decode_s);
  EXPECT_DOUBLE_EQ(partition.quality.slowest_stage_s, std::max(a.decode_s, b.decode_s));
  EXPECT_DOUBLE_EQ(partition.quality.load_balance_factor,
                   std::min(a.decode_s, b.decode_s) / std::max(a.decode_s, b.decode_s));
  ASSERT_EQ(partition.quality.stage_memory_bytes.size(), 2u);
  EXPECT_EQ(partition.quality.stage_memory_bytes[1], b.weight_bytes + b.cache_bytes + b.activation_bytes);
  EXPECT_DOUBLE_EQ(partition.quality.memory_use,
                   static_cast<double>(a.weight_bytes + a.cache_bytes + a.activation_bytes) / 4e9);
  EXPECT_NE(partition.table.find("embedding, 0-10"), std::string::npos) << partition.table;
}

TEST(PartitionManager, BalancedBeatsUniformOnUnequalNodesAndCompareSaysSo) {
  const std::vector<Node> nodes{node("slow", 5), node("fast", 40)};
  const Result<std::vector<Partition>> partitions = PartitionManager().compare(must_known("llama-1.1b"), nodes);
  ASSERT_TRUE(partitions.has_value());
  ASSERT_EQ(partitions->size(), PartitionManager::strategies().size());
  const auto by = [&](const char* strategy) {
    return std::find_if(partitions->begin(), partitions->end(),
                        [&](const Partition& one) { return one.strategy == strategy; });
  };
  EXPECT_LT(by("balanced") - by("uniform"), 0);
  EXPECT_LT(by("balanced")->quality.slowest_stage_s, by("uniform")->quality.slowest_stage_s);
  EXPECT_GT(by("balanced")->quality.load_balance_factor, by("uniform")->quality.load_balance_factor);
}

TEST(PartitionManager, TensorGroupsShowTheirSlices) {
  const std::vector<Node> nodes{node("slow", 10), node("fast", 30)};
  const Partition partition = must_partition({.strategy = "tensor"}, must_known("llama-1.1b"), nodes);
  ASSERT_EQ(partition.stages.size(), 2u);
  EXPECT_EQ(partition.stages[0].first_slice, 0);
  EXPECT_EQ(partition.stages[0].last_slice, 8);
  EXPECT_EQ(partition.stages[1].first_slice, 8);
  EXPECT_EQ(partition.stages[1].last_slice, 32);
  EXPECT_EQ(partition.stages[1].first_layer, 0);
}

TEST(PartitionManager, CustomSharesAreFollowedAndMistakesInThemNamed) {
  const std::vector<Node> nodes{node("a", 10), node("b", 10)};
  const ModelInfo model = must_known("llama-1.1b");
  const Partition partition = must_partition(
      {.strategy = "custom",
       .custom = {{.node = "b", .first_layer = 0, .last_layer = 4},
                  {.node = "a", .first_layer = 4, .last_layer = 22, .first_slice = 0, .last_slice = 12},
                  {.node = "b", .first_layer = 4, .last_layer = 22, .first_slice = 12, .last_slice = 32}}},
      model, nodes);
  ASSERT_EQ(partition.stages.size(), 3u);
  EXPECT_EQ(partition.stages[0].node_id, "b");
  EXPECT_EQ(partition.stages[0].last_layer, 4);
  EXPECT_EQ(partition.stages[1].last_slice, 12);
  const auto refused =
      PartitionManager({.strategy = "custom", .custom = {{.node = "c", .last_layer = 22}}}).partition(model, nodes);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("'c'"), std::string::npos) << refused.error().message;
}

TEST(PartitionManager, LayerCountsBecomeSharesInTheOrderOfTheNodes) {
  const std::vector<Node> nodes{node("a", 10), node("b", 10), node("c", 10)};
  const std::vector<int> counts{20, 0, 2};
  const Partition partition =
      must_partition({.strategy = "custom", .custom = by_layer_count(nodes, counts)}, must_known("llama-1.1b"), nodes);
  ASSERT_EQ(partition.stages.size(), 2u);
  EXPECT_EQ(partition.stages[0].last_layer, 20);
  EXPECT_EQ(partition.stages[1].node_id, "c");
  EXPECT_EQ(partition.standby, (std::vector<std::string>{"b"}));
  const std::vector<int> too_few{20, 1};
  EXPECT_FALSE(PartitionManager({.strategy = "custom", .custom = by_layer_count(nodes, too_few)})
                   .partition(must_known("llama-1.1b"), nodes));
}

TEST(PartitionManager, MeasuredLinksDecideTheOrderOfATopologyPartition) {
  // Each has room for a third of the model; a and b hardly reach each other.
  const std::vector<Node> nodes{node("a", 10, 1.0), node("b", 10, 1.0), node("c", 10, 1.0)};
  std::vector<NodeLink> links;
  const auto both_ways = [&](const char* one, const char* other, double gb_per_s) {
    links.push_back({.from = one, .to = other, .latency_us = 10.0, .gb_per_s = gb_per_s});
    links.push_back({.from = other, .to = one, .latency_us = 10.0, .gb_per_s = gb_per_s});
  };
  both_ways("a", "b", 0.00001);
  both_ways("a", "c", 10.0);
  both_ways("b", "c", 10.0);
  const Partition partition =
      must_partition({.strategy = "topology", .links = links, .goal = "throughput"}, must_known("llama-1.1b"), nodes);
  ASSERT_EQ(partition.stages.size(), 3u);
  EXPECT_EQ(partition.stages[1].node_id, "c");
  const auto refused = PartitionManager({.strategy = "topology", .links = {{.from = "a", .to = "x"}}})
                           .partition(must_known("llama-1.1b"), nodes);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("'x'"), std::string::npos) << refused.error().message;
}

TEST(PartitionManager, NodesBeyondTheLayersStandBy) {
  std::vector<Node> nodes;
  for (int i = 0; i < 7; ++i) nodes.push_back(node(fmt::format("n{}", i), 10));
  const Partition partition = must_partition({.strategy = "uniform"}, must_known("butterfly-demo"), nodes);
  EXPECT_EQ(partition.stages.size(), 5u);
  EXPECT_EQ(partition.standby, (std::vector<std::string>{"n5", "n6"}));
}

TEST(PartitionManager, UnknownSpeedsSplitUniformlyWithoutAPrediction) {
  const Partition partition =
      must_partition({.strategy = "uniform"}, must_known("butterfly-demo"), {node("a", 0), node("b", 0)});
  EXPECT_EQ(partition.quality.load_balance_factor, 0.0);
  EXPECT_TRUE(std::isinf(partition.quality.slowest_stage_s));
  const auto compared = PartitionManager().compare(must_known("butterfly-demo"), std::vector{node("a", 0)});
  ASSERT_TRUE(compared.has_value());
  ASSERT_EQ(compared->size(), 2u);  // what balances needs speeds
  EXPECT_EQ(compared->at(0).strategy, "uniform");
  EXPECT_EQ(compared->at(1).strategy, "auto");
}

TEST(PartitionManager, ImpossibleRequestsAreErrors) {
  const ModelInfo model = must_known("llama-1.1b");
  const std::vector<Node> nodes{node("a", 10)};
  const auto code = [&](const PartitionConfig& config, const std::vector<Node>& over) {
    const Result<Partition> partition = PartitionManager(config).partition(model, over);
    EXPECT_FALSE(partition.has_value());
    return partition ? ErrorCode::kCancelled : partition.error().code;
  };
  EXPECT_EQ(code({}, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.strategy = "best"}, nodes), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.context = 1 << 20}, nodes), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.strategy = "custom"}, nodes), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.goal = "speed"}, nodes), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.cache_type = "i32"}, nodes), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({}, {node("a", 10, 0.5)}), ErrorCode::kNoMemory);
  EXPECT_EQ(PartitionManager().compare(model, std::vector{node("a", 10, 0.5)}).error().code, ErrorCode::kNoMemory);
}

}  // namespace
}  // namespace butterfly
