#include "butterfly/plan/partition/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "butterfly/base/bytes.h"
#include "butterfly/base/check.h"
#include "butterfly/base/units.h"
#include "butterfly/plan/partition/balanced.h"
#include "butterfly/plan/partition/division.h"
#include "butterfly/plan/partition/infeasible.h"
#include "butterfly/plan/partition/strategy.h"

namespace butterfly {
namespace {

constexpr int kPromptDefault = 512;

/// Positions of one sequence, or why there cannot be that number.
Result<Load> make_load(const ModelConfig& config, const ModelCost& cost, const PlanOptions& options) {
  if (options.context < 0 || options.context > config.context) {
    return make_error(ErrorCode::kInvalidArgument, "a context of {} tokens, the model has 1 to {}", options.context,
                      config.context);
  }
  if (options.sequences < 1) {
    return make_error(ErrorCode::kInvalidArgument, "a plan for {} sequences, expected at least 1", options.sequences);
  }
  const int context = options.context == 0 ? config.context : options.context;
  if (options.prompt < 0 || options.prompt > context) {
    return make_error(ErrorCode::kInvalidArgument, "a prompt of {} tokens, the context has 1 to {}", options.prompt,
                      context);
  }
  if (options.chunk < 1) {
    return make_error(ErrorCode::kInvalidArgument, "a prefill chunk of {} tokens, expected at least 1", options.chunk);
  }
  const int prompt = options.prompt > 0 ? options.prompt : std::clamp(context / 2, 1, kPromptDefault);
  const Load load{
      .context = static_cast<std::uint64_t>(context),
      .sequences = static_cast<std::uint64_t>(std::max(options.sequences, options.side_by_side)),
      .cached = static_cast<std::uint64_t>(options.sequences),
      .prompt = static_cast<std::uint64_t>(prompt),
      .chunk = static_cast<std::uint64_t>(config.encoder_layers > 0 ? std::max(options.chunk, prompt) : options.chunk),
      .requests = request_kind(config)};
  // Once here: every later matmul of these is smaller.
  auto bytes = checked_multiply(load.context * load.sequences, std::max(2 * cost.kv_bytes, cost.logit_bytes));
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

std::string time_or_unknown(double seconds) {
  return std::isfinite(seconds) ? format_seconds(seconds) : "unknown";
}

std::string times(const Plan& plan) {
  if (!std::isfinite(plan.predicted_latency_s())) return "unknown, as a node was not measured";
  const PlanPrediction& whole = plan.prediction;
  std::string text = fmt::format("{} per token, slowest stage {}", time_or_unknown(whole.token_s),
                                 format_seconds(plan.predicted_slowest_s()));
  text += fmt::format("; first token after {}, {:.1f} tokens/s of all sequences, load_balance_factor {:.2f}",
                      time_or_unknown(whole.ttft_s), whole.tokens_per_s, whole.load_balance_factor);
  return text;
}

std::string slices_text(const HeldSlices& slices) {
  return slices.whole() ? "" : " " + slices.text();
}

Result<Plan> plan_of(const PlanningProblem& problem, const Strategy& strategy) {
  BF_ASSIGN_OR_RETURN(Split split, strategy.split(problem));
  BF_TRY(check_memory(problem, split.shares));
  Plan plan;
  plan.strategy = strategy.name;
  plan.note = std::move(split.note);
  plan.context = static_cast<int>(problem.load.context);
  std::vector<char> works(problem.cluster->nodes.size(), 0);
  Prediction prediction = predict(problem, split.shares);
  for (std::size_t i = 0; i < split.shares.size(); ++i) {
    const Share& share = split.shares[i];
    plan.shares.push_back({.node = share.node, .work = share.work, .prediction = prediction.shares[i]});
    works[static_cast<std::size_t>(share.node)] = 1;
  }
  for (int node = 0; node < problem.nodes(); ++node) {
    if (works[static_cast<std::size_t>(node)] == 0) plan.standby_nodes.push_back(node);
  }
  plan.prediction = std::move(prediction.whole);
  plan.slowest_bound_s = slowest_bound_s(problem);
  if (const auto bound = division_bound(problem, split.shares)) {
    plan.division_bound_s = bound->slices_s;
    plan.any_size_bound_s = bound->any_size_s;
  }
  return plan;
}

}  // namespace

double Plan::predicted_latency_s() const {
  double sum = 0.0;
  for (const GroupRange& group : groups_of(stages())) {
    double slowest = 0.0;
    for (std::size_t i = group.begin; i < group.end; ++i) slowest = std::max(slowest, shares[i].prediction.decode_s);
    sum += slowest;
  }
  return sum;
}

double Plan::predicted_slowest_s() const {
  return prediction.slowest_s;
}

double Plan::gap() const {
  return slowest_bound_s > 0.0 ? predicted_slowest_s() / slowest_bound_s - 1.0 : 0.0;
}

std::vector<Share> Plan::placement() const {
  std::vector<Share> all;
  for (const PlannedShare& share : shares) all.push_back({.node = share.node, .work = share.work});
  return all;
}

std::vector<StageAssignment> Plan::stages() const {
  std::vector<StageAssignment> all;
  for (const PlannedShare& share : shares) all.push_back(share.work);
  return all;
}

std::vector<int> Plan::nodes() const {
  std::vector<int> all;
  for (const PlannedShare& share : shares) all.push_back(share.node);
  return all;
}

std::string_view to_string(PlanGoal goal) {
  switch (goal) {
    case PlanGoal::kLatency:
      return "latency";
    case PlanGoal::kThroughput:
      return "throughput";
    case PlanGoal::kMemory:
      break;
  }
  return "memory";
}

Result<PlanGoal> parse_plan_goal(std::string_view name) {
  for (const PlanGoal goal : {PlanGoal::kLatency, PlanGoal::kThroughput, PlanGoal::kMemory}) {
    if (to_string(goal) == name) return goal;
  }
  return make_error(ErrorCode::kInvalidArgument, "unknown goal '{}', known are latency, throughput, memory", name);
}

Result<PredictionInput> prediction_input(const ModelConfig& config, const PlanCluster& cluster,
                                         const PlanOptions& options) {
  BF_TRY(validate(cluster));
  BF_ASSIGN_OR_RETURN(const ModelCost cost, model_cost(config, options.kv_type));
  BF_ASSIGN_OR_RETURN(const Load load, make_load(config, cost, options));
  PredictionInput input{.layers = config.layers, .cost = cost, .load = load, .cluster = &cluster, .rates = {}};
  const double weight_bytes =
      static_cast<double>(cost.weight_bytes(cost.counts(0, config.layers)) + cost.head.weight_bytes);
  for (const NodeDescriptor& node : cluster.nodes) {
    input.rates.push_back(node_rates(node, cost.weight_type, weight_bytes, cost.kv_type));
  }
  return input;
}

Result<Plan> make_plan(const ModelConfig& config, const PlanCluster& cluster, const PlanOptions& options) {
  BF_ASSIGN_OR_RETURN(const Strategy* strategy, find_strategy(options.strategy));
  BF_ASSIGN_OR_RETURN(const PlanningProblem problem, planning_problem(config, cluster, options));
  Result<Plan> whole = plan_of(problem, *strategy);
  PlanOptions shorter = options;
  for (int context = config.context / 2; options.context == 0 && context >= kContextLeast; context /= 2) {
    if (whole || whole.error().code != ErrorCode::kNoMemory) return whole;
    shorter.context = context;
    shorter.prompt = std::min(options.prompt, context);
    BF_ASSIGN_OR_RETURN(const PlanningProblem smaller, planning_problem(config, cluster, shorter));
    Result<Plan> plan = plan_of(smaller, *strategy);
    if (plan) return plan;
  }
  return whole;
}

Result<Plan> make_plan(const ModelConfig& config, std::span<const NodeDescriptor> nodes, const PlanOptions& options) {
  return make_plan(config, cluster_of(nodes), options);
}

Result<std::vector<ComparedPlan>> compare_plans(const ModelConfig& config, const PlanCluster& cluster,
                                                const PlanOptions& options) {
  BF_ASSIGN_OR_RETURN(const PlanningProblem problem, planning_problem(config, cluster, options));
  std::vector<ComparedPlan> compared;
  for (const Strategy& strategy : strategies()) {
    if (strategy.needs_custom && problem.custom == nullptr) continue;
    compared.push_back({.strategy = std::string(strategy.name), .plan = plan_of(problem, strategy)});
  }
  return compared;
}

std::string describe(const Plan& plan, std::span<const NodeDescriptor> nodes) {
  std::size_t width = std::string_view("node").size();
  for (const PlannedShare& share : plan.shares) width = std::max(width, name_of(nodes, share.node).size());
  constexpr std::string_view kRow = "{:>5}  {:<{}}  {:<24}  {:>10}  {:>10}  {:>12}\n";
  std::string text = fmt::format(kRow, "stage", "node", width, "layers", "weights", "cache", "decode step");
  for (std::size_t i = 0; i < plan.shares.size(); ++i) {
    const StageAssignment& stage = plan.shares[i].work;
    const StagePrediction& prediction = plan.shares[i].prediction;
    const std::string layers = fmt::format("{}{}-{}{}{}", stage.embedding ? "embedding, " : "", stage.first_layer,
                                           stage.last_layer - 1, stage.head ? ", head" : "", slices_text(stage.slices));
    text +=
        fmt::format(kRow, i, name_of(nodes, plan.shares[i].node), width, layers, format_bytes(prediction.weight_bytes),
                    format_bytes(prediction.kv_bytes), time_or_unknown(prediction.decode_s));
  }
  for (int node : plan.standby_nodes) text += fmt::format("{} stands by\n", name_of(nodes, node));
  text += fmt::format("strategy {}; predicted: {}\n", plan.strategy, times(plan));
  return plan.note.empty() ? text : text + plan.note + "\n";
}

}  // namespace butterfly
