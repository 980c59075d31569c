#include "butterfly/train/sharding/unit_weights.h"

#include <span>
#include <utility>

#include "butterfly/model/core/parameter_weights.h"
#include "butterfly/train/sharding/share_numbers.h"

namespace butterfly {
namespace {

constexpr int kNoUnit = -1;

/// What rank 0 wants next; others pass kNoUnit, and learn it.
Result<int> next_unit(Collectives& collectives, int wanted) {
  double number = 1.0 + wanted;
  BF_TRY(share_numbers(&collectives, std::span(&number, 1)));
  return static_cast<int>(number) - 1;
}

}  // namespace

UnitWeights::UnitWeights(const ParameterSet& parameters, const ShardMap& map, ShardedWeights& weights,
                         Collectives& collectives, const std::string& description)
    : parameters_(export_weights(parameters, description)),
      all_(parameters),
      map_(map),
      weights_(weights),
      collectives_(collectives) {}

int UnitWeights::unit_of(const std::string& name) const {
  const auto parameter = all_.find(name);
  if (!parameter) return kNoUnit;
  for (int unit = 0; unit < map_.units(); ++unit) {
    for (const std::size_t bucket : map_.buckets_of(unit)) {
      const ParameterRange& range = map_.buckets()[bucket];
      if (range.begin <= (*parameter)->offset && (*parameter)->offset < range.end) return unit;
    }
  }
  return kNoUnit;
}

Result<WeightView> UnitWeights::find(const std::string& name) const {
  const int unit = unit_of(name);
  if (unit != kNoUnit && unit != held_) {
    if (held_ != kNoUnit) weights_.release(held_);
    held_ = unit;
    BF_TRY(next_unit(collectives_, unit));
    BF_TRY(weights_.gather(unit));
  }
  return parameters_->find(name);
}

Status UnitWeights::finish() {
  if (held_ != kNoUnit) weights_.release(std::exchange(held_, kNoUnit));
  BF_TRY(next_unit(collectives_, kNoUnit));
  return {};
}

Status give_units(ShardedWeights& weights, Collectives& collectives) {
  while (true) {
    BF_ASSIGN_OR_RETURN(const int unit, next_unit(collectives, kNoUnit));
    if (unit == kNoUnit) return {};
    BF_TRY(weights.gather(unit));
    weights.release(unit);
  }
}

}  // namespace butterfly
