#include "butterfly/model/core/shard.h"

#include <algorithm>

namespace butterfly {
namespace {

/// Where the vocabulary of a slice begins; whole panels, so that no member pads.
std::int64_t vocab_at(const ModelConfig& config, int slice) {
  const std::int64_t panels = (config.vocab + kPanel - 1) / kPanel;
  return std::min<std::int64_t>(panels * slice / kReductionSlices * kPanel, config.vocab);
}

}  // namespace

SliceBorders attention_slices(const ModelConfig& config) {
  return SliceBorders::canonical(config.mixed_dim(), config.value_dim());
}

SliceBorders mlp_slices(const ModelConfig& config) {
  return SliceBorders::canonical(config.ff_dim, 1);
}

SliceBorders expert_ff_slices(const ModelConfig& config) {
  return SliceBorders::canonical(config.moe.ff_dim, 1, kExpertSlices);
}

SliceBorders shared_slices(const ModelConfig& config) {
  return SliceBorders::canonical(config.moe.shared_ff_dim, 1);
}

SliceBorders expert_slices(const ModelConfig& config) {
  return SliceBorders::even(config.moe.experts);
}

Shard shard_of(const ModelConfig& config, const HeldSlices& slices) {
  const SliceBorders attention = attention_slices(config);
  const SliceBorders mlp = mlp_slices(config);
  Shard shard;
  shard.slices = slices;
  shard.head_dim = config.head_dim;
  shard.value_dim = config.value_dim();
  shard.heads = {attention.at(slices.first) / shard.value_dim, attention.at(slices.last) / shard.value_dim};
  const std::int64_t group = config.heads / config.kv_heads;
  if (shard.heads.size() > 0) shard.kv_heads = {shard.heads.begin / group, (shard.heads.end + group - 1) / group};
  const bool all = config.qk_norm == QkNorm::kWidth && shard.heads.size() > 0;
  shard.q_rows = all ? IndexRange{0, config.q_dim()} : shard.q();
  shard.k_rows = all ? IndexRange{0, config.kv_dim()} : shard.kv();
  if (config.has_latent()) shard.k_rows = {0, shard.heads.size() > 0 ? config.cached_key_dim() : 0};
  shard.ff = {mlp.at(slices.first), mlp.at(slices.last)};
  const SliceBorders experts = expert_slices(config);
  const SliceBorders shared = shared_slices(config);
  shard.experts = {experts.at(slices.experts.first), experts.at(slices.experts.last)};
  shard.shared_ff = {shared.at(slices.first), shared.at(slices.last)};
  shard.vocab = {vocab_at(config, slices.first), vocab_at(config, slices.last)};
  return shard;
}

}  // namespace butterfly
