// The learned bias of attention scores by the distance between query and key (RelativeConfig), of a shard's heads.
// Immutable after loading, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/shard.h"
#include "butterfly/model/core/weights.h"

namespace butterfly {

/// The bucket of keys that stand `distance` positions behind their query (before it where negative). kBoth: an
/// encoder's layer, whose queries see both directions.
enum class Directions : std::uint8_t { kBackwards, kBoth };
int relative_bucket(const RelativeConfig& relative, Directions directions, std::int64_t distance);

class RelativeBias {
 public:
  /// The table `name` [buckets, heads]. Errors: those of WeightSource::find_part; kUnsupported for a type in blocks.
  static Result<RelativeBias> load(const ModelConfig& config, int layer, const WeightSource& source,
                                   const std::string& name, const Shard& shard);

  /// biases[i] = that of a key at distance first + i, for one of the shard's heads.
  void fill(std::int64_t head, std::int64_t first, std::span<float> biases) const;

  std::uint64_t bytes() const { return by_distance_.size() * sizeof(float); }

 private:
  std::int64_t reach_ = 0;          // distances beyond it are in the buckets of those at it
  std::vector<float> by_distance_;  // [heads][2 * reach + 1]
};

}  // namespace butterfly
