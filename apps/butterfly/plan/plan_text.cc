// The tables and bars of butterfly plan.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "butterfly/base/units.h"
#include "butterfly/machine/prediction_history.h"
#include "butterfly/model/core/shard.h"
#include "plan/plan.h"
#include "plan/plan_training.h"

namespace butterfly::app {
namespace {

constexpr std::size_t kLinksShown = 12;
constexpr std::size_t kBusyShown = 16;

std::string bar(double share, int width = 16) {
  const double clamped = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0;
  const int full = static_cast<int>(std::lround(clamped * width));
  std::string text;
  for (int i = 0; i < width; ++i) text += i < full ? "█" : "░";
  return text;
}

std::string time_of(double seconds) {
  return std::isfinite(seconds) ? format_seconds(seconds) : "unknown";
}

std::string bytes_of(double bytes) {
  return format_bytes(static_cast<std::uint64_t>(std::max(bytes, 0.0)));
}

std::size_t widest_layers(const Planned& planned) {
  std::size_t width = 6;
  for (const StageAssignment& work : planned.plan.stages()) width = std::max(width, planned.layers_of(work).size());
  return width;
}

std::size_t widest_name(const PlanCluster& cluster) {
  std::size_t width = 4;
  for (int node = 0; node < cluster.size(); ++node) width = std::max(width, cluster.name_of(node).size());
  return width;
}

void add_head(const Planned& planned, std::string& text) {
  std::uint64_t weights = 0, cache = 0;
  for (const PlannedShare& share : planned.plan.shares) {
    weights += share.prediction.weight_bytes;
    cache += share.prediction.kv_bytes;
  }
  text += fmt::format("{}: {} layers, {} weights of {}; {} sequence{} of {} tokens, cache of {} in {}\n",
                      planned.config.name, planned.config.layers, format_bytes(weights),
                      to_string(planned.config.weight_type), planned.options.sequences,
                      planned.options.sequences == 1 ? "" : "s", planned.options.context, format_bytes(cache),
                      to_string(planned.options.kv_type));
}

/// One line for each share: what it is, its time beside the slowest, its memory beside what the node has.
void add_stages(const Planned& planned, std::string& text) {
  const Plan& plan = planned.plan;
  const PlanCluster& cluster = planned.cluster;
  const std::size_t width = widest_name(cluster), layers = widest_layers(planned);
  double slowest = 0.0;
  for (const PlannedShare& share : plan.shares) {
    slowest = std::max(slowest, share.prediction.decode_s + share.prediction.exchange_s);
  }
  text += fmt::format("\n{:>5}  {:<{}}  {:<{}}  {:>9}  {:<16}  {:>9}  {:>10}  {:>10}\n", "stage", "node", width,
                      "layers", layers, "step", "", "prefill", "memory", "of");
  const std::vector<GroupRange> groups = groups_of(plan.stages());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t i = groups[group].begin; i < groups[group].end; ++i) {
      const StagePrediction& share = plan.shares[i].prediction;
      const int node = plan.shares[i].node;
      const std::uint64_t memory = cluster.nodes[static_cast<std::size_t>(node)].memory_bytes;
      const double step = share.decode_s + share.exchange_s;
      text += fmt::format(
          "{:>5}  {:<{}}  {:<{}}  {:>9}  {}  {:>9}  {:>10}  {:>10}  {}\n", group, cluster.name_of(node), width,
          planned.layers_of(plan.shares[i].work), layers, time_of(step), bar(step / slowest), time_of(share.prefill_s),
          format_bytes(share.memory_bytes()), memory > 0 ? format_bytes(memory) : "unknown",
          memory > 0 ? bar(static_cast<double>(share.memory_bytes()) / static_cast<double>(memory)) : "");
    }
  }
  std::string standby;
  for (int node : plan.standby_nodes) standby += (standby.empty() ? "" : ", ") + cluster.name_of(node);
  if (!standby.empty()) text += fmt::format("stand by: {}\n", standby);
}

void add_links(const Planned& planned, std::string& text) {
  std::vector<LinkUse> links = planned.plan.prediction.links;
  if (links.empty()) return;
  std::ranges::stable_sort(links, std::greater<>(), &LinkUse::decode_bytes);
  text += fmt::format("\n{:>12}  {:>12}  link\n", "per token", "per prompt");
  for (std::size_t i = 0; i < std::min(links.size(), kLinksShown); ++i) {
    text += fmt::format("{:>12}  {:>12}  {} to {}\n", bytes_of(links[i].decode_bytes), bytes_of(links[i].prefill_bytes),
                        planned.cluster.name_of(links[i].from), planned.cluster.name_of(links[i].to));
  }
  if (links.size() > kLinksShown) {
    text += fmt::format("{:>12}  {:>12}  each of {} others at most\n", bytes_of(links[kLinksShown].decode_bytes), "",
                        links.size() - kLinksShown);
  }
}

void add_prediction(const Planned& planned, std::string& text) {
  const PlanPrediction& p = planned.plan.prediction;
  const bool encodes = planned.config.encodes_only();
  text += fmt::format(
      "\n{}, for {}: {} {}, {} {} per token ({} on the way, {} in exchanges); {:.2f} tokens/s with {} "
      "sequence{}\n",
      planned.plan.strategy, to_string(planned.options.goal), encodes ? "a text" : "first token", time_of(p.ttft_s),
      encodes ? "which is" : "then", time_of(p.token_s), time_of(p.hop_s), time_of(p.exchange_s), p.tokens_per_s,
      planned.options.sequences, planned.options.sequences == 1 ? "" : "s");
  if (std::isfinite(p.token_s)) {
    const auto interval = [](const char* what, double seconds) {
      const Interval times = PredictionHistory::open(what).of_time(seconds, 0.0);
      return fmt::format("{} to {}", time_of(times.low), time_of(times.high));
    };
    text += fmt::format("nine of ten runs on machines that do nothing else: first token {}, {} per token\n",
                        interval("prefill", p.ttft_s), interval("decode", p.token_s));
  }
  if (p.exchange_s > 0) {
    text += fmt::format("{} for the wake in each exchange are assumed; a group that runs measures its own\n",
                        time_of(kAssumedWakeS));
  }
  text += fmt::format("slowest node {} per step, load_balance_factor {:.3f}, {} stage{}, {} hops per token\n",
                      time_of(p.slowest_s), p.load_balance_factor, p.groups, p.groups == 1 ? "" : "s", p.hops);
  if (planned.plan.slowest_bound_s > 0 && std::isfinite(p.slowest_s)) {
    const double percent = 100 * planned.plan.gap();
    text += fmt::format("that node takes {:.2f} % {} the least that any plan of whole layers can reach\n",
                        std::abs(percent), percent < 0 ? "less than" : "more than");
  }
  if (planned.plan.division_bound_s > 0 && std::isfinite(p.slowest_s)) {
    const auto above = [&](double bound) { return 100 * (p.slowest_s / bound - 1.0); };
    text += fmt::format(
        "of its group: {:.2f} % more than the least that whole slices allow, {:.2f} % more than shares "
        "of any size would take\n",
        above(planned.plan.division_bound_s), above(planned.plan.any_size_bound_s));
  }
  if (!planned.plan.note.empty()) text += planned.plan.note + "\n";
}

void add_comparison(const Planned& planned, std::string& text) {
  double fastest = 0.0;
  for (const ComparedPlan& one : planned.all) {
    if (one.plan) fastest = std::max(fastest, one.plan->prediction.tokens_per_s);
  }
  text += fmt::format("\n{:<12}  {:>11}  {:>9}  {:>9}  {:>5}  {:>7}  {:>8}\n", "strategy", "first token", "per token",
                      "tokens/s", "hops", "balance", "fullest");
  for (const ComparedPlan& one : planned.all) {
    const std::string name = fmt::format("{}{}", one.strategy, one.strategy == planned.plan.strategy ? " *" : "");
    if (!one.plan) {
      text += fmt::format("{:<12}  cannot: {}\n", name, one.plan.error().message);
      continue;
    }
    const PlanPrediction& p = one.plan->prediction;
    text += fmt::format("{:<12}  {:>11}  {:>9}  {:>9.2f}  {:>5}  {:>7.3f}  {:>7.1f}%  {}\n", name, time_of(p.ttft_s),
                        time_of(p.token_s), p.tokens_per_s, p.hops, p.load_balance_factor, 100 * p.memory_use,
                        bar(p.tokens_per_s / fastest));
  }
}

void add_simulation(const Planned& planned, std::string& text) {
  const SimulationOptions& o = planned.simulation_options;
  const SimulationReport& r = *planned.simulation;
  text += fmt::format("\nsimulated: {} requests{}, prompts of {}, answers of {} tokens, at most {} at once, seed {}\n",
                      o.requests, o.rate_per_s > 0 ? fmt::format(" at {} per second", o.rate_per_s) : " at once",
                      o.prompt, o.generated, o.sequences_max, o.seed);
  text += fmt::format("{:<12}  {:>9}  {:>9}  {:>9}\n", "", "p50", "p95", "p99");
  for (const auto& [name, p] : {std::pair("first token", r.first_token_s), std::pair("request", r.request_s)}) {
    text += fmt::format("{:<12}  {:>9}  {:>9}  {:>9}\n", name, format_seconds(p.p50), format_seconds(p.p95),
                        format_seconds(p.p99));
  }
  text += fmt::format("{:.2f} tokens/s over {}, {} events\n", r.tokens_per_s, format_seconds(r.seconds), r.events);
  if (o.fail_every_s > 0) {
    text += fmt::format("{} failures, {} positions read again\n", r.failures, r.replayed_rows);
  }
  std::vector<std::pair<double, int>> busy;
  for (std::size_t node = 0; node < r.utilisation.size(); ++node) {
    if (r.utilisation[node] > 0) busy.emplace_back(r.utilisation[node], static_cast<int>(node));
  }
  std::ranges::stable_sort(busy, std::greater<>(), &std::pair<double, int>::first);
  const std::size_t width = widest_name(planned.cluster);
  for (std::size_t i = 0; i < std::min(busy.size(), kBusyShown); ++i) {
    text += fmt::format("{:<{}}  {}  {:>5.1f}% busy\n", planned.cluster.name_of(busy[i].second), width,
                        bar(busy[i].first), 100 * busy[i].first);
  }
  if (busy.size() > kBusyShown) text += fmt::format("{} others are less busy\n", busy.size() - kBusyShown);
}

}  // namespace

std::string Planned::layers_of(const StageAssignment& work) const {
  std::string text = work.embedding ? "embedding, " : "";
  text += work.layers() == 1 ? fmt::format("{}", work.first_layer)
                             : fmt::format("{}-{}", work.first_layer, work.last_layer - 1);
  if (work.head) text += ", head";
  if (work.slices.whole()) return text;
  const auto add = [&](std::string_view one, int first, int last) {
    if (last <= first) {
      text += fmt::format(", no {}s", one);
    } else if (last == first + 1) {
      text += fmt::format(", {} {}", one, first);
    } else {
      text += fmt::format(", {}s {}-{}", one, first, last - 1);
    }
  };
  add("slice", work.slices.first, work.slices.last);
  if (work.slices.experts_follow()) return text;
  const IndexRange experts = shard_of(config, work.slices).experts;
  add("expert", static_cast<int>(experts.begin), static_cast<int>(experts.end));
  return text;
}

std::string Planned::text() const {
  std::string text;
  if (!training.empty()) return training_text(*this);
  add_head(*this, text);
  add_stages(*this, text);
  add_links(*this, text);
  add_prediction(*this, text);
  if (!all.empty()) add_comparison(*this, text);
  if (simulation) add_simulation(*this, text);
  return text;
}

}  // namespace butterfly::app
