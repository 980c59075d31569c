// Dividing a model's layers among nodes, and how good a division is. Thread-safe: plain values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model.h"
#include "butterfly/node.h"

namespace butterfly {

/// What one node gets of a custom partition: layers [first_layer, last_layer), and of each the slices [first_slice,
/// last_slice) of 32. Nodes that divide the slices of the same layers follow one another. Of layers with experts a node
/// has whole ones: those that go with its slices, or [first_expert, last_expert).
struct LayerShare {
  std::string node{};  // its id or its address
  int first_layer = 0;
  int last_layer = 0;
  int first_slice = 0;
  int last_slice = 32;    // with both 0 the node has no slices, but experts
  int first_expert = -1;  // -1: as the slices
  int last_expert = -1;
};

/// The number of layers of each node, in this order: shares for the strategy "custom". Nodes with 0 get none.
std::vector<LayerShare> by_layer_count(std::span<const Node> nodes, std::span<const int> layers);

struct PartitionConfig {
  std::string strategy = "balanced";  // one of PartitionManager::strategies(), or "custom"
  std::vector<LayerShare> custom{};   // in pipeline order; what "custom" follows
  std::vector<NodeLink> links{};      // measured, for "topology" and others that look at them; see measure_links().
                                      // One that is missing has the lesser network bandwidth of its two nodes, or
                                      // 1 GB/s where that is unknown, and 50 us
  int context = 0;                    // tokens to keep per sequence; 0: the model's own
  int sequences = 1;                  // served at once
  std::string cache_type = "f16";     // of keys and values: "f32", "f16" or "q8_0"
  std::string goal = "latency";       // what strategies that search look for; or "throughput", "memory"
};

/// One node's share: layers [first_layer, last_layer), and of each the slices [first_slice, last_slice) of 32: nodes
/// that divide the slices of the same layers work on them together. Of layers with experts it has [first_expert,
/// last_expert).
struct PartitionStage {
  std::string node_id;
  int first_layer = 0;
  int last_layer = 0;
  bool embedding = false;
  bool head = false;
  int first_slice = 0;
  int last_slice = 32;
  int first_expert = 0;
  int last_expert = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t cache_bytes = 0;
  std::uint64_t activation_bytes = 0;  // of the largest step
  double decode_s = 0.0;  // predicted, one step of all sequences; infinite where the node's speed is unknown
};

struct PartitionQuality {
  double load_balance_factor = 0.0;               // least over greatest node time, 1 is perfect; 0 where unknown
  double latency_s = 0.0;                         // predicted, one token through every stage
  double slowest_stage_s = 0.0;                   // predicted; bounds the throughput of many requests
  std::vector<std::uint64_t> stage_memory_bytes;  // weights, cache, activations, one per stage
  double memory_use = 0.0;                        // of the fullest node whose memory is known, 0 to 1
};

struct Partition {
  std::string strategy;
  std::vector<PartitionStage> stages;  // in pipeline order
  std::vector<std::string> standby;    // ids of nodes without a stage
  PartitionQuality quality;
  std::string table;  // all of it for people
};

class PartitionManager {
 public:
  struct StrategyInfo {
    std::string name;
    std::string alias;  // empty: none
    std::string summary;
  };
  static std::vector<StrategyInfo> strategies();  // all but "custom"

  explicit PartitionManager(PartitionConfig config = {}) : config_(std::move(config)) {}
  const PartitionConfig& config() const { return config_; }

  /// Errors: kInvalidArgument (no nodes, an unknown strategy, type or goal, sizes out of range, a strategy that needs
  /// speeds over nodes without, shares or links that do not fit the nodes and the model), kNoMemory naming the node,
  /// the missing bytes and what would help.
  Result<Partition> partition(const ModelInfo& model, std::span<const Node> nodes) const;

  /// One partition for every strategy that succeeds, the lowest slowest stage first. Errors: those of the
  /// configured strategy, where none succeeds.
  Result<std::vector<Partition>> compare(const ModelInfo& model, std::span<const Node> nodes) const;

 private:
  PartitionConfig config_;
};

}  // namespace butterfly
