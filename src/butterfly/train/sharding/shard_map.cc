#include "butterfly/train/sharding/shard_map.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "butterfly/base/check.h"

namespace butterfly {
namespace {

/// Where the chunks of one bucket begin, and its end.
std::vector<std::int64_t> borders_of(std::span<const UpdateChunk> chunks, ParameterRange bucket) {
  std::vector<std::int64_t> borders{bucket.begin};
  for (const UpdateChunk& chunk : chunks) {
    if (chunk.range.begin > bucket.begin && chunk.range.begin < bucket.end) borders.push_back(chunk.range.begin);
  }
  borders.push_back(bucket.end);
  return borders;
}

std::int64_t nearest(const std::vector<std::int64_t>& borders, double place) {
  return *std::ranges::min_element(borders, {},
                                   [&](std::int64_t border) { return std::abs(static_cast<double>(border) - place); });
}

/// A unit's range in pieces of whole chunks: each ends with the chunk that makes it as large as a bucket.
void add_buckets(std::span<const UpdateChunk> chunks, ParameterRange range, std::int64_t bucket_bytes,
                 std::vector<ParameterRange>& buckets) {
  const std::int64_t most = std::max<std::int64_t>(1, bucket_bytes / static_cast<std::int64_t>(sizeof(float)));
  std::int64_t begin = range.begin;
  for (const std::int64_t border : borders_of(chunks, range)) {
    if (border == range.end || border - begin < most) continue;
    buckets.push_back({.begin = begin, .end = border});
    begin = border;
  }
  if (begin < range.end) buckets.push_back({.begin = begin, .end = range.end});
}

}  // namespace

std::vector<UpdateChunk> update_chunks(const ParameterSet& parameters) {
  std::vector<UpdateChunk> chunks;
  for (const Parameter& parameter : parameters.list()) {
    for (std::int64_t at = 0; at < parameter.size(); at += UpdateChunk::kElements) {
      const std::int64_t size = std::min(UpdateChunk::kElements, parameter.size() - at);
      chunks.push_back({.range = {.begin = parameter.offset + at, .end = parameter.offset + at + size},
                        .decayed = parameter.decay == DecayGroup::kDecayed,
                        .frozen = parameter.frozen});
    }
  }
  return chunks;
}

ShardMap::ShardMap(const ParameterSet& parameters, std::span<const ParameterUnit> units, const ShardOptions& options)
    : options_(options) {
  BF_CHECK(options.group > 0 && options.ranks % options.group == 0, "groups of equal size");
  if (options_.shares.empty()) options_.shares.assign(static_cast<std::size_t>(options.group), 1.0);
  BF_CHECK(options_.shares.size() == static_cast<std::size_t>(options.group), "a share for each member of a group");
  const std::vector<UpdateChunk> chunks = update_chunks(parameters);
  std::vector<ParameterRange> ranges;
  for (const ParameterUnit& unit : units) ranges.insert(ranges.end(), unit.ranges.begin(), unit.ranges.end());
  std::ranges::sort(ranges, {}, &ParameterRange::begin);
  for (const ParameterRange& range : ranges) add_buckets(chunks, range, options.bucket_bytes, buckets_);
  for (const ParameterUnit& unit : units) {
    units_.emplace_back();
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      const bool inside = std::ranges::any_of(unit.ranges, [&](const ParameterRange& range) {
        return range.begin <= buckets_[bucket].begin && buckets_[bucket].end <= range.end;
      });
      if (inside) units_.back().push_back(bucket);
    }
  }
  options_.owners.empty() ? cut(chunks) : give_units();
}

void ShardMap::give_units() {
  BF_CHECK(options_.owners.size() == units_.size(), "an owner for each unit");
  cuts_.resize(buckets_.size());
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const int owner = options_.owners[unit];
    BF_CHECK(0 <= owner && owner < options_.group, "an owner beyond the group");
    for (const std::size_t bucket : units_[unit]) {
      cuts_[bucket].assign(static_cast<std::size_t>(options_.group) + 1, buckets_[bucket].end);
      std::fill_n(cuts_[bucket].begin(), owner + 1, buckets_[bucket].begin);
    }
  }
}

void ShardMap::cut(std::span<const UpdateChunk> chunks) {
  const double all = std::accumulate(options_.shares.begin(), options_.shares.end(), 0.0);
  std::vector<double> held(options_.shares.size(), 0.0);  // by the first members together, in the buckets so far
  double total = 0.0;
  for (const ParameterRange& bucket : buckets_) {
    const std::vector<std::int64_t> borders = borders_of(chunks, bucket);
    total += static_cast<double>(bucket.size());
    std::vector<std::int64_t> cuts{bucket.begin};
    double share = 0.0;
    for (std::size_t member = 0; member + 1 < held.size(); ++member) {
      share += options_.shares[member];
      const double place = static_cast<double>(bucket.begin) + share / all * total - held[member];
      cuts.push_back(std::max(cuts.back(), nearest(borders, place)));
      held[member] += static_cast<double>(cuts.back() - bucket.begin);
    }
    cuts.push_back(bucket.end);
    cuts_.push_back(std::move(cuts));
  }
}

std::int64_t ShardMap::largest_layer() const {
  std::int64_t largest = 0;
  for (int unit = units() > 1 ? 1 : 0; unit < units(); ++unit) {
    std::int64_t elements = 0;
    for (const std::size_t bucket : buckets_of(unit)) elements += buckets_[bucket].size();
    largest = std::max(largest, elements);
  }
  return largest;
}

ParameterRange ShardMap::part(std::size_t bucket, int rank) const {
  const auto member = static_cast<std::size_t>(rank % options_.group);
  return {.begin = cuts_[bucket][member], .end = cuts_[bucket][member + 1]};
}

std::vector<ParameterRange> ShardMap::owned(int rank) const {
  return parts_of({rank});
}

std::vector<ParameterRange> ShardMap::held(int rank) const {
  std::vector<int> all = mirrored_by(rank);
  all.push_back(rank);
  return parts_of(all);
}

std::vector<ParameterRange> ShardMap::parts_of(const std::vector<int>& ranks) const {
  std::vector<ParameterRange> ranges;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    std::vector<ParameterRange> here;
    for (const int rank : ranks) here.push_back(part(bucket, rank));
    std::ranges::sort(here, {}, &ParameterRange::begin);
    for (const ParameterRange& one : here) {
      if (one.size() == 0) continue;
      if (!ranges.empty() && ranges.back().end == one.begin) {
        ranges.back().end = one.end;
      } else {
        ranges.push_back(one);
      }
    }
  }
  return ranges;
}

std::vector<int> ShardMap::mirrors_of(int rank) const {
  std::vector<int> mirrors;
  const int group = options_.group, first = rank / group * group;
  for (int i = 1; i <= std::min(options_.mirrors, group - 1); ++i)
    mirrors.push_back(first + (rank - first + i) % group);
  return mirrors;
}

std::vector<int> ShardMap::mirrored_by(int rank) const {
  std::vector<int> mirrored;
  const int group = options_.group, first = rank / group * group;
  for (int i = 1; i <= std::min(options_.mirrors, group - 1); ++i) {
    mirrored.push_back(first + (rank - first + group - i) % group);
  }
  return mirrored;
}

std::vector<int> ShardMap::holders(int rank) const {
  std::vector<int> holders;
  const int group = options_.group, first = rank / group * group;
  for (int i = 0; i < options_.ranks / group; ++i) {
    const int same = (first + i * group) % options_.ranks + (rank - first);
    holders.push_back(same);
    for (const int mirror : mirrors_of(same)) holders.push_back(mirror);
  }
  return holders;
}

std::int64_t ShardMap::owned_elements(int rank) const {
  std::int64_t elements = 0;
  for (const ParameterRange& range : owned(rank)) elements += range.size();
  return elements;
}

}  // namespace butterfly
