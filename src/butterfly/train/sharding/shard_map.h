// Which rank holds which part of a run's state. The flat arrays are cut into buckets, none of which crosses the border
// of a unit (TrainableTransformer::units()), and each bucket into a part for every rank, at borders of the optimizer's
// chunks: so a rank computes its update and its part of the gradients' norm as one rank would.
// Immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "butterfly/model/core/parameters.h"
#include "butterfly/model/training/trainable_transformer.h"

namespace butterfly {

/// What one call of an optimizer's kernel takes: part of a single parameter. Cuts are a property of the parameters,
/// never of threads or ranks. 64 KiB each of weight, gradient and two moments pass through a core's second cache.
struct UpdateChunk {
  static constexpr std::int64_t kElements = 16 * 1024;  // at most
  ParameterRange range{};
  bool decayed = false;
  bool frozen = false;
};
/// Ascending.
std::vector<UpdateChunk> update_chunks(const ParameterSet& parameters);

struct ShardOptions {
  int ranks = 1;
  /// Ranks [k group, (k + 1) group) hold all of the state together, each group of them the same. Divides `ranks`.
  int group = 1;
  /// How many of the next members of its group hold a copy of a rank's part, and update it as the rank does.
  int mirrors = 0;
  std::vector<double> shares{};  // of a group's members, relative; empty: equal
  std::vector<int> owners{};     // of a group's members, who has each unit as a whole; empty: shares of all units
  std::int64_t bucket_bytes = 4 << 20;
};

class ShardMap {
 public:
  /// Parts as near to the shares as chunks allow, over the whole and not in each bucket; or whole units.
  ShardMap(const ParameterSet& parameters, std::span<const ParameterUnit> units, const ShardOptions& options);

  int ranks() const { return options_.ranks; }
  int group() const { return options_.group; }
  /// Ascending; together they are the flat arrays.
  const std::vector<ParameterRange>& buckets() const { return buckets_; }
  /// Of a unit, by index, ascending.
  const std::vector<std::size_t>& buckets_of(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  int units() const { return static_cast<int>(units_.size()); }
  /// Elements of the largest unit but embedding and head; of those where there is no other.
  std::int64_t largest_layer() const;
  ParameterRange part(std::size_t bucket, int rank) const;
  /// All parts of a rank, ascending, neighbours joined.
  std::vector<ParameterRange> owned(int rank) const;
  std::int64_t owned_elements(int rank) const;
  /// The ranks that hold what `rank` owns: itself, its mirrors, and the same of other groups.
  std::vector<int> holders(int rank) const;
  std::vector<int> mirrors_of(int rank) const;
  /// Whose mirror `rank` is.
  std::vector<int> mirrored_by(int rank) const;
  /// What `rank` owns or mirrors, ascending, neighbours joined.
  std::vector<ParameterRange> held(int rank) const;

 private:
  std::vector<ParameterRange> parts_of(const std::vector<int>& ranks) const;
  void cut(std::span<const UpdateChunk> chunks);
  void give_units();

  ShardOptions options_;
  std::vector<ParameterRange> buckets_;
  std::vector<std::vector<std::int64_t>> cuts_;  // of each bucket: group + 1 borders
  std::vector<std::vector<std::size_t>> units_;  // buckets of each
};

}  // namespace butterfly
