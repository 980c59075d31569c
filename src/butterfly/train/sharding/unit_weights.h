// The whole model of ranks that hold parts of its weights, for what rank 0 does with it: each unit is gathered when a
// weight of it is asked for, so that no rank holds more than one beside its own part. Used by the thread that trains.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "butterfly/model/core/parameters.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/train/sharding/shard_map.h"
#include "butterfly/train/sharding/sharded_weights.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// Rank 0's side, while all others are in give_units().
class UnitWeights final : public WeightSource {
 public:
  /// All borrowed. `description` names them in messages.
  UnitWeights(const ParameterSet& parameters, const ShardMap& map, ShardedWeights& weights, Collectives& collectives,
              const std::string& description);

  std::vector<WeightInfo> list() const override { return parameters_->list(); }
  bool contains(const std::string& name) const override { return parameters_->contains(name); }
  std::string description() const override { return parameters_->description(); }
  /// A view of it, until a weight of another unit is asked for. Errors: kNotFound; those of Collectives.
  Result<WeightView> find(const std::string& name) const override;

  /// Nothing more will be asked for: ends give_units() on the other ranks. Errors: those of Collectives.
  Status finish();

 private:
  int unit_of(const std::string& name) const;

  const std::unique_ptr<const WeightSource> parameters_;
  const ParameterSet& all_;
  const ShardMap& map_;
  ShardedWeights& weights_;
  Collectives& collectives_;
  mutable int held_ = -1;  // the unit that is here
};

/// Takes part in gathering what rank 0 asks for, until it has all. Errors: those of Collectives.
Status give_units(ShardedWeights& weights, Collectives& collectives);

}  // namespace butterfly
