// butterfly bench plan: how long each strategy takes to plan a model over described nodes, and how good its plan is.
#include <cstdio>
#include <random>

#include "bench/bench.h"
#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/plan/partition/strategy.h"
#include "butterfly/trace/trace.h"

namespace butterfly::app {
namespace {

struct PlanBenchCommand {
  std::vector<std::string> models{"llama-2-7b", "llama-3.1-405b"}, strategies, goals{"latency", "throughput"};
  std::vector<int> nodes{4, 16, 100};
  int sequences = 16;
  int rounds = 5;
  std::uint64_t seed = 3;
  bool json = false;
};

struct PlanRow {
  std::string model, strategy;
  PlanGoal goal = PlanGoal::kLatency;
  int nodes = 0, layers = 0;
  std::vector<double> plan_s{};  // of each round
  std::string error{};           // why there is no plan; empty: there is one
  Plan plan{};
  double ideal_s = 0, ideal_token_s = 0;
};

/// Machines of eight speeds and several sizes, four to a host; the model fits several times over.
PlanCluster mixed_cluster(int nodes, std::uint64_t model_bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanCluster cluster;
  const std::uint64_t share = model_bytes / static_cast<std::uint64_t>(nodes) + (std::uint64_t{1} << 30);
  for (int i = 0; i < nodes; ++i) {
    const double speed = 10.0 * static_cast<double>(1 + random() % 8);
    cluster.nodes.push_back({.name = fmt::format("n{}", i),
                             .memory_bytes = 2 * share + random() % (4 * share),
                             .memory_read_gb_per_s = speed,
                             .fp32_gflops = 20.0 * speed});
    cluster.host_of_node.push_back(i / 4);
  }
  for (int a = 0; a < nodes; ++a) {
    for (int b = 0; b < nodes; ++b) {
      const bool near = a / 4 == b / 4;
      cluster.links.push_back(
          {.latency_us = near ? 5.0 : 50.0 + static_cast<double>(random() % 100), .gb_per_s = near ? 8.0 : 1.0});
    }
  }
  return cluster;
}

/// A decode step if all nodes worked on it all the time, each at its own speed, and nothing travelled.
double ideal_step_s(const PlanningProblem& problem) {
  double per_second = 0;
  for (int node = 0; node < problem.nodes(); ++node) per_second += 1.0 / problem.decode_s(node, 0, problem.layers);
  return 1.0 / per_second;
}

Status measure_plan(const ModelConfig& config, const PlanCluster& cluster, const PlanOptions& options, int rounds,
                    PlanRow& row) {
  constexpr double kEnoughS = 3.0;  // of all rounds of one row
  double spent = 0;
  for (int round = 0; round < rounds && (round == 0 || spent < kEnoughS); ++round) {
    if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
    const std::uint64_t begin = trace::now_ns();
    Result<Plan> plan = make_plan(config, cluster, options);
    const double seconds = static_cast<double>(trace::now_ns() - begin) * 1e-9;
    spent += seconds;
    row.plan_s.push_back(seconds);
    if (!plan) {
      row.error = plan.error().message;
      return {};
    }
    row.plan = std::move(*plan);
  }
  BF_ASSIGN_OR_RETURN(const PlanningProblem problem, planning_problem(config, cluster, options));
  row.ideal_s = ideal_step_s(problem);
  PlanOptions alone = options;
  alone.sequences = 1;
  BF_ASSIGN_OR_RETURN(const PlanningProblem one_text, planning_problem(config, cluster, alone));
  row.ideal_token_s = ideal_step_s(one_text);
  return {};
}

Result<std::vector<std::string>> plan_strategies(const std::vector<std::string>& names) {
  std::vector<std::string> chosen;
  for (const std::string& name : names) {
    BF_ASSIGN_OR_RETURN(const Strategy* strategy, find_strategy(name));
    if (strategy->needs_custom) {
      return make_error(ErrorCode::kInvalidArgument, "--strategies {}: follows a plan that is given, and plans nothing",
                        name);
    }
    chosen.emplace_back(strategy->name);
  }
  if (!chosen.empty()) return chosen;
  for (const Strategy& strategy : strategies()) {
    if (!strategy.needs_custom) chosen.emplace_back(strategy.name);
  }
  return chosen;
}

void print_plan_head() {
  std::printf(
      "| model | layers | nodes | strategy | goal | plan ms, median (spread) | step ms | ideal ms | of ideal | "
      "gap | token ms | ideal ms | tokens/s |\n"
      "|---|--:|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n");
}

void print_plan_row(const PlanRow& row) {
  std::printf("| %s | %d | %d | %s | %s | ", row.model.c_str(), row.layers, row.nodes, row.strategy.c_str(),
              std::string(to_string(row.goal)).c_str());
  const auto [least, most] = std::ranges::minmax(row.plan_s);
  std::printf("%.3f (%.3f-%.3f) | ", median(row.plan_s) * 1e3, least * 1e3, most * 1e3);
  if (!row.error.empty()) {
    std::printf("no plan: %s |\n", row.error.c_str());
    return;
  }
  const double step = row.plan.predicted_slowest_s();
  std::printf("%.2f | %.2f | %.0f %% | %+.1f %% | %.2f | %.2f | %.1f |\n", step * 1e3, row.ideal_s * 1e3,
              100 * row.ideal_s / step, 100 * row.plan.gap(), row.plan.prediction.token_s * 1e3,
              row.ideal_token_s * 1e3, row.plan.prediction.tokens_per_s);
  std::fflush(stdout);
}

nlohmann::ordered_json plan_row_json(const PlanRow& row) {
  const auto [least, most] = std::ranges::minmax(row.plan_s);
  nlohmann::ordered_json j{{"model", row.model},       {"layers", row.layers},        {"nodes", row.nodes},
                           {"strategy", row.strategy}, {"goal", to_string(row.goal)}, {"plan_s", median(row.plan_s)},
                           {"plan_s_least", least},    {"plan_s_most", most}};
  if (!row.error.empty()) {
    j["error"] = row.error;
    return j;
  }
  const double step = row.plan.predicted_slowest_s();
  j["step_s"] = step;
  j["ideal_s"] = row.ideal_s;
  j["share_of_ideal"] = row.ideal_s / step;
  j["slowest_bound_s"] = row.plan.slowest_bound_s;
  j["gap"] = row.plan.gap();
  j["token_s"] = row.plan.prediction.token_s;
  j["ideal_token_s"] = row.ideal_token_s;
  j["tokens_per_s"] = row.plan.prediction.tokens_per_s;
  j["load_balance_factor"] = row.plan.prediction.load_balance_factor;
  j["memory_use"] = row.plan.prediction.memory_use;
  j["groups"] = row.plan.prediction.groups;
  return j;
}

Status run_plans(const PlanBenchCommand& command) {
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> chosen, plan_strategies(command.strategies));
  for (const std::string& name : command.models) BF_TRY(named_config(name));
  for (const std::string& goal : command.goals) BF_TRY(parse_plan_goal(goal));
  auto j = nlohmann::ordered_json::array();
  if (!command.json) print_plan_head();
  for (const std::string& name : command.models) {
    BF_ASSIGN_OR_RETURN(ModelConfig config, named_config(name));
    config.weight_type = DType::kQ4_0;
    for (const int nodes : command.nodes) {
      std::fprintf(stderr, "%s over %d nodes\n", config.name.c_str(), nodes);
      const PlanCluster cluster = mixed_cluster(nodes, parameter_count(config) * 9 / 16, command.seed);
      for (const std::string& strategy : chosen) {
        for (const std::string& goal : command.goals) {
          PlanRow row{.model = config.name, .strategy = strategy, .nodes = nodes, .layers = config.layers};
          BF_ASSIGN_OR_RETURN(row.goal, parse_plan_goal(goal));
          const PlanOptions options{.strategy = strategy,
                                    .context = std::min(2048, config.context),
                                    .sequences = command.sequences,
                                    .goal = row.goal};
          BF_TRY(measure_plan(config, cluster, options, command.rounds, row));
          if (!command.json) print_plan_row(row);
          j.push_back(plan_row_json(row));
        }
      }
    }
  }
  if (command.json) print_json({{"sequences", command.sequences}, {"seed", command.seed}, {"plans", std::move(j)}});
  return {};
}

}  // namespace

void add_bench_plan(Command bench, Action& action) {
  auto sub = bench.add_subcommand("plan", "Partition strategies: time to plan, and how near the plan is to the ideal");
  const auto command = std::make_shared<PlanBenchCommand>();
  sub.add_option("--models", command->models, "Shapes by name (convert --help lists them), planned in Q4_0")
      .comma_separated();
  sub.add_option("--nodes", command->nodes, "Numbers of nodes").comma_separated().in_range(1, 4096);
  sub.add_option("--strategies", command->strategies, "Strategies [all that need no plan of their own]")
      .comma_separated();
  sub.add_option("--goals", command->goals, "What is looked for: latency, throughput, memory").comma_separated();
  sub.add_option("--sequences", command->sequences, "Texts at once").in_range(1, 4096).show_default();
  sub.add_option("--rounds", command->rounds, "Plans of each row, fewer where they take seconds")
      .in_range(1, 1000)
      .show_default();
  sub.add_option("--seed", command->seed, "Of the nodes' speeds and memory").whole_number().show_default();
  sub.footer(
      "The nodes are made up: memory bandwidth of 10 to 80 GB/s, arithmetic in proportion, four to a host, links of 8 "
      "and\n1 GB/s. A step is a decode step of all texts on the busiest node. Ideal: all nodes at work all the time "
      "and "
      "nothing\ntravels; no plan is better, and no token of one text sooner. Gap: over the bound for contiguous plans "
      "of whole layers; below 0 is what "
      "groups gained.\nThe step and its bounds come from the cost model, none of it is measured; only planning is "
      "timed.");
  finish_bench(sub, action, command, &run_plans);
}

}  // namespace butterfly::app
