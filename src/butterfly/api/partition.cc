#include "butterfly/partition.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "butterfly/api/convert.h"
#include "butterfly/model/config.h"
#include "butterfly/plan/plan.h"
#include "butterfly/plan/strategy.h"

namespace butterfly {
namespace {

PartitionQuality judge(const Plan& plan, const std::vector<NodeDescriptor>& nodes) {
  PartitionQuality quality;
  quality.latency_s = plan.predicted_latency_s();
  quality.slowest_stage_s = plan.predicted_slowest_s();
  const auto stages = static_cast<double>(plan.stages.size());
  if (std::isfinite(quality.slowest_stage_s)) quality.balance = quality.latency_s / stages / quality.slowest_stage_s;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const std::uint64_t needed = plan.predictions[i].memory_bytes();
    const std::uint64_t memory = nodes[static_cast<std::size_t>(plan.node_of_stage[i])].memory_bytes;
    quality.stage_memory_bytes.push_back(needed);
    if (memory == 0) continue;
    quality.memory_use = std::max(quality.memory_use, static_cast<double>(needed) / static_cast<double>(memory));
  }
  return quality;
}

Partition to_partition(const Plan& plan, const std::vector<NodeDescriptor>& nodes) {
  Partition partition;
  partition.strategy = plan.strategy;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const StageAssignment& stage = plan.stages[i];
    partition.stages.push_back({.node_id = nodes[static_cast<std::size_t>(plan.node_of_stage[i])].name,
                                .first_layer = stage.first_layer,
                                .last_layer = stage.last_layer,
                                .embedding = stage.embedding,
                                .head = stage.head,
                                .weight_bytes = plan.predictions[i].weight_bytes,
                                .cache_bytes = plan.predictions[i].kv_bytes,
                                .decode_s = plan.predictions[i].decode_s});
  }
  for (int node : plan.standby_nodes) partition.standby.push_back(nodes[static_cast<std::size_t>(node)].name);
  partition.quality = judge(plan, nodes);
  partition.table = describe(plan, nodes);
  return partition;
}

Result<Partition> partition_by(const std::string& strategy, const PartitionConfig& config, const ModelInfo& model,
                               std::span<const Node> nodes) {
  if (config.cache_type != "f32" && config.cache_type != "f16") {
    return make_error(ErrorCode::kInvalidArgument, "a cache of type '{}', known are f32 and f16", config.cache_type);
  }
  std::vector<NodeDescriptor> descriptors;
  for (const Node& node : nodes) {
    BF_ASSIGN_OR_RETURN(NodeDescriptor descriptor, to_descriptor(node));
    descriptors.push_back(std::move(descriptor));
  }
  const PlanOptions options{.strategy = strategy,
                            .context = config.context,
                            .sequences = config.sequences,
                            .kv_type = *parse_dtype(config.cache_type)};
  BF_ASSIGN_OR_RETURN(const Plan plan, make_plan(model.config(), descriptors, options));
  return to_partition(plan, descriptors);
}

}  // namespace

std::vector<PartitionManager::StrategyInfo> PartitionManager::strategies() {
  std::vector<StrategyInfo> infos;
  for (const Strategy& strategy : butterfly::strategies()) {
    infos.push_back({std::string(strategy.name), std::string(strategy.alias), std::string(strategy.summary)});
  }
  return infos;
}

Result<Partition> PartitionManager::partition(const ModelInfo& model, std::span<const Node> nodes) const {
  return partition_by(config_.strategy, config_, model, nodes);
}

Result<std::vector<Partition>> PartitionManager::compare(const ModelInfo& model, std::span<const Node> nodes) const {
  std::vector<Partition> partitions;
  for (const Strategy& strategy : butterfly::strategies()) {
    Result<Partition> made = partition_by(std::string(strategy.name), config_, model, nodes);
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
