// Weights that come from a coordinator, a block at a time: asking for the first weight of a block fetches them all, so
// that requests overlap and no more than one block lies around unpacked. Used by one thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "butterfly/cluster/weights.h"
#include "butterfly/model/config.h"
#include "butterfly/model/weights.h"
#include "butterfly/plan/plan.h"

namespace butterfly {

class FetchedWeights final : public WeightSource {
 public:
  /// `fetcher` must outlive it.
  FetchedWeights(const ModelConfig& config, const StageAssignment& assignment, WeightFetcher& fetcher);

  std::vector<WeightInfo> list() const override;
  /// Each weight is given once. Errors: kNotFound, those of WeightFetcher::fetch, kBadData for bytes that do not fit
  /// the shape they came with.
  Result<WeightView> find(const std::string& name) const override;
  bool contains(const std::string& name) const override;
  std::string description() const override { return "the coordinator"; }

 private:
  Status fetch_group(std::size_t group) const;

  WeightFetcher* fetcher_;
  std::vector<std::vector<WeightInfo>> groups_;  // embedding, blocks, head
  std::map<std::string, std::size_t> group_of_;
  mutable std::map<std::string, WeightView> waiting_;
};

/// The coordinator's side: weights of a checkpoint by name.
WeightProvider provide_weights(std::shared_ptr<const WeightSource> source);

}  // namespace butterfly
