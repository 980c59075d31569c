#include "butterfly/stage/stage_parts.h"

#include "butterfly/plan/cost.h"

namespace butterfly {

void StageParts::set_model(const std::string& identity) {
  if (model_ == identity) return;
  *this = {};
  model_ = identity;
}

Status StageParts::complete(const ModelConfig& config, const StageAssignment& assignment,
                            const WeightSourceFinder& find_source, ThreadTeam& team, const std::stop_token& stop) {
  tied_ = config.tied_head;
  std::shared_ptr<const WeightSource> found;
  const auto source = [&]() -> Result<const WeightSource*> {
    if (stop.stop_requested()) return make_error(ErrorCode::kCancelled, "loading was cancelled");
    if (!found) {
      BF_ASSIGN_OR_RETURN(found, find_source());
    }
    return found.get();
  };
  if (assignment.embedding && !embedding_) {
    BF_ASSIGN_OR_RETURN(const WeightSource* weights, source());
    BF_ASSIGN_OR_RETURN(Embedding embedding, Embedding::load(config, *weights, team));
    embedding_ = std::make_shared<const Embedding>(std::move(embedding));
  }
  for (int layer = assignment.first_layer; layer < assignment.last_layer; ++layer) {
    if (blocks_.contains(layer)) continue;
    BF_ASSIGN_OR_RETURN(const WeightSource* weights, source());
    BF_ASSIGN_OR_RETURN(Block block, Block::load(config, layer, *weights, team));
    blocks_[layer] = std::make_shared<const Block>(std::move(block));
  }
  if (assignment.head && !head_) {
    BF_ASSIGN_OR_RETURN(const WeightSource* weights, source());
    BF_ASSIGN_OR_RETURN(Head head, Head::load(config, *weights, embedding_.get(), team));
    head_ = std::make_shared<const Head>(std::move(head));
  }
  return {};
}

Result<std::uint64_t> StageParts::missing_bytes(const ModelConfig& config, const StageAssignment& assignment) const {
  BF_ASSIGN_OR_RETURN(const ModelCost cost, model_cost(config, DType::kF16));
  std::uint64_t bytes = assignment.embedding && !embedding_ ? cost.embedding.weight_bytes : 0;
  for (int layer = assignment.first_layer; layer < assignment.last_layer; ++layer) {
    if (!blocks_.contains(layer)) bytes += cost.block.weight_bytes;
  }
  return bytes + (assignment.head && !head_ ? cost.head.weight_bytes : 0);
}

void StageParts::trim(const StageAssignment& assignment, std::uint64_t bytes_max) {
  if (!assignment.embedding && bytes() > bytes_max) embedding_.reset();
  if (!assignment.head && bytes() > bytes_max) head_.reset();
  for (auto it = blocks_.begin(); it != blocks_.end() && bytes() > bytes_max;) {
    const bool needed = it->first >= assignment.first_layer && it->first < assignment.last_layer;
    it = needed ? std::next(it) : blocks_.erase(it);
  }
}

std::uint64_t StageParts::bytes() const {
  std::uint64_t bytes = embedding_ ? embedding_->packed_bytes() : 0;
  for (const auto& [layer, block] : blocks_) bytes += block->packed_bytes();
  if (head_ && !(embedding_ && tied_)) bytes += head_->packed_bytes();
  return bytes;
}

std::uint64_t StageParts::bytes(const StageAssignment& assignment) const {
  std::uint64_t bytes = assignment.embedding ? embedding_->packed_bytes() : 0;
  for (int layer = assignment.first_layer; layer < assignment.last_layer; ++layer)
    bytes += block(layer)->packed_bytes();
  if (assignment.head && !(assignment.embedding && tied_)) bytes += head_->packed_bytes();
  return bytes;
}

}  // namespace butterfly
