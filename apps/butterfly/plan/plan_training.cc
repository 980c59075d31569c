#include "plan/plan_training.h"

#include <algorithm>
#include <cmath>

#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/machine/topology.h"
#include "butterfly/train/run/training_peak.h"

namespace butterfly::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWorldMax = 4096;  // as cluster files
constexpr double kBitsPerByte = 8.0;

std::string time_or_unknown(double seconds) {
  return std::isfinite(seconds) ? format_seconds(seconds) : "unknown";
}

std::string interval_of(double low, double high) {
  return std::isfinite(high) ? fmt::format("{} to {}", format_seconds(low), format_seconds(high)) : "unknown";
}

Result<NodeDescriptor> rank_of(const WorldOptions& world, TrainingWorld& found) {
  NodeDescriptor rank;
  const bool described = world.memory_gb_per_s > 0.0;
  if (described) {
    rank.memory_read_gb_per_s = world.memory_gb_per_s;
    rank.fp32_gflops = world.fp32_gflops;
  } else {
    BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
    // Measured again: what others did when a remembered peak was taken would be planned with.
    BF_ASSIGN_OR_RETURN(const TrainingPeak peak,
                        measured_training_peak(Precision::kFloat32, isa, usable_threads(), PeakAge::kAgain));
    BF_ASSIGN_OR_RETURN(rank, measure_node());
    rank.training_gflops = peak.gflops;
    found.measured = true;
  }
  if (!world.memory.empty()) {
    rank.memory_bytes = parse_bytes(world.memory);
    if (rank.memory_bytes == 0) {
      return make_error(ErrorCode::kInvalidArgument, "--memory is \"{}\", expected a size such as 24GiB", world.memory);
    }
  }
  return rank;
}

Result<TrainPrediction> predict_over(const Planned& planned, TrainStrategy strategy, const PlanCluster& cluster,
                                     int batch) {
  TrainOptions options = planned.train_options;
  options.strategy = strategy;
  options.batch = batch;
  return predict_training(planned.config, cluster, options);
}

/// The least doubling of the ranks with which dividing everything fits; 0: none.
int ranks_that_fit(const Planned& planned) {
  PlanCluster cluster = planned.cluster;
  for (int ranks = 2 * cluster.size(); ranks <= kWorldMax; ranks *= 2) {
    cluster.nodes.resize(static_cast<std::size_t>(ranks), cluster.nodes.front());
    const auto tried =
        predict_over(planned, TrainStrategy::kFullShard, cluster, std::max(planned.train_options.batch, ranks));
    if (!tried) return 0;
    if (candidate(TrainStrategy::kFullShard, *tried, cluster).missing_bytes == 0) return ranks;
  }
  return 0;
}

std::string rank_sentence(const Planned& planned) {
  const NodeDescriptor& rank = planned.cluster.nodes.front();
  const TrainingWorld& world = *planned.world;
  const LinkDescriptor& link = planned.cluster.default_link;
  std::string text = world.measured
                         ? fmt::format(
                               "each a machine like this one, measured: {} thread{}, {:.0f} GFLOP/s, {:.1f} "
                               "GB/s",
                               rank.threads, rank.threads == 1 ? "" : "s", rank.fp32_gflops, rank.memory_read_gb_per_s)
                         : fmt::format(
                               "each as described: {:.0f} GFLOP/s, of which matmuls are assumed to reach "
                               "{:.0f} %, and {:.1f} GB/s",
                               rank.fp32_gflops, 100 * kAssumedArithmeticShare, rank.memory_read_gb_per_s);
  text += fmt::format("; {} of memory\n",
                      rank.memory_bytes > 0 ? format_bytes(rank.memory_bytes) : std::string("an unknown amount"));
  return text + fmt::format("links: {} us one way, {:g} Gbit/s{}\n", link.latency_us, kBitsPerByte * link.gb_per_s,
                            world.link_assumed ? ", assumed: --latency-us, --gbit-per-s" : "");
}

void add_row(const Planned& planned, TrainStrategy strategy, const TrainPrediction& p, std::string& text) {
  const auto slowest = std::ranges::max_element(p.nodes, {}, &TrainNodePrediction::step_s);
  const auto fullest = std::ranges::max_element(p.nodes, {}, &TrainNodePrediction::memory_bytes);
  text += fmt::format("{:<13}  {:>9}  {:>20}  {:>9}  {:>9}  {:>9}  {:>13}  {:>10.1f}  {:>12}  {:>14}\n",
                      to_string(strategy), time_or_unknown(p.step_s), interval_of(p.step_low_s, p.step_high_s),
                      time_or_unknown(slowest->forward_s), time_or_unknown(slowest->backward_s),
                      time_or_unknown(slowest->optimizer_s), time_or_unknown(slowest->communication_s), p.tokens_per_s,
                      format_bytes(static_cast<std::uint64_t>(std::max(p.bytes_sent_per_node, 0.0))),
                      format_bytes(fullest->memory_bytes()));
  text += fmt::format("{:<13}  weights {}, gradients {}, moments {}, activations {}", "",
                      format_bytes(fullest->weight_bytes), format_bytes(fullest->gradient_bytes),
                      format_bytes(fullest->optimizer_bytes), format_bytes(fullest->activation_bytes));
  text += fullest->gathered_bytes > 0
              ? fmt::format(", the largest part whole {}\n", format_bytes(fullest->gathered_bytes))
              : std::string("\n");
  if (strategy == TrainStrategy::kPipeline) {
    text += fmt::format("{:<13}  bubble {:.0f} % of the ranks' time\n", "", 100.0 * p.bubble);
  }
  const auto [least, most] = std::ranges::minmax(p.nodes, {}, &TrainNodePrediction::sequences);
  if (most.sequences > least.sequences + 1) {
    std::string shares;
    for (std::size_t node = 0; node < p.nodes.size(); ++node) {
      shares += fmt::format("{}{} {}", node == 0 ? "" : ", ", planned.cluster.name_of(static_cast<int>(node)),
                            p.nodes[node].sequences);
    }
    text += fmt::format("{:<13}  sequences of each, by speed: {}\n", "", shares);
  }
  if (planned.world && fullest->missing_bytes > 0) {
    text += fmt::format("{:<13}  does not fit: each rank lacks {}\n", "", format_bytes(fullest->missing_bytes));
    return;
  }
  for (std::size_t node = 0; node < p.nodes.size(); ++node) {
    if (p.nodes[node].missing_bytes == 0) continue;
    text += fmt::format("{:<13}  does not fit: {} lacks {}\n", "", planned.cluster.name_of(static_cast<int>(node)),
                        format_bytes(p.nodes[node].missing_bytes));
  }
}

/// JSON has no infinity.
Json finite_number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json nodes_json(const Planned& planned, const TrainPrediction& p) {
  Json nodes = Json::array();
  for (std::size_t i = 0; i < p.nodes.size(); ++i) {
    const TrainNodePrediction& node = p.nodes[i];
    nodes.push_back({{"node", planned.cluster.name_of(static_cast<int>(i))},
                     {"sequences", node.sequences},
                     {"step_s", finite_number(node.step_s())},
                     {"forward_s", finite_number(node.forward_s)},
                     {"backward_s", finite_number(node.backward_s)},
                     {"optimizer_s", finite_number(node.optimizer_s)},
                     {"communication_s", finite_number(node.communication_s)},
                     {"weight_bytes", node.weight_bytes},
                     {"gradient_bytes", node.gradient_bytes},
                     {"optimizer_bytes", node.optimizer_bytes},
                     {"activation_bytes", node.activation_bytes},
                     {"gathered_bytes", node.gathered_bytes},
                     {"memory_bytes", node.memory_bytes()},
                     {"missing_bytes", node.missing_bytes}});
  }
  return nodes;
}

}  // namespace

Option add_world_options(Command sub, WorldOptions& world, Option train) {
  auto size = sub.add_option("--world-size", world.size,
                             "With --train, instead of a cluster: as many ranks, each a machine like this one")
                  .in_range(1, kWorldMax)
                  .needs(train);
  sub.add_option("--memory", world.memory, "Of each rank, \"24GiB\" [what is free on this machine]").needs(size);
  auto memory_rate = sub.add_option("--memory-gb-per-s", world.memory_gb_per_s,
                                    "That a rank reads; with --fp32-gflops instead of measuring this machine")
                         .in_range(1e-3, 1e6)
                         .needs(size);
  auto peak = sub.add_option("--fp32-gflops", world.fp32_gflops, "Of a rank, at its peak").in_range(1e-3, 1e9);
  peak.needs(memory_rate);
  memory_rate.needs(peak);
  sub.add_option("--latency-us", world.latency_us,
                 fmt::format("Of each link, one way [{} assumed]", kAssumedLink.latency_us))
      .in_range(1e-6, 1e9)
      .needs(size);
  sub.add_option("--gbit-per-s", world.gbit_per_s,
                 fmt::format("Of each link [{} assumed]", kBitsPerByte * kAssumedLink.gb_per_s))
      .in_range(1e-6, 1e6)
      .needs(size);
  sub.add_option("--micro-batch", world.micro_batch,
                 "With --train: sequences that a rank computes at once [all that it has]")
      .in_range(1, 1 << 20)
      .needs(train);
  return size;
}

Status set_world(const WorldOptions& world, Planned& planned) {
  TrainingWorld found;
  BF_ASSIGN_OR_RETURN(NodeDescriptor rank, rank_of(world, found));
  for (int i = 0; i < world.size; ++i) {
    rank.name = fmt::format("rank {}", i);
    planned.cluster.nodes.push_back(rank);
  }
  LinkDescriptor& link = planned.cluster.default_link;
  link = kAssumedLink;
  if (world.latency_us > 0.0) link.latency_us = world.latency_us;
  if (world.gbit_per_s > 0.0) link.gb_per_s = world.gbit_per_s / kBitsPerByte;
  found.link_assumed = world.latency_us <= 0.0 || world.gbit_per_s <= 0.0;
  planned.world = found;
  return {};
}

Status plan_training(int batch, int seq, const WorldOptions& world, Planned& planned) {
  planned.train_options = {.batch = batch, .micro_batch = world.micro_batch, .seq = seq};
  if (planned.world) {
    if (batch < planned.cluster.size()) {
      return make_error(ErrorCode::kInvalidArgument, "--batch {} has no sequence for each of --world-size {} ranks",
                        batch, planned.cluster.size());
    }
  }
  std::vector<TrainCandidate> candidates;
  for (const TrainStrategy strategy : strategies_for(planned.config, planned.cluster.size())) {
    BF_ASSIGN_OR_RETURN(TrainPrediction prediction, predict_over(planned, strategy, planned.cluster, batch));
    candidates.push_back(candidate(strategy, prediction, planned.cluster));
    planned.training.emplace_back(strategy, std::move(prediction));
  }
  planned.train_choice = choose_training(candidates);
  if (planned.world && !planned.train_choice.fits) planned.world->ranks_that_fit = ranks_that_fit(planned);
  return {};
}

std::string training_text(const Planned& planned) {
  const TrainOptions& options = planned.train_options;
  std::string text =
      fmt::format("{}: a training step of {} sequences of {} tokens over {} {}{}\n", planned.config.name, options.batch,
                  options.seq > 0 ? options.seq : planned.config.context, planned.cluster.size(),
                  planned.world ? "rank" : "node", planned.cluster.size() == 1 ? "" : "s");
  if (planned.world) text += rank_sentence(planned);
  text += fmt::format("\n{:<13}  {:>9}  {:>20}  {:>9}  {:>9}  {:>9}  {:>13}  {:>10}  {:>12}  {:>14}\n", "", "step",
                      "interval", "forward", "backward", "optimizer", "communication", "tokens/s", "sent by each",
                      "memory of each");
  for (const auto& [strategy, prediction] : planned.training) add_row(planned, strategy, prediction, text);
  text +=
      "\nA step is told without overlap; the interval begins where the passes hide as much communication as they "
      "can.\n";
  const TrainChoice& choice = planned.train_choice;
  text += fmt::format("recommended: {}: {}\n", choice.fits ? to_string(choice.strategy) : "none", choice.reason);
  if (planned.world && planned.world->ranks_that_fit > 0) {
    text += fmt::format("full_shard would fit on {} such ranks\n", planned.world->ranks_that_fit);
  }
  return text + "`butterfly train --parallel STRATEGY` runs each of them (--ranks, --workers).\n";
}

void add_training_json(const Planned& planned, nlohmann::ordered_json& json) {
  Json all = Json::object();
  for (const auto& [strategy, p] : planned.training) {
    all[std::string(to_string(strategy))] = {{"step_s", finite_number(p.step_s)},
                                             {"step_low_s", finite_number(p.step_low_s)},
                                             {"step_high_s", finite_number(p.step_high_s)},
                                             {"tokens_per_s", finite_number(p.tokens_per_s)},
                                             {"flops", p.flops},
                                             {"bytes_sent_per_node", p.bytes_sent_per_node},
                                             {"bubble", p.bubble},
                                             {"nodes", nodes_json(planned, p)}};
  }
  json["training"] = std::move(all);
  const TrainChoice& choice = planned.train_choice;
  json["recommended"] = {{"strategy", choice.fits ? Json(std::string(to_string(choice.strategy))) : Json(nullptr)},
                         {"reason", choice.reason}};
  if (!planned.world) return;
  const TrainingWorld& world = *planned.world;
  const NodeDescriptor& rank = planned.cluster.nodes.front();
  const LinkDescriptor& link = planned.cluster.default_link;
  json["rank"] = {{"source", world.measured ? "measured" : "described"},
                  {"threads", world.measured ? Json(rank.threads) : Json(nullptr)},
                  {"memory_bytes", rank.memory_bytes > 0 ? Json(rank.memory_bytes) : Json(nullptr)},
                  {"memory_gb_per_s", rank.memory_read_gb_per_s},
                  {"fp32_gflops", rank.fp32_gflops}};
  json["link"] = {{"source", world.link_assumed ? "assumed" : "described"},
                  {"latency_us", link.latency_us},
                  {"gb_per_s", link.gb_per_s}};
  if (world.ranks_that_fit > 0) json["full_shard_fits_on_ranks"] = world.ranks_that_fit;
}

}  // namespace butterfly::app
