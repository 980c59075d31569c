#include "butterfly/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "butterfly/base/bytes.h"
#include "butterfly/base/check.h"
#include "butterfly/base/units.h"
#include "butterfly/plan/cost.h"
#include "butterfly/plan/strategy.h"

namespace butterfly {
namespace {

/// Positions of one sequence, or why there cannot be so many.
Result<Load> make_load(const ModelConfig& config, const ModelCost& cost, const PlanOptions& options) {
  if (options.context < 0 || options.context > config.context) {
    return make_error(ErrorCode::kInvalidArgument, "a context of {} tokens, the model has 1 to {}", options.context,
                      config.context);
  }
  if (options.sequences < 1) {
    return make_error(ErrorCode::kInvalidArgument, "a plan for {} sequences, expected at least 1", options.sequences);
  }
  const Load load{.context = static_cast<std::uint64_t>(options.context == 0 ? config.context : options.context),
                  .sequences = static_cast<std::uint64_t>(options.sequences)};
  // Once here: every later product of these is smaller.
  auto bytes = checked_multiply(load.context * load.sequences, cost.kv_bytes);
  if (bytes) bytes = checked_multiply(*bytes, static_cast<std::uint64_t>(config.layers));
  if (!bytes || *bytes >= (std::uint64_t{1} << 53)) {
    return make_error(ErrorCode::kInvalidArgument, "no machine holds the cache of {} sequences of {} tokens",
                      load.sequences, load.context);
  }
  return load;
}

std::string name_of(std::span<const NodeDescriptor> nodes, int index) {
  const std::string& name = nodes[static_cast<std::size_t>(index)].name;
  return name.empty() ? fmt::format("node {}", index) : name;
}

Status check_memory(const PlanningProblem& problem, int node, int first, int last) {
  const std::uint64_t missing = problem.missing_bytes(node, first, last);
  if (missing == 0) return {};
  const std::uint64_t memory = problem.nodes[static_cast<std::size_t>(node)].memory_bytes;
  return make_error(ErrorCode::kNoMemory,
                    "{} has {} bytes of memory, layers {} to {} with their cache need {}: {} bytes ({}) are missing",
                    name_of(problem.nodes, node), memory, first, last - 1, memory + missing, missing,
                    format_bytes(missing));
}

std::string times(const Plan& plan) {
  if (!std::isfinite(plan.predicted_latency_s())) return "unknown, as a node was not measured";
  return fmt::format("{} per token, slowest stage {}", format_seconds(plan.predicted_latency_s()),
                     format_seconds(plan.predicted_slowest_s()));
}

}  // namespace

double Plan::predicted_latency_s() const {
  double sum = 0.0;
  for (const StagePrediction& prediction : predictions) sum += prediction.decode_s;
  return sum;
}

double Plan::predicted_slowest_s() const {
  double slowest = 0.0;
  for (const StagePrediction& prediction : predictions) slowest = std::max(slowest, prediction.decode_s);
  return slowest;
}

Result<Plan> make_plan(const ModelConfig& config, std::span<const NodeDescriptor> nodes, const PlanOptions& options) {
  BF_ASSIGN_OR_RETURN(const Strategy* strategy, find_strategy(options.strategy));
  if (nodes.empty()) return make_error(ErrorCode::kInvalidArgument, "a plan needs at least one node");
  BF_ASSIGN_OR_RETURN(const ModelCost cost, model_cost(config, options.kv_type));
  BF_ASSIGN_OR_RETURN(const Load load, make_load(config, cost, options));
  const PlanningProblem problem{.layers = config.layers, .cost = cost, .load = load, .nodes = nodes};
  BF_ASSIGN_OR_RETURN(const std::vector<int> counts, strategy->split(problem));
  BF_CHECK(counts.size() == nodes.size(), "a strategy decides about every node");

  Plan plan;
  plan.strategy = strategy->name;
  int first = 0;
  for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
    const int last = first + counts[static_cast<std::size_t>(node)];
    if (last == first) {
      plan.standby_nodes.push_back(node);
      continue;
    }
    BF_TRY(check_memory(problem, node, first, last));
    plan.stages.push_back(
        {.first_layer = first, .last_layer = last, .embedding = first == 0, .head = last == config.layers});
    plan.node_of_stage.push_back(node);
    plan.predictions.push_back({.decode_s = problem.decode_s(node, first, last),
                                .weight_bytes = problem.weight_bytes(first, last),
                                .kv_bytes = problem.kv_bytes(first, last)});
    first = last;
  }
  BF_CHECK(first == config.layers, "a strategy places every layer");
  return plan;
}

std::string describe(const Plan& plan, std::span<const NodeDescriptor> nodes) {
  std::size_t width = std::string_view("node").size();
  for (int node : plan.node_of_stage) width = std::max(width, name_of(nodes, node).size());
  constexpr std::string_view kRow = "{:>5}  {:<{}}  {:<24}  {:>10}  {:>10}  {:>12}\n";
  std::string text = fmt::format(kRow, "stage", "node", width, "layers", "weights", "cache", "decode step");
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const StageAssignment& stage = plan.stages[i];
    const StagePrediction& prediction = plan.predictions[i];
    const std::string layers = fmt::format("{}{}-{}{}", stage.embedding ? "embedding, " : "", stage.first_layer,
                                           stage.last_layer - 1, stage.head ? ", head" : "");
    text += fmt::format(kRow, i, name_of(nodes, plan.node_of_stage[i]), width, layers,
                        format_bytes(prediction.weight_bytes), format_bytes(prediction.kv_bytes),
                        std::isfinite(prediction.decode_s) ? format_seconds(prediction.decode_s) : "unknown");
  }
  for (int node : plan.standby_nodes) text += fmt::format("{} stands by\n", name_of(nodes, node));
  return text + fmt::format("strategy {}; predicted: {}\n", plan.strategy, times(plan));
}

}  // namespace butterfly
