#include "butterfly/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "butterfly/api/convert.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/shard.h"
#include "butterfly/model/inference/kv_cache.h"
#include "butterfly/plan/description/cluster_model.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/plan/partition/strategy.h"

namespace butterfly {
namespace {

PartitionQuality judge(const Plan& plan) {
  PartitionQuality quality;
  quality.latency_s = plan.predicted_latency_s();
  quality.slowest_stage_s = plan.predicted_slowest_s();
  quality.load_balance_factor = plan.prediction.load_balance_factor;
  quality.memory_use = plan.prediction.memory_use;
  for (const PlannedShare& share : plan.shares) {
    quality.stage_memory_bytes.push_back(share.prediction.memory_bytes());
  }
  return quality;
}

Partition to_partition(const ModelConfig& config, const Plan& plan, const std::vector<NodeDescriptor>& nodes) {
  Partition partition;
  partition.strategy = plan.strategy;
  for (const PlannedShare& share : plan.shares) {
    const StageAssignment& stage = share.work;
    const IndexRange experts = shard_of(config, stage.slices).experts;
    partition.stages.push_back({.node_id = nodes[static_cast<std::size_t>(share.node)].name,
                                .first_layer = stage.first_layer,
                                .last_layer = stage.last_layer,
                                .embedding = stage.embedding,
                                .head = stage.head,
                                .first_slice = stage.slices.first,
                                .last_slice = stage.slices.last,
                                .first_expert = static_cast<int>(experts.begin),
                                .last_expert = static_cast<int>(experts.end),
                                .weight_bytes = share.prediction.weight_bytes,
                                .cache_bytes = share.prediction.kv_bytes,
                                .activation_bytes = share.prediction.activation_bytes,
                                .decode_s = share.prediction.decode_s});
  }
  for (int node : plan.standby_nodes) partition.standby.push_back(nodes[static_cast<std::size_t>(node)].name);
  partition.quality = judge(plan);
  partition.table = describe(plan, nodes);
  return partition;
}

Result<std::size_t> index_of(std::span<const Node> nodes, const std::string& id) {
  const auto found = std::ranges::find(nodes, id, &Node::id);
  if (found != nodes.end()) return static_cast<std::size_t>(found - nodes.begin());
  return make_error(ErrorCode::kInvalidArgument, "a link names '{}', none of the {} nodes has this id", id,
                    nodes.size());
}

/// Links that were measured, and for the others what the nodes say of their network.
Status set_links(std::span<const Node> nodes, std::span<const NodeLink> links, PlanCluster& cluster) {
  const auto bandwidth = [&](std::size_t i) { return nodes[i].capability.network_bandwidth_gb_per_s; };
  const bool known =
      std::ranges::any_of(nodes, [](const Node& one) { return one.capability.network_bandwidth_gb_per_s > 0.0; });
  if (links.empty() && !known) return {};
  const auto slower = [](double a, double b) {
    if (a == 0.0 || b == 0.0) return a + b;
    return std::min(a, b);
  };
  for (std::size_t from = 0; from < nodes.size(); ++from) {
    for (std::size_t to = 0; to < nodes.size(); ++to) {
      LinkDescriptor link = kAssumedLink;
      const double told = slower(bandwidth(from), bandwidth(to));
      if (told > 0.0) link.gb_per_s = told;
      cluster.links.push_back(from == to ? LinkDescriptor{} : link);
    }
  }
  for (const NodeLink& link : links) {
    BF_ASSIGN_OR_RETURN(const std::size_t from, index_of(nodes, link.from));
    BF_ASSIGN_OR_RETURN(const std::size_t to, index_of(nodes, link.to));
    cluster.links[from * nodes.size() + to] = {.latency_us = link.latency_us, .gb_per_s = link.gb_per_s};
  }
  return {};
}

Result<Partition> partition_by(const std::string& strategy, const PartitionConfig& config, const ModelInfo& model,
                               std::span<const Node> nodes) {
  const std::optional<DType> cache_type = parse_dtype(config.cache_type);
  if (!cache_type || !is_cache_type(*cache_type)) {
    return make_error(ErrorCode::kInvalidArgument, "a cache of type '{}', known are f32, f16 and q8_0",
                      config.cache_type);
  }
  std::vector<NodeDescriptor> descriptors;
  for (const Node& node : nodes) {
    BF_ASSIGN_OR_RETURN(NodeDescriptor descriptor, to_descriptor(node));
    descriptors.push_back(std::move(descriptor));
  }
  PlanCluster cluster = cluster_of(descriptors);
  BF_TRY(set_links(nodes, config.links, cluster));
  BF_ASSIGN_OR_RETURN(const PlanGoal goal, parse_plan_goal(config.goal));
  const PlanOptions options{.strategy = strategy,
                            .context = config.context,
                            .sequences = config.sequences,
                            .kv_type = *cache_type,
                            .goal = goal,
                            .custom = custom_plan(config.custom)};
  BF_ASSIGN_OR_RETURN(const Plan plan, make_plan(model.config(), cluster, options));
  return to_partition(model.config(), plan, descriptors);
}

}  // namespace

namespace {

std::optional<SliceRange> experts_of(const LayerShare& share) {
  if (share.first_expert == -1 && share.last_expert == -1) return std::nullopt;
  return SliceRange{.first = share.first_expert, .last = share.last_expert};
}

}  // namespace

std::optional<CustomPlan> custom_plan(std::span<const LayerShare> shares) {
  if (shares.empty()) return std::nullopt;
  CustomPlan plan;
  for (const LayerShare& share : shares) {
    plan.shares.push_back({.node = share.node,
                           .first_layer = share.first_layer,
                           .last_layer = share.last_layer,
                           .slices = {.first = share.first_slice, .last = share.last_slice},
                           .experts = experts_of(share)});
  }
  return plan;
}

std::vector<LayerShare> by_layer_count(std::span<const Node> nodes, std::span<const int> layers) {
  std::vector<LayerShare> shares;
  int next = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string node = i < nodes.size() ? nodes[i].id : std::to_string(i);  // planning refuses a node too many
    if (layers[i] != 0) shares.push_back({.node = node, .first_layer = next, .last_layer = next + layers[i]});
    next += layers[i];
  }
  return shares;
}

std::vector<PartitionManager::StrategyInfo> PartitionManager::strategies() {
  std::vector<StrategyInfo> infos;
  for (const Strategy& strategy : butterfly::strategies()) {
    if (strategy.needs_custom) continue;
    infos.push_back({std::string(strategy.name), std::string(strategy.alias), std::string(strategy.summary)});
  }
  return infos;
}

Result<Partition> PartitionManager::partition(const ModelInfo& model, std::span<const Node> nodes) const {
  return partition_by(config_.strategy, config_, model, nodes);
}

Result<std::vector<Partition>> PartitionManager::compare(const ModelInfo& model, std::span<const Node> nodes) const {
  std::vector<Partition> partitions;
  for (const StrategyInfo& strategy : strategies()) {
    Result<Partition> made = partition_by(strategy.name, config_, model, nodes);
    if (made) partitions.push_back(std::move(*made));
  }
  if (partitions.empty()) {
    BF_TRY(partition(model, nodes));
  }
  std::stable_sort(partitions.begin(), partitions.end(), [](const Partition& a, const Partition& b) {
    return a.quality.slowest_stage_s < b.quality.slowest_stage_s;
  });
  return partitions;
}

}  // namespace butterfly
