#include "butterfly/train/gradients/sharded_reducer.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/trace/timed_span.h"
#include "butterfly/train/gradients/bucket_reducer.h"
#include "butterfly/train/gradients/canonical_reducer.h"
#include "butterfly/train/gradients/gradient_tree.h"
#include "butterfly/train/gradients/stage_reducer.h"

namespace butterfly {
namespace {

std::span<float> in(std::span<float> all, ParameterRange range) {
  return all.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

std::span<float> floats_of(const AlignedBuffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), static_cast<std::size_t>(buffer.bytes() / sizeof(float))};
}

/// What of this rank's part comes from every rank.
class PartExchange {
 public:
  PartExchange(const ShardMap& map, Collectives& collectives) : map_(map), collectives_(collectives) {}

  /// Every rank in `active` brings `gradients`, flat. This rank's part of what each brings, by rank; it stays valid
  /// until the next call. Its own is where it was. Errors: those of the collectives.
  Result<std::vector<std::span<float>>> exchange(std::size_t bucket, const std::vector<bool>& active,
                                                 std::span<float> gradients, ReduceReport& report) {
    const auto me = static_cast<std::size_t>(collectives_.rank());
    const ParameterRange mine = map_.part(bucket, collectives_.rank());
    const auto size = static_cast<std::size_t>(mine.size());
    received_.resize(std::max(received_.size(), active.size() * size));
    std::vector<ByteSpan> to(active.size());
    std::vector<MutableByteSpan> from(active.size());
    std::vector<std::span<float>> brought;
    std::uint64_t sent = 0;
    for (std::size_t rank = 0; rank < active.size(); ++rank) {
      if (rank != me && active[me]) to[rank] = std::as_bytes(in(gradients, map_.part(bucket, static_cast<int>(rank))));
      sent += to[rank].size();
      if (!active[rank]) continue;
      brought.push_back(rank == me ? in(gradients, mine) : std::span(received_).subspan(rank * size, size));
      if (rank != me) from[rank] = std::as_writable_bytes(brought.back());
    }
    BF_TRY(collectives_.all_to_all(to, from));
    report.formula_bytes += sent;
    report.uncompressed_bytes += sent;
    ++report.buckets[static_cast<std::size_t>(GradientCompression::kOff)];
    return brought;
  }

 private:
  const ShardMap& map_;
  Collectives& collectives_;
  std::vector<float> received_;
};

/// Into `sum`, which is none of them and is added to with `adds`.
void add_all(const std::vector<std::span<float>>& values, std::span<float> sum, bool adds) {
  const trace::Scope scope(trace::Zone::kGradientSum, sum_work(sum.size() * values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0 || adds) {
      add_to(sum, values[i]);
    } else if (values[i].data() != sum.data()) {
      std::ranges::copy(values[i], sum.begin());
    }
  }
}

/// One exchange for each step: the sum in the order of ranks.
class ScatterSum final : public BucketSum {
 public:
  ScatterSum(const ShardMap& map, Collectives& collectives, std::span<float> gradients)
      : map_(map),
        collectives_(collectives),
        rank_(collectives.rank()),
        gradients_(gradients),
        all_(static_cast<std::size_t>(collectives.size()), true),
        exchange_(map, collectives) {}

  Status reduce(std::size_t index, ParameterRange /*bucket*/, ReduceReport& report) override {
    const std::size_t bucket = map_.buckets().size() - 1 - index;
    BF_ASSIGN_OR_RETURN(const std::vector<std::span<float>> brought,
                        exchange_.exchange(bucket, all_, gradients_, report));
    const std::span<float> mine = in(gradients_, map_.part(bucket, rank_));
    if (brought.size() == 2) {
      add_to(mine, brought[rank_ == 0 ? 1 : 0]);  // the same bits either way round
    } else {
      // Its own values are in the way of the sum in rank order.
      own_.assign(mine.begin(), mine.end());
      std::vector<std::span<float>> ordered = brought;
      ordered[static_cast<std::size_t>(rank_)] = own_;
      add_all(ordered, mine, false);
    }
    return send_to_mirrors(map_, collectives_, bucket, gradients_, report);
  }

 private:
  const ShardMap& map_;
  Collectives& collectives_;
  const int rank_;
  std::span<float> gradients_;
  const std::vector<bool> all_;
  PartExchange exchange_;
  std::vector<float> own_;
};

/// One exchange for each round. Backward passes write to memory of the reducer, which is given back bucket by
/// bucket; the flat gradients take the sums of this rank's part.
class RoundReducer final : public GradientReducer {
 public:
  RoundReducer(const ReducerOptions& options, AlignedBuffer workspace, std::vector<AlignedBuffer> held)
      : collectives_(*options.collectives),
        gradients_(options.gradients),
        shards_(*options.shards),
        deterministic_(options.deterministic),
        workspace_(std::move(workspace)),
        held_(std::move(held)),
        exchange_(shards_.map, collectives_),
        rounds_(shards_.rounds) {
    most_on_their_way_ = kUnitsOnTheirWay * shards_.map.largest_layer();
  }
  ~RoundReducer() override {
    if (in_step_) collectives_.abort();
    [[maybe_unused]] const Status last = shards_.queue->wait_all();
  }
  RoundReducer(const RoundReducer&) = delete;
  RoundReducer& operator=(const RoundReducer&) = delete;

  void begin_step(const MicroBatches& /*share*/) override {
    report_ = {};
    exposed_s_ = 0.0;
    round_ = 0;
    next_ = shards_.map.buckets().size();
    in_step_ = true;
  }
  std::span<float> fresh_gradients(int /*micro_batch*/) override {
    wait_until_left(0);  // the next backward pass writes where those of the one before still are
    return floats_of(workspace_);
  }
  /// All pages went back with the round before.
  OldGradients old_gradients() const override { return OldGradients::kZero; }

  void gradients_ready(int micro_batch, ParameterRange range) override {
    while (next_ > 0 && shards_.map.buckets()[next_ - 1].begin >= range.begin) submit(micro_batch, --next_);
    // A backward pass that is faster than the network would fill memory with gradients on their way.
    wait_until_left(most_on_their_way_);
  }

  void micro_batch_done(int micro_batch) override {
    while (next_ > 0) submit(micro_batch, --next_);
    ++round_;
    next_ = shards_.map.buckets().size();
  }

  double take_waited_s() override { return std::exchange(waited_s_, 0.0); }

  Result<ReduceReport> finish() override {
    const trace::TimedSpan waiting(trace::Zone::kWaitGradients);
    const Status reduced = shards_.queue->wait_all();
    report_.exposed_s = exposed_s_ + waiting.end_s();
    on_their_way_.clear();
    in_step_ = false;
    BF_TRY(reduced);
    return report_;
  }

 private:
  struct OnItsWay {
    std::uint64_t operation = 0;
    std::int64_t elements = 0;
  };

  /// What an idle rank receives is in nobody's way: it goes on with its next micro-batch.
  void submit(int micro_batch, std::size_t bucket) {
    const std::uint64_t operation =
        shards_.queue->submit([this, bucket, round = round_] { return reduce(bucket, round); });
    if (micro_batch == kIdle) return;
    on_their_way_.push_back({.operation = operation, .elements = shards_.map.buckets()[bucket].size()});
  }

  /// Returns when at most this number of elements is on its way.
  void wait_until_left(std::int64_t most) {
    std::int64_t elements = 0;
    for (const OnItsWay& one : on_their_way_) elements += one.elements;
    if (elements <= most) return;
    const trace::TimedSpan waiting(trace::Zone::kWaitGradients);
    for (; elements > most; on_their_way_.pop_front()) {
      [[maybe_unused]] const Status seen_at_the_end = shards_.queue->wait(on_their_way_.front().operation);
      elements -= on_their_way_.front().elements;
    }
    const double waited_s = waiting.end_s();
    exposed_s_ += waited_s;
    waited_s_ += waited_s;
  }

  /// On the queue's thread.
  Status reduce(std::size_t bucket, int round) {
    trace::TimedSpan span(trace::Zone::kReduceBucket);
    const std::uint64_t before = collectives_.stats().bytes_sent;
    std::vector<bool> active;
    int leaf = 0;  // the first of this round
    for (const MicroBatches& share : shards_.shares) {
      const int done = micro_batches_before(share, round, rounds_);
      active.push_back(micro_batches_before(share, round + 1, rounds_) > done);
      leaf += done;
    }
    BF_ASSIGN_OR_RETURN(const std::vector<std::span<float>> brought,
                        exchange_.exchange(bucket, active, floats_of(workspace_), report_));
    const ParameterRange mine = shards_.map.part(bucket, collectives_.rank());
    if (deterministic_) {
      const trace::Scope scope(trace::Zone::kGradientSum,
                               sum_work(static_cast<std::size_t>(mine.size()) * brought.size()));
      add_leaves(held_, gradients_, mine, brought, leaf, round + 1 == rounds_ ? LeavesLeft::kNone : LeavesLeft::kSome);
    } else {
      add_all(brought, in(gradients_, mine), round > 0);
    }
    // The workspace of an idle rank may have gradients of its next micro-batch already.
    if (active[static_cast<std::size_t>(collectives_.rank())]) release_from(shards_.map.buckets()[bucket].begin);
    if (round + 1 == rounds_) BF_TRY(send_to_mirrors(shards_.map, collectives_, bucket, gradients_, report_));
    const std::uint64_t sent = collectives_.stats().bytes_sent - before;
    report_.bytes_sent += sent;
    span.set_work({.number = static_cast<std::uint32_t>(bucket), .bytes = sent});
    report_.communication_s += span.end_s();
    return {};
  }

  /// Everything from this element on is done with: its pages, some of which buckets share.
  void release_from(std::int64_t element) {
    const std::uint64_t page = workspace_.page_bytes();
    const std::uint64_t begin = (static_cast<std::uint64_t>(element) * sizeof(float) + page - 1) / page * page;
    if (begin < released_from_) workspace_.release(begin, released_from_);
    released_from_ = element == 0 ? workspace_.bytes() : std::min(released_from_, begin);
  }

  Collectives& collectives_;
  const std::span<float> gradients_;
  const ShardedGradients shards_;
  const bool deterministic_;
  AlignedBuffer workspace_;                // sparse, flat
  const std::vector<AlignedBuffer> held_;  // likewise; the subtrees of the rounds so far, in this rank's part
  PartExchange exchange_;
  std::uint64_t released_from_ = workspace_.bytes();  // of the workspace, in this round; the queue's
  const int rounds_;
  std::int64_t most_on_their_way_ = 0;  // elements
  int round_ = 0;
  std::size_t next_ = 0;  // the bucket after the next one to go
  bool in_step_ = false;
  std::deque<OnItsWay> on_their_way_;
  double exposed_s_ = 0.0, waited_s_ = 0.0;  // so far in the step; since it was asked
  ReduceReport report_{};                    // the queue's while buckets are on their way
};

}  // namespace

std::size_t held_between_rounds(const std::vector<MicroBatches>& shares) {
  const int rounds = rounds_of(shares, {});
  std::size_t most = 0;
  for (int round = 1; round < rounds; ++round) {
    int leaves = 0;
    for (const MicroBatches& share : shares) leaves += micro_batches_before(share, round, rounds);
    most = std::max(most, maximal_subtrees(0, leaves).size());
  }
  return most;
}

Status send_to_mirrors(const ShardMap& map, Collectives& collectives, std::size_t bucket, std::span<float> gradients,
                       ReduceReport& report) {
  const int me = collectives.rank();
  if (map.mirrors_of(me).empty()) return {};
  std::vector<ByteSpan> to(static_cast<std::size_t>(map.ranks()));
  std::vector<MutableByteSpan> from(to.size());
  for (const int mirror : map.mirrors_of(me)) {
    to[static_cast<std::size_t>(mirror)] = std::as_bytes(in(gradients, map.part(bucket, me)));
    report.formula_bytes += to[static_cast<std::size_t>(mirror)].size();
    report.uncompressed_bytes += to[static_cast<std::size_t>(mirror)].size();
  }
  for (const int other : map.mirrored_by(me)) {
    from[static_cast<std::size_t>(other)] = std::as_writable_bytes(in(gradients, map.part(bucket, other)));
  }
  return collectives.all_to_all(to, from);
}

Result<std::unique_ptr<GradientReducer>> make_sharded_reducer(const ReducerOptions& options) {
  const ShardedGradients& shards = *options.shards;
  if (shards.exchange == ShardedGradients::Exchange::kNone) return make_stage_reducer(options);
  if (shards.exchange == ShardedGradients::Exchange::kStep) {
    std::unique_ptr<BucketSum> sum;
    if (options.deterministic) {
      sum = make_canonical_sum(*options.collectives, options.gradients, {.team = options.team, .shards = &shards.map});
    } else {
      sum = std::make_unique<ScatterSum>(shards.map, *options.collectives, options.gradients);
    }
    std::vector<ParameterRange> backward(shards.map.buckets().rbegin(), shards.map.buckets().rend());
    return std::make_unique<BucketReducer>(*options.collectives, options.gradients, std::move(backward), std::move(sum),
                                           shards.queue);
  }
  BF_ASSIGN_OR_RETURN(AlignedBuffer workspace,
                      AlignedBuffer::create_sparse(options.gradients.size_bytes(), PageKind::kHuge));
  std::vector<AlignedBuffer> held;
  for (std::size_t i = 0; options.deterministic && i < held_between_rounds(shards.shares); ++i) {
    BF_ASSIGN_OR_RETURN(AlignedBuffer made,
                        AlignedBuffer::create_sparse(options.gradients.size_bytes(), PageKind::kSmall));
    held.push_back(std::move(made));
  }
  return std::make_unique<RoundReducer>(options, std::move(workspace), std::move(held));
}

}  // namespace butterfly
