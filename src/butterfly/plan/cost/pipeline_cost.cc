#include "butterfly/plan/cost/pipeline_cost.h"

#include <algorithm>
#include <numeric>

#include "butterfly/base/check.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/model/training/train_support.h"
#include "butterfly/plan/cost/training_work.h"
#include "butterfly/plan/pipeline/best_split.h"

namespace butterfly {
namespace {

/// Operations that a matmul does while a float passes memory once: 100 to 200 GFLOP/s of fp32 beside 12 to 16 GB/s, as
/// processors of this decade have them for each core. Only the ratio of layers to the head follows it.
constexpr double kFlopsPerFloat = 32.0;
constexpr int kMicroBatchesPerStage = 4;  // https://arxiv.org/abs/1811.06965: then the bubble is small

/// A layer, or, behind the last one, embedding, norm and head.
struct Item {
  double flops = 0.0;   // of a token, forward
  double floats = 0.0;  // of a token, kept for the backward pass
  std::uint64_t parameters = 0;
  double cost() const {
    return (1.0 + kBackwardOverForward) * flops + (kForwardTouches + kBackwardTouches) * kFlopsPerFloat * floats;
  }
};

std::uint64_t parameters_of(const ModelConfig& config, const WeightRange& range) {
  std::uint64_t count = 0;
  for (const WeightInfo& weight : expected_weights(config, range)) {
    count += static_cast<std::uint64_t>(weight.rows) * static_cast<std::uint64_t>(weight.cols);
  }
  return count;
}

std::vector<Item> items_of(const ModelConfig& config, int seq) {
  const ForwardFlops flops = forward_flops(config, seq);
  std::vector<Item> items;
  for (int layer = 0; layer < config.layers; ++layer) {
    const WeightRange one{.first_layer = layer, .last_layer = layer + 1, .embedding = false, .head = false};
    items.push_back({.flops = flops.layers[static_cast<std::size_t>(layer)],
                     .floats = activation_floats(config, layer),
                     .parameters = parameters_of(config, one)});
  }
  const std::uint64_t embedding = parameters_of(config, {.embedding = true, .head = false});
  const std::uint64_t head = parameters_of(config, {.embedding = false, .head = true});
  const std::uint64_t twice =
      config.tied_head ? static_cast<std::uint64_t>(config.vocab) * static_cast<std::uint64_t>(config.model_dim) : 0;
  // Logits, rows of the embedding, and the stream before and behind the last norm.
  items.push_back({.flops = flops.head,
                   .floats = static_cast<double>(config.vocab) + 3.0 * config.model_dim,
                   .parameters = embedding + head - twice});
  return items;
}

template <typename Of>
double sum_of(std::span<const Item> items, const Of& of) {
  return std::accumulate(items.begin(), items.end(), 0.0, [&](double sum, const Item& item) { return sum + of(item); });
}

std::span<const Item> items_of(const std::vector<Item>& all, const PipelineStage& stage) {
  const auto first = static_cast<std::size_t>(stage.first_layer), last = static_cast<std::size_t>(stage.last_layer);
  return std::span(all).subspan(first, last - first + (stage.ends ? 1 : 0));
}

double of_rank(std::span<const double> values, std::size_t rank) {
  return values.empty() ? 1.0 : values[rank];
}

/// Whose costs are those of stages on ranks in this order.
struct OrderedDivision {
  std::vector<int> ranks;   // of each stage
  std::vector<int> counts;  // of items
  double slowest = kInfinity;
};

/// The best borders for ranks in their order, but that `last` comes at the end; slowest is infinite where there are
/// none.
OrderedDivision divide_with_last(std::span<const Item> items, const PipelineDivision& among, int last) {
  OrderedDivision found;
  for (int rank = 0; rank < among.stages; ++rank) {
    if (rank != last) found.ranks.push_back(rank);
  }
  found.ranks.push_back(last);
  const auto cost = [&](int stage, int first, int end) {
    const auto own = items.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
    const auto rank = static_cast<std::size_t>(found.ranks[static_cast<std::size_t>(stage)]);
    if (!among.state_shares.empty()) {
      const double state = sum_of(own, [](const Item& item) { return static_cast<double>(item.parameters); });
      return state / among.state_shares[rank];
    }
    return sum_of(own, [](const Item& item) { return item.cost(); }) / of_rank(among.speeds, rank);
  };
  const auto larger = [](double a, double b) { return std::max(a, b); };
  const auto counts = best_split(among.stages, static_cast<int>(items.size()), cost, larger, 1);
  if (!counts) return found;
  found.counts = *counts;
  found.slowest = 0.0;
  for (int stage = 0, first = 0; stage < among.stages; ++stage) {
    const int end = first + found.counts[static_cast<std::size_t>(stage)];
    found.slowest = std::max(found.slowest, cost(stage, first, end));
    first = end;
  }
  return found;
}

/// One node's part of a step.
TrainNodePrediction predict_stage(std::span<const Item> items, const TrainOptions& options, const StageTimes& times,
                                  int micro_batches) {
  TrainNodePrediction one{.forward_s = micro_batches * times.forward_s, .backward_s = micro_batches * times.backward_s};
  std::uint64_t parameters = 0;
  for (const Item& item : items) parameters += item.parameters;
  one.sequences = options.batch;
  one.weight_bytes = one.gradient_bytes = parameters * sizeof(float);
  one.optimizer_bytes = 2 * parameters * sizeof(float);
  return one;
}

}  // namespace

Result<std::vector<PipelineStage>> divide_pipeline(const ModelConfig& config, int seq, const PipelineDivision& among) {
  const std::vector<Item> items = items_of(config, seq);
  OrderedDivision best = divide_with_last(items, among, among.stages - 1);
  if (best.counts.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a pipeline of {} ranks for {} layers: at most {} have something to compute, the last of them "
                      "the head",
                      among.stages, config.layers, config.layers + 1);
  }
  for (int last = among.stages - 2; last >= 0; --last) {
    OrderedDivision other = divide_with_last(items, among, last);
    if (other.slowest < (1.0 - kGainOfOrder) * best.slowest) best = std::move(other);
  }
  const double flops = sum_of(items, [](const Item& item) { return item.flops; });
  std::vector<PipelineStage> stages;
  for (std::size_t i = 0; i < best.counts.size(); ++i) {
    PipelineStage stage{.rank = best.ranks[i], .first_layer = stages.empty() ? 0 : stages.back().last_layer};
    stage.last_layer = stage.first_layer + best.counts[i];
    stage.ends = stage.last_layer > config.layers;
    stage.last_layer -= stage.ends ? 1 : 0;
    const std::span<const Item> own = items_of(items, stage);
    stage.cost = sum_of(own, [](const Item& item) { return item.cost(); });
    stage.flops_share = sum_of(own, [](const Item& item) { return item.flops; }) / flops;
    stages.push_back(stage);
  }
  return stages;
}

int stage_of(std::span<const PipelineStage> stages, int rank) {
  const auto found = std::ranges::find(stages, rank, &PipelineStage::rank);
  BF_CHECK(found != stages.end(), "a rank without a stage");
  return static_cast<int>(found - stages.begin());
}

double pipeline_bubble(std::span<const PipelineStage> stages, std::span<const double> speeds, int micro_batches) {
  std::vector<StageTimes> times;
  for (const PipelineStage& stage : stages) {
    const double speed = of_rank(speeds, static_cast<std::size_t>(stage.rank));
    const double pass = stage.cost / speed / (1.0 + kBackwardOverForward);
    times.push_back({.forward_s = pass, .backward_s = kBackwardOverForward * pass});
  }
  return simulate_pipeline(times, micro_batches).bubble;
}

Result<TrainPrediction> predict_pipeline(const ModelConfig& trained, const PlanCluster& cluster,
                                         const TrainOptions& options, const LinkDescriptor& link) {
  const int seq = options.seq == 0 ? trained.context : options.seq, count = cluster.size();
  const int wanted = options.micro_batch > 0 ? options.micro_batch : options.batch / (kMicroBatchesPerStage * count);
  const int micro_batch = std::clamp(wanted, 1, options.batch);
  const int micro_batches = (options.batch + micro_batch - 1) / micro_batch;
  const std::vector<Item> items = items_of(trained, seq);
  std::vector<TrainRates> rates;
  std::vector<double> speeds;
  for (const NodeDescriptor& node : cluster.nodes) {
    rates.push_back(train_rates(node));
    speeds.push_back(std::max(rates.back().flops_per_s, 1.0));
  }
  BF_ASSIGN_OR_RETURN(const std::vector<PipelineStage> stages,
                      divide_pipeline(trained, seq, {.stages = count, .speeds = speeds}));
  const double rows = static_cast<double>(micro_batch) * seq;
  const double stream_bytes = rows * trained.model_dim * sizeof(float);
  std::vector<StageTimes> times;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::span<const Item> own = items_of(items, stages[i]);
    const auto node = static_cast<std::size_t>(stages[i].rank);
    const double flops = rows * sum_of(own, [](const Item& item) { return item.flops; });
    const double bytes = rows * sizeof(float) * sum_of(own, [](const Item& item) { return item.floats; });
    const double matmuls_s = divide(flops, rates[node].flops_per_s),
                 touch_s = divide(bytes, rates[node].memory_bytes_per_s);
    times.push_back({.forward_s = matmuls_s + kForwardTouches * touch_s,
                     .backward_s = kBackwardOverForward * matmuls_s + kBackwardTouches * touch_s,
                     .to_next_s = count == 1 ? 0.0 : transfer_s(link, stream_bytes)});
  }
  const PipelineTimes simulated = simulate_pipeline(times, micro_batches);
  TrainPrediction prediction;
  prediction.bubble = simulated.bubble;
  prediction.nodes.resize(stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::span<const Item> own = items_of(items, stages[i]);
    const auto node = static_cast<std::size_t>(stages[i].rank);
    TrainNodePrediction one = predict_stage(own, options, times[i], micro_batches);
    one.communication_s = simulated.waits_s[i];
    one.optimizer_s =
        divide(kAdamWBytes / sizeof(float) * static_cast<double>(one.weight_bytes), rates[node].memory_bytes_per_s);
    // Forward to one side and backward to the other; the last one embeds for the first.
    one.bytes_sent = count == 1 ? 0.0 : 2.0 * micro_batches * stream_bytes;
    const double kept = kept_micro_batches(static_cast<int>(i), count, micro_batches);
    one.activation_bytes = static_cast<std::uint64_t>(kept * rows * sizeof(float) *
                                                      sum_of(own, [](const Item& item) { return item.floats; }));
    const std::uint64_t memory = cluster.nodes[node].memory_bytes;
    if (memory > 0 && one.memory_bytes() > memory) one.missing_bytes = one.memory_bytes() - memory;
    one.step_low_s = (1.0 - rates[node].uncertainty) * one.step_s();
    one.step_high_s = (1.0 + rates[node].uncertainty) * one.step_s();
    prediction.step_s = std::max(prediction.step_s, one.step_s());
    prediction.step_low_s = std::max(prediction.step_low_s, one.step_low_s);
    prediction.step_high_s = std::max(prediction.step_high_s, one.step_high_s);
    prediction.bytes_sent_per_node = std::max(prediction.bytes_sent_per_node, one.bytes_sent);
    prediction.nodes[node] = one;
  }
  prediction.flops = (1.0 + kBackwardOverForward) * seq * forward_flops_per_token(trained, seq) * options.batch;
  prediction.tokens_per_s = divide(static_cast<double>(seq) * options.batch, prediction.step_s);
  return prediction;
}

}  // namespace butterfly
