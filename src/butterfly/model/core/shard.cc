#include "butterfly/model/core/shard.h"

#include <algorithm>

namespace butterfly {
namespace {

/// Where the vocabulary of a lane begins; whole panels, so that no member pads.
std::int64_t vocab_at(const ModelConfig& config, int lane) {
  const std::int64_t panels = (config.vocab + kPanel - 1) / kPanel;
  return std::min<std::int64_t>(panels * lane / kLanes * kPanel, config.vocab);
}

}  // namespace

LaneBorders attention_lanes(const ModelConfig& config) {
  return LaneBorders::canonical(config.q_dim(), config.head_dim);
}

LaneBorders mlp_lanes(const ModelConfig& config) {
  return LaneBorders::canonical(config.ff_dim, 1);
}

Shard shard_of(const ModelConfig& config, const LaneRange& lanes) {
  const LaneBorders attention = attention_lanes(config);
  const LaneBorders mlp = mlp_lanes(config);
  Shard shard;
  shard.lanes = lanes;
  shard.head_dim = config.head_dim;
  shard.heads = {attention.at(lanes.first) / config.head_dim, attention.at(lanes.last) / config.head_dim};
  const std::int64_t group = config.heads / config.kv_heads;
  if (shard.heads.size() > 0) shard.kv_heads = {shard.heads.begin / group, (shard.heads.end + group - 1) / group};
  shard.ff = {mlp.at(lanes.first), mlp.at(lanes.last)};
  shard.vocab = {vocab_at(config, lanes.first), vocab_at(config, lanes.last)};
  return shard;
}

}  // namespace butterfly
