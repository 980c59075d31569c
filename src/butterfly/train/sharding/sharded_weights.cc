#include "butterfly/train/sharding/sharded_weights.h"

#include <algorithm>
#include <utility>

#include "butterfly/base/hash/digest.h"
#include "butterfly/trace/timed_span.h"

namespace butterfly {

ShardedWeights::ShardedWeights(const ShardMap& map, Collectives& collectives, CollectiveQueue& queue,
                               ParameterSet& parameters, AfterUse after_use, const std::vector<ParameterRange>& stays)
    : map_(map),
      collectives_(collectives),
      queue_(queue),
      parameters_(parameters),
      after_use_(after_use),
      units_(static_cast<std::size_t>(map.units())),
      unit_of_(map.buckets().size()),
      stays_(map.buckets().size()) {
  for (std::size_t bucket = 0; bucket < stays_.size(); ++bucket) {
    const ParameterRange& range = map.buckets()[bucket];
    stays_[bucket] = std::ranges::any_of(
        stays, [&](const ParameterRange& one) { return one.begin <= range.begin && range.end <= one.end; });
  }
  for (int unit = 0; unit < map.units(); ++unit) {
    for (const std::size_t bucket : map.buckets_of(unit)) unit_of_[bucket] = unit;
  }
}

int ShardedWeights::after(int unit, Pass pass) const {
  if (pass == Pass::kForward) return unit + 1 < map_.units() ? unit + 1 : -1;
  if (unit == 0) return map_.units() - 1 > 0 ? map_.units() - 1 : -1;
  return unit > 1 ? unit - 1 : -1;
}

void ShardedWeights::submit(int unit) {
  Unit& state = units_[static_cast<std::size_t>(unit)];
  if (state.whole || state.operation != 0) return;
  for (const std::size_t bucket : map_.buckets_of(unit)) {
    state.operation = queue_.submit([this, bucket] { return run(bucket); });
  }
  if (state.operation == 0) state.whole = true;  // a unit without parameters
}

Result<bool> ShardedWeights::acquire(int unit, Pass pass) {
  submit(unit);
  if (const int next = after(unit, pass); next >= 0) submit(next);
  BF_TRY(gather(unit));
  return std::exchange(units_[static_cast<std::size_t>(unit)].fresh, false);
}

Status ShardedWeights::gather(int unit) {
  Unit& state = units_[static_cast<std::size_t>(unit)];
  submit(unit);
  if (state.whole) return {};
  const trace::TimedSpan waiting(trace::Zone::kWaitGradients);
  const Status gathered = queue_.wait(std::exchange(state.operation, 0));
  const double waited_s = waiting.end_s();
  stats_.exposed_s += waited_s;
  waited_s_ += waited_s;
  BF_TRY(gathered);
  state.whole = true;
  return {};
}

void ShardedWeights::release(int unit) {
  if (after_use_ == AfterUse::kKept) return;
  units_[static_cast<std::size_t>(unit)] = {};
  for (const std::size_t bucket : map_.buckets_of(unit)) {
    if (!stays_[bucket]) release_pages_of(map_.buckets()[bucket]);
  }
}

/// Those that no other bucket needs: a page is large, and neighbours may be on it.
void ShardedWeights::release_pages_of(ParameterRange range) {
  const std::int64_t page = parameters_.weight_page(), end = parameters_.padded_size();
  const auto is_free = [&](ParameterRange pages) {
    for (std::size_t bucket = 0; bucket < map_.buckets().size(); ++bucket) {
      const ParameterRange& other = map_.buckets()[bucket];
      const Unit& unit = units_[static_cast<std::size_t>(unit_of_[bucket])];
      const bool needed = unit.whole || unit.operation != 0 || stays_[bucket];
      if (needed && other.begin < pages.end && other.end > pages.begin) return false;
    }
    return true;
  };
  ParameterRange pages{.begin = range.begin / page * page, .end = std::min(end, (range.end + page - 1) / page * page)};
  if (!is_free({.begin = pages.begin, .end = std::min(pages.begin + page, pages.end)})) pages.begin += page;
  const std::int64_t last = (range.end - 1) / page * page;
  if (pages.begin < pages.end && !is_free({.begin = last, .end = pages.end})) pages.end = last;
  if (pages.begin < pages.end) parameters_.release_weights(pages);
}

void ShardedWeights::updated() {
  std::ranges::fill(units_, Unit{});
}

void ShardedWeights::set_whole() {
  std::ranges::fill(units_, Unit{.whole = true, .fresh = true, .operation = 0});
}

Result<std::string> ShardedWeights::hash() {
  std::vector<std::pair<std::int64_t, int>> order;  // the first bucket of a run of a unit's buckets
  for (int unit = 0; unit < map_.units(); ++unit) {
    for (const std::size_t bucket : map_.buckets_of(unit)) order.emplace_back(static_cast<std::int64_t>(bucket), unit);
  }
  std::ranges::sort(order);
  Sha256Hasher hasher;
  int held = -1;
  for (const auto& [bucket, unit] : order) {
    if (held != unit && held >= 0) release(held);
    BF_TRY(gather(unit));
    held = unit;
    const ParameterRange range = map_.buckets()[static_cast<std::size_t>(bucket)];
    hasher.add(std::as_bytes(
        parameters_.weights().subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()))));
  }
  if (held >= 0) release(held);
  const auto text = hasher.finish();
  if (!text) return make_error(ErrorCode::kUnsupported, "this library needs an OpenSSL with SHA-256");
  return *text;
}

GatherStats ShardedWeights::take_stats() {
  return std::exchange(stats_, {});
}

double ShardedWeights::take_waited_s() {
  return std::exchange(waited_s_, 0.0);
}

/// On the queue's thread.
Status ShardedWeights::run(std::size_t bucket) {
  const trace::TimedSpan span(trace::Zone::kReduceBucket);
  const int me = collectives_.rank(), first = me / map_.group() * map_.group();
  const auto bytes_of = [&](int rank) {
    const ParameterRange range = map_.part(bucket, rank);
    return std::as_writable_bytes(
        parameters_.weights().subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size())));
  };
  const std::uint64_t before = collectives_.stats().bytes_sent;
  if (const std::span<const float> own = std::as_const(parameters_).own_weights();
      own.data() != parameters_.weights().data()) {
    const ParameterRange mine = map_.part(bucket, me);
    std::copy_n(own.begin() + mine.begin, mine.size(), parameters_.weights().begin() + mine.begin);
  }
  std::vector<ByteSpan> to(static_cast<std::size_t>(map_.ranks()));
  std::vector<MutableByteSpan> from(to.size());
  for (int rank = first; rank < first + map_.group(); ++rank) {
    if (rank == me) continue;
    to[static_cast<std::size_t>(rank)] = bytes_of(me);
    from[static_cast<std::size_t>(rank)] = bytes_of(rank);
  }
  BF_TRY(collectives_.all_to_all(to, from));
  stats_.bytes_sent += collectives_.stats().bytes_sent - before;
  stats_.formula_bytes += static_cast<std::uint64_t>(map_.group() - 1) * bytes_of(me).size();
  stats_.communication_s += span.end_s();
  return {};
}

}  // namespace butterfly
