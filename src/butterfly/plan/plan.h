// Which node runs which layers. A Plan is a value: made from a model's configuration and the nodes' descriptors,
// printed beside what it predicts, sent to the workers. The same inputs give the same plan. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/kernel/lanes.h"
#include "butterfly/machine/node.h"
#include "butterfly/model/config.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// One share of the work: blocks [first_layer, last_layer), and the two ends of the model. The members of a tensor
/// group have the same layers and ends, and divide the lanes of each.
struct StageAssignment {
  int first_layer = 0;
  int last_layer = 0;
  bool embedding = false;
  bool head = false;
  LaneRange lanes{};
  friend bool operator==(const StageAssignment&, const StageAssignment&) = default;
};

struct StagePrediction {
  double decode_s = 0.0;  // one decode step of all sequences; infinite where the node was never measured
  std::uint64_t weight_bytes = 0;
  std::uint64_t kv_bytes = 0;  // of all sequences at full context
  std::uint64_t memory_bytes() const { return weight_bytes + kv_bytes; }
};

struct Plan {
  std::string strategy;
  std::vector<StageAssignment> stages;       // in pipeline order, covering every layer and lane once: a tensor group is
                                             // a run of shares of the same layers with ascending lanes
  std::vector<int> node_of_stage;            // index into the nodes that the plan was made for, ascending
  std::vector<StagePrediction> predictions;  // one per stage
  std::vector<int> standby_nodes;            // without a stage, ascending

  /// One token of one request passes every stage: the sum. Many requests wait for the slowest: the maximum. Seconds.
  double predicted_latency_s() const;
  double predicted_slowest_s() const;
};

struct PlanOptions {
  std::string strategy = "uniform";
  int context = 0;              // positions to reserve per sequence; 0: the model's own
  int sequences = 1;            // that are read or written at once
  DType kv_type = DType::kF16;  // of the key-value cache
};

/// Splits the model over the nodes in the given order. Errors: kInvalidArgument (no nodes, an unknown strategy with
/// the known ones listed, sizes below 1 or beyond the model's context), kNoMemory naming the node and how many bytes
/// are missing, those of validate(). A node with memory_bytes == 0 has unknown memory, which is not checked.
Result<Plan> make_plan(const ModelConfig& config, std::span<const NodeDescriptor> nodes,
                       const PlanOptions& options = {});

/// A table for people: a line per stage, then who stands by and the predicted times. `nodes` as for make_plan.
std::string describe(const Plan& plan, std::span<const NodeDescriptor> nodes);

}  // namespace butterfly
