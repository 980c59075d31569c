#include "butterfly/plan/cost/predict.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "butterfly/plan/cost/load_balance.h"
#include "butterfly/plan/cost/micro_batch.h"

namespace butterfly {
namespace {

constexpr double kExchangesOfDenseBlock = 2.0;

const NodeRates& rates_of(const PredictionInput& input, const Share& share) {
  return input.rates[static_cast<std::size_t>(share.node)];
}

double logit_bytes(const PredictionInput& input, const StepShape& step) {
  return step.logit_rows * static_cast<double>(input.cost.logit_bytes);
}

template <typename Item, typename WorkOf>
std::vector<GroupRange> group_ranges(std::span<const Item> items, const WorkOf& work_of) {
  std::vector<GroupRange> groups;
  for (std::size_t i = 0; i < items.size(); ++i) {
    // What comes after the last slices begins a group; the others go on with the one before.
    if (i == 0 || work_of(items[i - 1]).slices.ends()) groups.push_back({.begin = i, .end = i});
    groups.back().end = i + 1;
  }
  return groups;
}

/// Who hands activations from group to group: the coordinator, each group in turn, the coordinator.
class Route {
 public:
  Route(const PredictionInput& input, std::span<const Share> shares)
      : input_(input), shares_(shares), groups_(groups_of(shares)) {}

  int groups() const { return static_cast<int>(groups_.size()); }
  std::span<const Share> group(int index) const {
    if (index < 0 || index >= groups()) return {};
    const GroupRange& range = groups_[static_cast<std::size_t>(index)];
    return shares_.subspan(range.begin, range.size());
  }
  /// Into the group `to`, from the one before it.
  double hop(int to, const StepShape& step) const { return hop_s(input_, group(to - 1), group(to), step); }
  /// For how long of that the link is busy: the next message waits for it.
  double sending(int to, const StepShape& step) const {
    StepShape nothing = step;
    nothing.rows = nothing.logit_rows = 0.0;
    return hop(to, step) - hop(to, nothing);
  }

 private:
  const PredictionInput& input_;
  std::span<const Share> shares_;
  std::vector<GroupRange> groups_;
};

/// One step through every group and hop. Seconds.
double pass_s(const PredictionInput& input, const Route& route, const StepShape& step, PlanPrediction* parts) {
  double total = 0.0;
  for (int g = 0; g <= route.groups(); ++g) {
    const double hop = route.hop(g, step);
    total += hop;
    if (parts != nullptr) parts->hop_s += hop;
    if (g == route.groups()) break;
    const GroupTime time = group_time(input, route.group(g), step);
    total += time.total();
    if (parts != nullptr) parts->exchange_s += time.exchange_s;
  }
  return total;
}

StepShape alone_shape(const PredictionInput& input) {
  Load alone = input.load;
  alone.sequences = 1;
  return decode_shape(alone);
}

/// Tokens that a step gives each of its sequences; those of a text that is encoded count as such.
double tokens_of_step(const PredictionInput& input) {
  return input.load.requests == RequestKind::kEncoded ? static_cast<double>(input.load.prompt) : 1.0;
}

/// Chunks of a prompt, cut as the scheduler cuts it, follow each other: a link carries one when it has carried the one
/// before, and a group begins one when it has it and is done with the one before.
double ttft_s(const PredictionInput& input, const Route& route) {
  std::vector<double> sent(static_cast<std::size_t>(route.groups()), 0.0);
  std::vector<double> done(static_cast<std::size_t>(route.groups()), 0.0);
  std::vector<double> busy(input.rates.size(), 0.0);
  double at = 0.0;
  Load cut = input.load;
  cut.chunk = static_cast<std::uint64_t>(
      micro_batch_rows(static_cast<std::int64_t>(cut.prompt), route.groups(), static_cast<int>(cut.chunk)));
  for (const StepShape& step : prompt_shapes(cut)) {
    at = 0.0;
    for (int g = 0; g < route.groups(); ++g) {
      const double time = group_time(input, route.group(g), step).total();
      double& free_at = done[static_cast<std::size_t>(g)];
      double& link_free_at = sent[static_cast<std::size_t>(g)];
      const double leaves_at = std::max(at, link_free_at);
      link_free_at = leaves_at + route.sending(g, step);
      at = std::max(leaves_at + route.hop(g, step), free_at) + time;
      free_at = at;
      for (const Share& share : route.group(g)) busy[static_cast<std::size_t>(share.node)] += time;
    }
    if (step.logit_rows > 0.0) at += route.hop(route.groups(), step);
  }
  // A node with several stages does them one after the other.
  return std::max(at, *std::max_element(busy.begin(), busy.end()));
}

/// The bounds of a closed queueing network: `steps` batches circulate, the busiest node or link lets one pass at a
/// time.
double closed_tokens_per_s(const PredictionInput& input, const Route& route) {
  const double sequences = static_cast<double>(input.load.sequences);
  const double batch = std::ceil(sequences / route.groups());
  const double steps = std::ceil(sequences / batch);
  Load together = input.load;
  together.sequences = static_cast<std::uint64_t>(batch);
  const StepShape step = decode_shape(together);
  std::vector<double> busy(input.rates.size(), 0.0);
  double slowest = 0.0;
  for (int g = 0; g < route.groups(); ++g) {
    const double time = group_time(input, route.group(g), step).total();
    for (const Share& share : route.group(g)) {
      double& sum = busy[static_cast<std::size_t>(share.node)];
      sum += time;
      slowest = std::max(slowest, sum);
    }
    if (g == 0) continue;
    const double bytes = step.rows * static_cast<double>(input.cost.row_bytes);
    const int from = route.group(g - 1).front().node;
    double sending = 0.0;
    for (const Share& to : route.group(g)) {
      const LinkDescriptor& link = input.cluster->link(from, to.node);
      sending += transfer_s(link, bytes) - link.latency_us * 1e-6;
    }
    slowest = std::max(slowest, sending);
  }
  const double cycle = std::max(steps * slowest, pass_s(input, route, step, nullptr));
  return std::isfinite(cycle) && cycle > 0.0 ? sequences * tokens_of_step(input) / cycle : 0.0;
}

class LinkUses {
 public:
  void add(int from, int to, double decode_bytes, double prefill_bytes) {
    if (from == to) return;
    LinkUse& use = uses_[{from, to}];
    use.decode_bytes += decode_bytes;
    use.prefill_bytes += prefill_bytes;
  }
  std::vector<LinkUse> take() const {
    std::vector<LinkUse> links;
    for (const auto& [ends, use] : uses_) {
      links.push_back({ends.first, ends.second, use.decode_bytes, use.prefill_bytes});
    }
    return links;
  }

 private:
  std::map<std::pair<int, int>, LinkUse> uses_;
};

/// Exchanges of the layers of a group in a step: of layers that encode, or of the others.
struct Exchanges {
  double by_slices = 0.0;
  double by_experts = 0.0;
};
Exchanges exchanges_of(const ModelCost& cost, const BlockCounts& blocks, StepKind step) {
  Exchanges all;
  for (std::size_t i = 0; i < cost.kinds.size(); ++i) {
    const BlockKind& kind = cost.kinds[i];
    if ((kind.role == LayerRole::kEncodes) != (step == StepKind::kEncodes)) continue;
    const double attention = kind.role == LayerRole::kAttendsToEncoded ? 1.0 : 0.0;
    const double own = kind.dense ? kExchangesOfDenseBlock : cost.exchanges_by_slices;
    all.by_slices += blocks.of[i] * (own + attention);
    if (!kind.dense) all.by_experts += blocks.of[i] * cost.exchanges_by_experts;
  }
  return all;
}

void count_group(const PredictionInput& input, std::span<const Share> group, LinkUses& uses) {
  const auto row = static_cast<double>(input.cost.row_bytes);
  const auto prompt = static_cast<double>(input.load.prompt);
  const RequestKind requests = input.load.requests;
  for (const Share& from : group) {
    const ShareCost own = input.cost.share(from.work.slices);
    const BlockCounts blocks = input.cost.counts(from.work);
    const auto sums_of = [&](StepKind step) {
      const Exchanges exchanges = exchanges_of(input.cost, blocks, step);
      return (exchanges.by_slices * own.subtrees + exchanges.by_experts * own.expert_subtrees) * row;
    };
    const double read = sums_of(requests == RequestKind::kContinued ? StepKind::kContinues : StepKind::kEncodes);
    const double written = requests == RequestKind::kEncoded ? read : sums_of(StepKind::kContinues);
    for (const Share& to : group) {
      // A token's row of the embedding comes from the member that has its slice of the vocabulary.
      const double looked_up =
          from.work.embedding ? row * static_cast<double>(own.logit_bytes) / static_cast<double>(input.cost.logit_bytes)
                              : 0.0;
      const double logits =
          from.work.head && to.node == group.front().node ? static_cast<double>(own.logit_bytes) : 0.0;
      uses.add(from.node, to.node, written + looked_up + logits / tokens_of_step(input),
               prompt * (read + looked_up) + logits);
    }
  }
}

std::vector<LinkUse> link_uses(const PredictionInput& input, const Route& route) {
  LinkUses uses;
  const auto row = static_cast<double>(input.cost.row_bytes);
  const auto prompt = static_cast<double>(input.load.prompt);
  for (int g = 0; g < route.groups(); ++g) {
    const int from = g == 0 ? kCoordinator : route.group(g - 1).front().node;
    const double bytes = g == 0 ? kTokenBytes : row;
    for (const Share& to : route.group(g)) uses.add(from, to.node, bytes, prompt * bytes);
    count_group(input, route.group(g), uses);
  }
  const auto logits = static_cast<double>(input.cost.logit_bytes);
  uses.add(route.group(route.groups() - 1).front().node, kCoordinator, logits / tokens_of_step(input), logits);
  return uses.take();
}

StagePrediction predict_share(const PredictionInput& input, const Share& share, std::span<const Share> group) {
  const ShareBytes bytes = share_bytes(input.cost, share.work, input.load);
  const StepShape decode = decode_shape(input.load);
  StagePrediction prediction{.decode_s = share_s(input.cost, share.work, decode, rates_of(input, share)),
                             .exchange_s = group_time(input, group, decode).exchange_s,
                             .weight_bytes = bytes.weights,
                             .kv_bytes = bytes.kv,
                             .activation_bytes = bytes.activations};
  for (const StepShape& step : prompt_shapes(input.load)) {
    prediction.prefill_s +=
        share_s(input.cost, share.work, step, rates_of(input, share)) + group_time(input, group, step).exchange_s;
  }
  return prediction;
}

/// What follows from the shares' own predictions: who is busiest, who is fullest.
void weigh_nodes(const PredictionInput& input, std::span<const Share> shares,
                 const std::vector<StagePrediction>& predictions, PlanPrediction& whole) {
  std::vector<double> busy(input.rates.size(), 0.0);
  const std::vector<ShareBytes> held = node_bytes(input, shares);
  std::vector<char> works(input.rates.size(), 0);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const auto node = static_cast<std::size_t>(shares[i].node);
    busy[node] += predictions[i].decode_s;
    works[node] = 1;
  }
  std::vector<double> working_s;
  for (std::size_t node = 0; node < busy.size(); ++node) {
    if (works[node] == 0) continue;
    working_s.push_back(busy[node]);
    whole.slowest_s = std::max(whole.slowest_s, busy[node]);
    whole.memory_bytes_max = std::max(whole.memory_bytes_max, held[node].total());
    const std::uint64_t memory = input.cluster->nodes[node].memory_bytes;
    if (memory > 0) {
      whole.memory_use =
          std::max(whole.memory_use, static_cast<double>(held[node].total()) / static_cast<double>(memory));
    }
  }
  whole.load_balance_factor = load_balance_factor(working_s);
}

}  // namespace

std::vector<GroupRange> groups_of(std::span<const Share> shares) {
  return group_ranges(shares, [](const Share& share) -> const StageAssignment& { return share.work; });
}

std::vector<GroupRange> groups_of(std::span<const StageAssignment> stages) {
  return group_ranges(stages, [](const StageAssignment& stage) -> const StageAssignment& { return stage; });
}

namespace {

const ExchangeTimes* measured_times(const PredictionInput& input, std::span<const Share> group) {
  for (const MeasuredGroup& measured : input.cluster->measured_groups) {
    const bool same = std::ranges::equal(group, measured.nodes, {}, [](const Share& share) { return share.node; });
    if (same && measured.times.measured()) return &measured.times;
  }
  return nullptr;
}

/// From the links, and what it costs to meet at all.
double link_exchange_s(const PredictionInput& input, std::span<const Share> group, double rows, double wake_s,
                       ExchangeOf of = ExchangeOf::kSlices) {
  const auto subtrees = [&](const Share& share) {
    const HeldSlices& held = share.work.slices;
    return of == ExchangeOf::kSlices ? input.cost.without_experts(held).subtrees
                                     : input.cost.experts(held.experts).subtrees;
  };
  const double row = rows * static_cast<double>(input.cost.row_bytes);
  const auto members = static_cast<double>(group.size());
  double latency = 0.0;
  double direct = 0.0;   // the busiest member's sending or receiving
  double divided = 0.0;  // the same where each sums a part of the positions
  for (const Share& one : group) {
    const double own = subtrees(one) * row;
    double out = 0.0, in = 0.0, out_part = 0.0, in_part = 0.0;
    for (const Share& other : group) {
      if (other.node == one.node) continue;
      const LinkDescriptor& to = input.cluster->link(one.node, other.node);
      const LinkDescriptor& from = input.cluster->link(other.node, one.node);
      latency = std::max(latency, transfer_s(to, 0.0));
      const double theirs = subtrees(other) * row;
      out += own / (to.gb_per_s * 1e9);
      in += theirs / (from.gb_per_s * 1e9);
      out_part += (own + row) / members / (to.gb_per_s * 1e9);
      in_part += (theirs + row) / members / (from.gb_per_s * 1e9);
    }
    direct = std::max({direct, out, in});
    divided = std::max({divided, out_part, in_part});
  }
  const double meeting = latency + wake_s;
  return std::min(meeting + direct, 2.0 * meeting + divided);
}

/// An exchange of `rows` as the group measured it (`exchange_s`), or what the block that it was measured in took beyond
/// what this plan has for its computing.
double measured_s(const PredictionInput& input, std::span<const Share> group, double rows, double exchange_s,
                  double whole_block_s) {
  if (whole_block_s <= 0.0) return exchange_s;
  // Its blocks took turns in the measuring, each as it works.
  const StepShape step{.rows = rows, .past = 0.0, .sequences = 1.0, .logit_rows = 0.0, .text = rows, .encodings = 1.0};
  BlockCounts blocks = input.cost.counts(group.front().work);
  if (blocks.total() == 0) blocks = input.cost.counts(0, 1);
  double computing_s = 0.0;
  for (const Share& share : group) {
    const ShareCost own = input.cost.share(share.work.slices);
    computing_s =
        std::max(computing_s, blocks_s(input.cost, own, blocks, step, rates_of(input, share)) / blocks.total());
  }
  double exchanges = 0.0;
  for (const StepKind kind : {StepKind::kContinues, StepKind::kEncodes}) {
    const Exchanges some = exchanges_of(input.cost, blocks, kind);
    exchanges += some.by_slices + some.by_experts;
  }
  return std::max(0.0, whole_block_s - computing_s) * blocks.total() / exchanges;
}

double measured_one_row_s(const PredictionInput& input, std::span<const Share> group, const ExchangeTimes& times) {
  return measured_s(input, group, 1.0, times.one_row_s, times.one_row_block_s);
}

/// Of groups that did not measure their exchanges: no less than a message between two of them was seen to take.
double assumed_wake_s(const PredictionInput& input, std::span<const Share> group) {
  double wake_us = 0.0;
  for (const Share& one : group) {
    for (const Share& other : group) wake_us = std::max(wake_us, input.cluster->link(one.node, other.node).wake_us);
  }
  return std::max(kAssumedWakeS, wake_us * 1e-6);
}

/// The part of a small exchange that the links do not explain.
double wake_s(const PredictionInput& input, std::span<const Share> group) {
  const ExchangeTimes* times = measured_times(input, group);
  if (times == nullptr) return assumed_wake_s(input, group);
  return std::max(0.0, measured_one_row_s(input, group, *times) - link_exchange_s(input, group, 1.0, 0.0));
}

}  // namespace

double exchange_s(const PredictionInput& input, std::span<const Share> group, double rows, ExchangeOf of) {
  if (group.size() < 2) return 0.0;
  const ExchangeTimes* times = measured_times(input, group);
  if (times == nullptr) return link_exchange_s(input, group, rows, assumed_wake_s(input, group), of);
  const double few = measured_one_row_s(input, group, *times) - link_exchange_s(input, group, 1.0, 0.0);
  const double many = measured_s(input, group, times->many_rows, times->many_rows_s, times->many_rows_block_s) -
                      link_exchange_s(input, group, times->many_rows, 0.0);
  const double between = std::clamp((rows - 1.0) / (times->many_rows - 1.0), 0.0, 1.0);
  return std::max(0.0, link_exchange_s(input, group, rows, 0.0, of) + few + between * (many - few));
}

double exchanges_s(const PredictionInput& input, std::span<const Share> group, const BlockCounts& blocks,
                   const StepShape& step) {
  const auto seconds_of = [&](StepKind kind, double rows) {
    const Exchanges exchanges = exchanges_of(input.cost, blocks, kind);
    double seconds = 0.0;
    if (exchanges.by_slices > 0.0) seconds += exchanges.by_slices * exchange_s(input, group, rows, ExchangeOf::kSlices);
    if (exchanges.by_experts > 0.0) {
      seconds += exchanges.by_experts * exchange_s(input, group, rows, ExchangeOf::kExperts);
    }
    return seconds;
  };
  double seconds = seconds_of(step.kind, step.rows);
  if (step.encodings > 0.0) seconds += step.encodings * seconds_of(StepKind::kEncodes, step.sequences * step.text);
  return seconds;
}

GroupTime group_time(const PredictionInput& input, std::span<const Share> group, const StepShape& step) {
  GroupTime time;
  for (const Share& share : group) {
    time.compute_s = std::max(time.compute_s, share_s(input.cost, share.work, step, rates_of(input, share)));
  }
  if (group.size() < 2) return time;
  const StageAssignment& work = group.front().work;
  time.exchange_s = exchanges_s(input, group, input.cost.counts(work), step);
  const double row = step.rows * static_cast<double>(input.cost.row_bytes);
  double handing_out = 0.0;
  double latency = 0.0;
  double gathering = 0.0;
  for (const Share& share : group.subspan(1)) {
    const LinkDescriptor& in = input.cluster->link(share.node, group.front().node);
    const LinkDescriptor& out = input.cluster->link(group.front().node, share.node);
    latency = std::max(latency, transfer_s(in, 0.0));
    handing_out += row / (out.gb_per_s * 1e9);
    gathering += step.logit_rows * static_cast<double>(input.cost.without_experts(share.work.slices).logit_bytes) /
                 (in.gb_per_s * 1e9);
  }
  const double meeting = latency + wake_s(input, group);
  if (work.embedding) time.exchange_s += meeting + handing_out;
  if (work.head && step.logit_rows > 0.0) time.exchange_s += meeting + gathering;
  return time;
}

double hop_s(const PredictionInput& input, std::span<const Share> from, std::span<const Share> to,
             const StepShape& step) {
  const int sender = from.empty() ? kCoordinator : from.front().node;
  if (to.empty()) {
    const LinkDescriptor& link = input.cluster->link(sender, kCoordinator);
    return transfer_s(link, logit_bytes(input, step)) + link.wake_us * 1e-6;
  }
  const double bytes = step.rows * (from.empty() ? kTokenBytes : static_cast<double>(input.cost.row_bytes));
  double latency = 0.0;
  double sending = 0.0;
  for (const Share& share : to) {
    const LinkDescriptor& link = input.cluster->link(sender, share.node);
    const double wake_s = sender == share.node ? 0.0 : link.wake_us * 1e-6 + rates_of(input, share).wake_s;
    latency = std::max(latency, transfer_s(link, 0.0) + wake_s);
    sending += link.gb_per_s > 0.0 ? bytes / (link.gb_per_s * 1e9) : 0.0;
  }
  return latency + sending;
}

double predicted_token_s(const PredictionInput& input, std::span<const Share> shares) {
  return pass_s(input, Route(input, shares), alone_shape(input), nullptr) / tokens_of_step(input);
}

double predicted_tokens_per_s(const PredictionInput& input, std::span<const Share> shares) {
  return closed_tokens_per_s(input, Route(input, shares));
}

std::vector<ShareBytes> node_bytes(const PredictionInput& input, std::span<const Share> shares) {
  std::vector<ShareBytes> held(input.cluster->nodes.size());
  for (const Share& share : shares) {
    const ShareBytes bytes = share_bytes(input.cost, share.work, input.load);
    ShareBytes& own = held[static_cast<std::size_t>(share.node)];
    own.weights += bytes.weights;
    own.kv += bytes.kv;
    own.activations = std::max(own.activations, bytes.activations);
  }
  return held;
}

Prediction predict(const PredictionInput& input, std::span<const Share> shares) {
  Prediction prediction;
  const Route route(input, shares);
  for (int g = 0; g < route.groups(); ++g) {
    for (const Share& share : route.group(g)) {
      prediction.shares.push_back(predict_share(input, share, route.group(g)));
    }
  }
  PlanPrediction& whole = prediction.whole;
  whole.groups = route.groups();
  whole.hops = route.groups() + 1;
  const double tokens = tokens_of_step(input);
  whole.token_s = pass_s(input, route, token_shape(input.load), &whole) / tokens;
  whole.hop_s /= tokens;
  whole.exchange_s /= tokens;
  whole.ttft_s = ttft_s(input, route);
  whole.tokens_per_s = closed_tokens_per_s(input, route);
  weigh_nodes(input, shares, prediction.shares, whole);
  whole.links = link_uses(input, route);
  return prediction;
}

}  // namespace butterfly
