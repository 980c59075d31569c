#include "butterfly/stage/stage_parts.h"

#include <algorithm>
#include <set>

#include "butterfly/model/core/config_json.h"
#include "butterfly/plan/cost/cost.h"

namespace butterfly {
namespace {

int common(const SliceRange& a, const SliceRange& b) {
  return std::min(a.last, b.last) - std::max(a.first, b.first);
}

}  // namespace

void StageParts::set_model(const std::string& content, const ModelConfig& config) {
  const std::string identity = content + to_json(config);
  if (model_ == identity) return;
  drop_all();
  cache_.set_model(content.empty() ? std::string() : identity);
  model_ = identity;
}

void StageParts::drop_all() {
  PackedCache cache = std::move(cache_);
  *this = StageParts();
  cache_ = std::move(cache);
}

void StageParts::forget_model() {
  cache_.forget_model();
  drop_all();
}

namespace {

/// How the file of a part is called: what it is and which slices of it.
std::string part_name(const std::string& what, const HeldSlices& slices) {
  return fmt::format("{}-{}-{}-{}-{}", what, slices.first, slices.last, slices.experts.first, slices.experts.last);
}

/// Tells how far loading has come, in the bytes that the model of costs knows of each part.
class LoadTally {
 public:
  LoadTally(const LoadOptions& options, std::uint64_t missing_bytes) : options_(options), missing_(missing_bytes) {
    if (options.progress && missing_ > 0) options.progress({});
  }

  void loaded(std::uint64_t expected_bytes, std::uint64_t packed_bytes) {
    if (!options_.progress) return;
    loaded_ += expected_bytes;
    progress_.packed_bytes += packed_bytes;
    progress_.done = static_cast<double>(loaded_) / static_cast<double>(missing_);
    options_.progress(progress_);
  }

 private:
  const LoadOptions& options_;
  const std::uint64_t missing_;
  std::uint64_t loaded_ = 0;
  LoadProgress progress_;
};

}  // namespace

Status StageParts::complete(const ModelConfig& config, const StageAssignment& assignment,
                            const WeightSourceFinder& find_source, ThreadTeam& team, const LoadOptions& options) {
  tied_ = config.tied_head && config.output == OutputKind::kLogits;
  layers_of_block_ = config.layer_groups > 0 ? config.layers / config.layer_groups : 1;
  std::shared_ptr<const WeightSource> found;
  const auto source = [&]() -> Result<std::shared_ptr<const WeightSource>> {
    if (options.stop.stop_requested()) return make_error(ErrorCode::kCancelled, "loading was cancelled");
    if (!found) {
      BF_ASSIGN_OR_RETURN(found, find_source());
    }
    return found;
  };
  const HeldSlices& slices = assignment.slices;
  BF_ASSIGN_OR_RETURN(const ModelCost cost, model_cost(config, DType::kF16));
  const ShareCost share = cost.share(slices);
  BF_ASSIGN_OR_RETURN(const std::uint64_t missing, missing_bytes(config, std::span(&assignment, 1)));
  LoadTally tally(options, missing);
  if (assignment.embedding && !embeddings_.contains(slices)) {
    BF_ASSIGN_OR_RETURN(Embedding embedding,
                        cache_.load(part_name("embedding", slices), team, source, [&](const WeightSource& weights) {
                          return Embedding::load(config, weights, team, slices);
                        }));
    tally.loaded(share.embedding.weight_bytes, embedding.packed_bytes());
    embeddings_[slices] = std::make_shared<const Embedding>(std::move(embedding));
  }
  for (int layer = assignment.first_layer; layer < assignment.last_layer; ++layer) {
    if (blocks_.contains({weight_layer(layer), slices})) continue;
    const std::string name = part_name(fmt::format("block-{}", weight_layer(layer)), slices);
    BF_ASSIGN_OR_RETURN(Block block, cache_.load(name, team, source, [&](const WeightSource& weights) {
      return Block::load(config, layer, weights, team, slices);
    }));
    tally.loaded(share.stored_bytes(cost.kind(layer)), block.packed_bytes());
    blocks_[{weight_layer(layer), slices}] = std::make_shared<const Block>(std::move(block));
  }
  if (assignment.head && !heads_.contains(slices)) {
    const auto embedding = embeddings_.find(slices);
    const Embedding* table = embedding == embeddings_.end() ? nullptr : embedding->second.get();
    const std::string name = part_name(config.tied_head && table != nullptr ? "head-tied" : "head", slices);
    BF_ASSIGN_OR_RETURN(Head head, cache_.load(name, team, source, [&](const WeightSource& weights) {
      return Head::load(config, weights, table, team, slices);
    }));
    tally.loaded(share.head.weight_bytes, config.tied_head && table != nullptr ? 0 : head.packed_bytes());
    heads_[slices] = std::make_shared<const Head>(std::move(head));
  }
  return {};
}

std::map<std::string, KeptMatrix> StageParts::kept_for(const ModelConfig& config,
                                                       const StageAssignment& assignment) const {
  std::map<std::string, KeptMatrix> kept;
  std::map<std::string, int> slices_of;  // that both have
  using Matrix = std::shared_ptr<const PackedMatrix>;
  const auto offer = [&](const WeightRange& range, const HeldSlices& slices, const auto& matrix_of) {
    const int shared_slices = common(slices.slices(), assignment.slices.slices());
    const int shared_experts = common(slices.experts, assignment.slices.experts);
    if (shared_slices <= 0 && shared_experts <= 0) return;
    for (const ExpectedPart& expected : expected_parts(config, range, slices)) {
      const std::string& name = expected.whole.name;
      const int shared = name.find("_exps.") != name.npos ? shared_experts : shared_slices;
      const Matrix matrix = matrix_of(std::string_view(name));
      if (matrix == nullptr || slices_of[name] >= shared) continue;
      slices_of[name] = shared;
      kept[name] = {.matrix = matrix, .part = expected.part};
    }
  };
  for (const auto& [key, block] : blocks_) {
    const auto& [layer, slices] = key;
    const int any = layer * layers_of_block_;
    if (any + layers_of_block_ <= assignment.first_layer || any >= assignment.last_layer) continue;
    const std::size_t prefix = fmt::format("blk.{}.", layer).size();
    offer({.first_layer = any, .last_layer = any + 1}, slices, [&, &part = block](std::string_view name) -> Matrix {
      if (!name.ends_with(".weight")) return nullptr;
      name.remove_suffix(std::string_view(".weight").size());
      return {part, part->matrix(name.substr(prefix))};
    });
  }
  for (const auto& [slices, embedding] : embeddings_) {
    offer({.embedding = true}, slices, [&, &part = embedding](std::string_view name) -> Matrix {
      if (name == "token_embd.weight") return part->table();
      return name == "position_embd.weight" ? part->positions() : nullptr;
    });
  }
  for (const auto& [slices, head] : heads_) {
    offer({.head = true}, slices, [&, &part = head](std::string_view name) -> Matrix {
      return name == (config.tied_head ? "token_embd.weight" : "output.weight") ? part->table() : nullptr;
    });
  }
  return kept;
}

Result<std::uint64_t> StageParts::missing_bytes(const ModelConfig& config,
                                                std::span<const StageAssignment> assignments) const {
  BF_ASSIGN_OR_RETURN(const ModelCost cost, model_cost(config, DType::kF16));
  std::uint64_t bytes = 0;
  for (const StageAssignment& assignment : assignments) {
    const HeldSlices& slices = assignment.slices;
    const ShareCost share = cost.share(slices);
    if (assignment.embedding && !embeddings_.contains(slices)) bytes += share.embedding.weight_bytes;
    std::set<int> missing;  // layers that share weights count once
    for (int layer = assignment.first_layer; layer < assignment.last_layer; ++layer) {
      if (blocks_.contains({config.weight_layer(layer), slices}) ||
          !missing.insert(config.weight_layer(layer)).second) {
        continue;
      }
      bytes += share.stored_bytes(cost.kind(layer));
    }
    if (assignment.head && !heads_.contains(slices)) bytes += share.head.weight_bytes;
  }
  return bytes;
}

void StageParts::trim(std::span<const StageAssignment> assignments, std::uint64_t bytes_max) {
  const auto drop = [&](auto& parts, const auto& needs) {
    for (auto it = parts.begin(); it != parts.end() && bytes() > bytes_max;) {
      const bool needed = std::ranges::any_of(assignments, [&](const auto& one) { return needs(one, it->first); });
      it = needed ? std::next(it) : parts.erase(it);
    }
  };
  using Slices = const HeldSlices&;
  drop(embeddings_, [](const StageAssignment& one, Slices slices) { return one.embedding && slices == one.slices; });
  drop(heads_, [](const StageAssignment& one, Slices slices) { return one.head && slices == one.slices; });
  drop(blocks_, [this](const StageAssignment& one, const std::pair<int, HeldSlices>& key) {
    if (one.layers() == 0) return false;
    const bool within = key.first >= weight_layer(one.first_layer) && key.first <= weight_layer(one.last_layer - 1);
    return within && key.second == one.slices;
  });
}

std::uint64_t StageParts::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [slices, embedding] : embeddings_) bytes += embedding->packed_bytes();
  for (const auto& [key, block] : blocks_) bytes += block->packed_bytes();
  for (const auto& [slices, head] : heads_) {
    if (!(tied_ && embeddings_.contains(slices))) bytes += head->packed_bytes();
  }
  return bytes;
}

std::uint64_t StageParts::bytes(const StageAssignment& assignment) const {
  const HeldSlices& slices = assignment.slices;
  std::uint64_t bytes = assignment.embedding ? embedding(slices)->packed_bytes() : 0;
  for (int layer = assignment.first_layer; layer < assignment.last_layer; ++layer) {
    const bool again = layer > assignment.first_layer && weight_layer(layer) == weight_layer(layer - 1);
    if (!again) bytes += block(layer, slices)->packed_bytes();
  }
  if (assignment.head && !(assignment.embedding && tied_)) bytes += head(slices)->packed_bytes();
  return bytes;
}

}  // namespace butterfly
