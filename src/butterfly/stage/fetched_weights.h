// Weights that come from a coordinator, those parts alone that a share computes with, a block at a time: asking for the
// first weight of a block fetches them all, so that requests overlap and no more than one block lies around unpacked.
// Used by one thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "butterfly/cluster/worker/weights.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/stage/stage_parts.h"

namespace butterfly {

class FetchedWeights final : public WeightSource {
 public:
  /// `fetcher` must outlive it. What `kept` has of a part is taken from there, and the rest of the part is fetched.
  FetchedWeights(const ModelConfig& config, const StageAssignment& assignment, WeightFetcher& fetcher,
                 std::map<std::string, KeptMatrix> kept = {});

  /// The weights of which it has parts.
  std::vector<WeightInfo> list() const override;
  /// Errors: those of find_part, kInvalidArgument where the share has a part of it only.
  Result<WeightView> find(const std::string& name) const override;
  /// The share's part of the weight, given once. Errors: kNotFound, kInvalidArgument for another part than the share's,
  /// those of WeightFetcher::fetch, kBadData for bytes that are not of the part's shape.
  Result<WeightView> find_part(const std::string& name, const WeightPart& part) const override;
  bool contains(const std::string& name) const override;
  std::string description() const override { return "the coordinator"; }

 private:
  struct Place {
    std::size_t group = 0, index = 0;
  };
  struct Waiting {
    WeightView view{};
    MutableByteSpan filling{};  // where the part comes in pieces, of `view`
  };
  const ExpectedPart& at(const Place& place) const { return groups_[place.group][place.index]; }
  Status fetch_group(std::size_t group) const;
  std::vector<WeightPart> pieces_of(const ExpectedPart& expected) const;
  Status take(const std::string& name, const WeightPart& piece, NamedBytes weight) const;

  WeightFetcher* fetcher_;
  std::vector<std::vector<ExpectedPart>> groups_;  // fetched at once
  std::map<std::string, Place> places_;
  const std::map<std::string, KeptMatrix> kept_;
  mutable std::map<std::string, Waiting> waiting_;
};

/// The coordinator's side: parts of a checkpoint's weights by name. What is not stored row after row is copied.
WeightProvider provide_weights(std::shared_ptr<const WeightSource> source);

}  // namespace butterfly
