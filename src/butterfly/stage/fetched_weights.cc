#include "butterfly/stage/fetched_weights.h"

#include <utility>

namespace butterfly {

FetchedWeights::FetchedWeights(const ModelConfig& config, const StageAssignment& assignment, WeightFetcher& fetcher)
    : fetcher_(&fetcher) {
  const auto add = [&](const WeightRange& range) {
    std::vector<WeightInfo> group;
    for (WeightInfo& info : expected_weights(config, range)) {
      // The head of a tied model is the embedding: one copy where a node has both.
      if (group_of_.emplace(info.name, groups_.size()).second) group.push_back(std::move(info));
    }
    groups_.push_back(std::move(group));
  };
  if (assignment.embedding) add({.embedding = true});
  for (int layer = assignment.first_layer; layer < assignment.last_layer; ++layer)
    add({.first_layer = layer, .last_layer = layer + 1});
  if (assignment.head) add({.head = true});
}

std::vector<WeightInfo> FetchedWeights::list() const {
  std::vector<WeightInfo> all;
  for (const auto& group : groups_) all.insert(all.end(), group.begin(), group.end());
  return all;
}

bool FetchedWeights::contains(const std::string& name) const {
  return group_of_.contains(name);
}

Status FetchedWeights::fetch_group(std::size_t group) const {
  std::vector<WeightRequest> wanted;
  for (const WeightInfo& info : groups_[group]) {
    // The stored type is the coordinator's to say; no type needs more than 4 bytes an element.
    wanted.push_back({info.name, static_cast<std::uint64_t>(info.rows) * static_cast<std::uint64_t>(info.cols) * 4});
  }
  return fetcher_->fetch(wanted, [this](const std::string& name, NamedBytes weight) -> Status {
    if (weight.type > static_cast<std::uint32_t>(DType::kQ4_0)) {
      return make_error(ErrorCode::kBadData, "{} came with type {}, which this program does not know", name,
                        weight.type);
    }
    const auto type = static_cast<DType>(weight.type);
    const auto row = weight.cols > 0 ? row_bytes(type, static_cast<std::uint64_t>(weight.cols)) : std::nullopt;
    if (weight.rows <= 0 || !row ||
        checked_multiply(*row, static_cast<std::uint64_t>(weight.rows)) != weight.bytes.size()) {
      return make_error(ErrorCode::kBadData, "{} came as {} x {} {} with {} bytes", name, weight.rows, weight.cols,
                        to_string(type), weight.bytes.size());
    }
    waiting_[name] = {type, weight.rows, weight.cols, weight.bytes, std::move(weight.owner)};
    return {};
  });
}

Result<WeightView> FetchedWeights::find(const std::string& name) const {
  const auto group = group_of_.find(name);
  if (group == group_of_.end()) return make_error(ErrorCode::kNotFound, "{} is no weight of this stage", name);
  if (!waiting_.contains(name)) BF_TRY(fetch_group(group->second));
  const auto found = waiting_.find(name);
  if (found == waiting_.end()) return make_error(ErrorCode::kNotFound, "{} did not come from the coordinator", name);
  WeightView view = std::move(found->second);
  waiting_.erase(found);
  return view;
}

WeightProvider provide_weights(std::shared_ptr<const WeightSource> source) {
  return [source = std::move(source)](const std::string& name) -> Result<NamedBytes> {
    BF_ASSIGN_OR_RETURN(WeightView view, source->find(name));
    NamedBytes weight;
    weight.type = static_cast<std::uint32_t>(view.type);
    weight.rows = view.rows;
    weight.cols = view.cols;
    weight.bytes = view.bytes;
    weight.owner = view.owner ? std::move(view.owner) : std::static_pointer_cast<const void>(source);
    return weight;
  };
}

}  // namespace butterfly
