// Which node runs which layers. A Plan is a value: made from a model's configuration and what is known of a cluster,
// printed beside what it predicts, sent to the workers. The same inputs give the same plan. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/node.h"
#include "butterfly/model/core/config.h"
#include "butterfly/plan/cost/predict.h"
#include "butterfly/plan/cost/share.h"
#include "butterfly/plan/description/cluster_model.h"
#include "butterfly/plan/shares/custom.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

struct PlannedShare {
  int node = 0;  // index into the nodes that the plan was made for, in any order; only plans of scattered layers
                 // (greedy, custom) name a node twice
  StageAssignment work{};
  StagePrediction prediction{};
};

struct Plan {
  std::string strategy;
  std::vector<PlannedShare> shares;  // in pipeline order, covering every layer and slice once: a tensor group is a run
                                     // of shares of the same layers with ascending slices
  std::vector<int> standby_nodes;    // without a share, ascending
  int context = 0;                   // positions reserved per sequence
  PlanPrediction prediction;         // of the whole
  double slowest_bound_s = 0.0;      // no contiguous plan of whole layers has a faster slowest stage; 0 where unknown
  double division_bound_s = 0.0;  // no other division of its groups' slices has a faster slowest member; 0: no groups
  double any_size_bound_s = 0.0;  // nor has one with shares of any size
  std::string note;               // how good the result is known to be, a sentence; may be empty

  /// One token of one request passes every stage: the sum. Many requests wait for the busiest node: the maximum.
  /// Compute alone, seconds.
  double predicted_latency_s() const;
  double predicted_slowest_s() const;
  /// How far the slowest stage is above that bound: 0 is optimal, negative what groups or scattered layers gained.
  double gap() const;

  /// The shares without what is predicted of them, and one side of them alone.
  std::vector<Share> placement() const;
  std::vector<StageAssignment> stages() const;
  std::vector<int> nodes() const;
};

/// What `auto`, `topology`, `tensor` and `hybrid` look for: the least token_s, the most tokens_per_s, the least
/// memory_use (memory_bytes_max where some node's memory is unknown).
enum class PlanGoal : std::uint8_t { kLatency, kThroughput, kMemory };
std::string_view to_string(PlanGoal goal);
Result<PlanGoal> parse_plan_goal(std::string_view name);

constexpr int kContextLeast = 512;

struct PlanOptions {
  std::string strategy = "uniform";
  int context = 0;              // positions to reserve per sequence; 0: the model's own (make_plan: if they fit)
  int sequences = 1;            // that are read or written at once, each with memory for its context
  int side_by_side = 0;         // in fact, where they share that memory; 0: `sequences`
  DType kv_type = DType::kF16;  // of the key-value cache
  PlanGoal goal = PlanGoal::kLatency;
  int prompt = 0;                      // tokens before the first answer; 0: half the context, at most 512
  int chunk = 512;                     // of them in one step
  std::uint64_t seed = 1;              // of strategies that search at random
  std::optional<CustomPlan> custom{};  // what the strategy `custom` follows
};

/// Splits the model over the nodes. Without a context in the options it is the model's own, halved until it fits into
/// the nodes' memory, but not below kContextLeast. Errors: kInvalidArgument (no nodes, an unknown strategy with the
/// known ones listed, sizes below 1 or beyond the model's context, an invalid cluster or custom plan), kNoMemory naming
/// the node, how many bytes are missing and what would help, those of validate(). A node with memory_bytes == 0 has
/// unknown memory, which is not checked.
Result<Plan> make_plan(const ModelConfig& config, const PlanCluster& cluster, const PlanOptions& options = {});

/// Over nodes whose links nobody knows.
Result<Plan> make_plan(const ModelConfig& config, std::span<const NodeDescriptor> nodes,
                       const PlanOptions& options = {});

/// What each strategy makes of the same request, in the order of strategies(); `custom` only where one is given.
struct ComparedPlan {
  std::string strategy;
  Result<Plan> plan;
};
Result<std::vector<ComparedPlan>> compare_plans(const ModelConfig& config, const PlanCluster& cluster,
                                                const PlanOptions& options = {});

/// Prediction and simulation of a plan need the same numbers. Errors: those of make_plan() about its arguments. The
/// cluster must outlive the result.
Result<PredictionInput> prediction_input(const ModelConfig& config, const PlanCluster& cluster,
                                         const PlanOptions& options);

/// A table for people: a line per stage, then who stands by and the predicted times. `nodes` as for make_plan.
std::string describe(const Plan& plan, std::span<const NodeDescriptor> nodes);

}  // namespace butterfly
