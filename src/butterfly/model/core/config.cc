#include "butterfly/model/core/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "butterfly/model/core/weights.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

// Far above every model there is, and small enough that products of three of them fit into 64 bits.
constexpr int kMaxWidth = 1 << 22;
constexpr int kMaxVocab = 1 << 24;
// The rotary angles reduce arguments below 2^24 (rotary.h).
constexpr int kMaxContext = 1 << 24;

Status check_range(const char* what, int value, int max) {
  if (value < 1 || value > max) {
    return make_error(ErrorCode::kBadData, "the model's {} is {}, expected 1 to {}", what, value, max);
  }
  return {};
}

Status check_rope(const ModelConfig& config, const RopeConfig& rope) {
  if (rope.dim < 2 || rope.dim % 2 != 0 || rope.dim > config.head_dim) {
    return make_error(ErrorCode::kBadData, "rope rotates {} elements of heads of {}, expected an even number up to it",
                      rope.dim, config.head_dim);
  }
  if (!std::isfinite(rope.base) || rope.base < 1) {
    return make_error(ErrorCode::kBadData, "the rope base is {}, expected a number of at least 1", rope.base);
  }
  if (!std::isfinite(rope.magnitude) || rope.magnitude <= 0) {
    return make_error(ErrorCode::kBadData, "the magnitude of rotated elements is {}, expected a positive number",
                      rope.magnitude);
  }
  if (!std::isfinite(rope.factor) || rope.factor <= 0) {
    return make_error(ErrorCode::kBadData, "the rope scaling factor is {}, expected a positive number", rope.factor);
  }
  if (rope.scaling == RopeConfig::Scaling::kLlama3) {
    const bool finite = std::isfinite(rope.low_freq_factor) && std::isfinite(rope.high_freq_factor);
    if (!finite || rope.low_freq_factor <= 0 || rope.high_freq_factor <= rope.low_freq_factor) {
      return make_error(ErrorCode::kBadData,
                        "llama3 rope scaling between frequency factors {} and {}, expected 0 < low < high",
                        rope.low_freq_factor, rope.high_freq_factor);
    }
    BF_TRY(check_range("original context", rope.original_context, kMaxContext));
  }
  if (!rope.factors.empty() && rope.factors.size() != static_cast<std::size_t>(rope.dim / 2)) {
    return make_error(ErrorCode::kBadData, "{} rope frequency factors for {} rotated pairs", rope.factors.size(),
                      rope.dim / 2);
  }
  float smallest = 1.0f;
  for (float factor : rope.factors) {
    if (!std::isfinite(factor) || factor <= 0) {
      return make_error(ErrorCode::kBadData, "a rope frequency factor is {}, expected a positive number", factor);
    }
    smallest = std::min(smallest, factor);
  }
  if (rope.scaling != RopeConfig::Scaling::kNone) smallest *= std::min(rope.factor, 1.0f);
  const double turns = static_cast<double>(config.context) / static_cast<double>(smallest);
  if (turns > kMaxContext) {
    return make_error(ErrorCode::kBadData,
                      "rope factors down to {} over {} positions make angles of {:.3g}, expected up to {}", smallest,
                      config.context, turns, kMaxContext);
  }
  return {};
}

Status check_layers(const char* what, const std::vector<int>& values, const ModelConfig& config, int min, int max) {
  if (values.empty()) return {};
  if (values.size() != static_cast<std::size_t>(config.layers)) {
    return make_error(ErrorCode::kBadData, "{} {} for {} layers", values.size(), what, config.layers);
  }
  for (int value : values) {
    if (value < min || value > max) {
      return make_error(ErrorCode::kBadData, "one of the {} is {}, expected {} to {}", what, value, min, max);
    }
  }
  return {};
}

Status check_scales(const ModelConfig& config) {
  const auto check = [](const char* what, float value, bool zero_is_off) -> Status {
    if (std::isfinite(value) && (value > 0 || (zero_is_off && value == 0))) return {};
    return make_error(ErrorCode::kBadData, "the {} is {}, expected a positive number", what, value);
  };
  BF_TRY(check("scale of the attention scores", config.attention_scale, true));
  BF_TRY(check("cap of the attention scores", config.attention_cap, true));
  BF_TRY(check("cap of the logits", config.logit_cap, true));
  BF_TRY(check("largest ALiBi bias", config.alibi_max_bias, false));
  BF_TRY(check("scale of the embedding", config.embedding_scale, false));
  BF_TRY(check("scale of the residual sums", config.residual_scale, false));
  return check("scale of the logits", config.logit_scale, false);
}

Status check_block(const ModelConfig& config) {
  if (config.parallel_block && config.norm_place != NormPlace::kBefore) {
    return make_error(ErrorCode::kBadData, "a parallel block has its norms before, this one elsewhere");
  }
  if (config.shared_norm && !config.parallel_block) {
    return make_error(ErrorCode::kBadData, "attention and MLP share a norm in a parallel block alone");
  }
  if (config.mlp == MlpKind::kGated && config.activation == Activation::kRelu) {
    return make_error(ErrorCode::kUnsupported, "a gated MLP with ReLU, supported are SiLU and GELU");
  }
  return {};
}

Status check_relative(const ModelConfig& config) {
  const RelativeConfig& relative = config.relative;
  if (relative.buckets == 0) return {};
  // Those of one direction begin with a bucket for each short distance.
  constexpr int kMaxBuckets = 1 << 16;
  BF_TRY(check_range("number of buckets of distances", relative.buckets, kMaxBuckets));
  BF_TRY(check_range("distance that buckets reach", relative.distance, kMaxContext));
  if (relative.buckets < 4 || relative.distance <= relative.buckets / 2) {
    return make_error(ErrorCode::kBadData,
                      "{} buckets for distances up to {}, expected at least 4 and less than twice it", relative.buckets,
                      relative.distance);
  }
  return {};
}

Status check_encoder(const ModelConfig& config) {
  if (config.encoder_layers < 0 || config.encoder_layers > config.layers) {
    return make_error(ErrorCode::kBadData, "{} of {} layers are an encoder's", config.encoder_layers, config.layers);
  }
  if (config.encoder_layers > 0 && (config.position == PositionKind::kAlibi || config.has_latent())) {
    return make_error(ErrorCode::kUnsupported, "an encoder with ALiBi or a latent, supported are others");
  }
  if (!config.has_decoder()) return {};
  const bool plain = config.norm_place == NormPlace::kBefore && !config.parallel_block && config.moe.experts == 0 &&
                     config.position == PositionKind::kNone && config.windows.empty() && !config.attention_sinks &&
                     config.qk_norm == QkNorm::kNone && config.residual_scale == 1.0f;
  if (!plain) {
    return make_error(ErrorCode::kUnsupported,
                      "an encoder and a decoder with more than norms before and relative positions");
  }
  BF_TRY(check_range("first token of a decoder", config.decoder_start + 1, config.vocab));
  return {};
}

Status check_tables(const ModelConfig& config) {
  constexpr int kMaxTypes = 1 << 16;
  if (config.embedding_dim != 0) BF_TRY(check_range("width of the embedding", config.embedding_dim, kMaxWidth));
  if (config.token_types != 0) BF_TRY(check_range("number of token types", config.token_types, kMaxTypes));
  if (config.embedding_dim != 0 && !config.head_transform && config.output == OutputKind::kLogits) {
    return make_error(ErrorCode::kBadData, "tables of {} elements for a width of {}, and nothing between it and logits",
                      config.embedding_dim, config.model_dim);
  }
  if (config.layer_groups == 0) return {};
  if (config.layer_groups < 0 || config.layer_groups > config.layers || config.layers % config.layer_groups != 0) {
    return make_error(ErrorCode::kBadData, "{} layers cannot share {} sets of weights evenly", config.layers,
                      config.layer_groups);
  }
  const bool alike = config.windows.empty() && config.ropes.empty() && config.moe.layers.empty() &&
                     !config.skip_first_norm && !config.has_decoder();
  if (!alike) return make_error(ErrorCode::kUnsupported, "layers that share weights and are not alike");
  return {};
}

Status check_number(const char* what, float value, bool positive) {
  if (std::isfinite(value) && (value > 0 || (!positive && value == 0))) return {};
  return make_error(ErrorCode::kBadData, "the {} is {}, expected a positive number", what, value);
}

Status check_latent(const ModelConfig& config) {
  const LatentConfig& latent = config.latent;
  if (latent.dim == 0) return {};
  BF_TRY(check_range("latent", latent.dim, kMaxWidth / config.heads));
  BF_TRY(check_range("size of a value", latent.value_dim, kMaxWidth / config.heads));
  if (latent.query_rank < 0 || latent.query_rank > kMaxWidth) {
    return make_error(ErrorCode::kBadData, "the rank of the queries is {}, expected 0 to {}", latent.query_rank,
                      kMaxWidth);
  }
  BF_TRY(check_number("epsilon of the latent's norms", latent.norm_epsilon, false));
  if (config.kv_heads != 1) {
    return make_error(ErrorCode::kBadData, "a latent is read by all heads, the model has {} key-value heads",
                      config.kv_heads);
  }
  const bool rotates = config.position == PositionKind::kRope && config.ropes.empty();
  if (!rotates || config.rope.dim >= config.head_dim) {
    return make_error(ErrorCode::kBadData,
                      "latent attention rotates {} of {} elements of a head, expected a part of it",
                      rotates ? config.rope.dim : 0, config.head_dim);
  }
  if (config.qkv_bias || config.qk_norm != QkNorm::kNone) {
    return make_error(ErrorCode::kUnsupported,
                      "latent attention with biases or norms of queries and keys, supported is neither");
  }
  return {};
}

Status check_groups(const MoeConfig& moe) {
  if (moe.groups < 1 || moe.experts % moe.groups != 0) {
    return make_error(ErrorCode::kBadData, "{} experts in {} groups, expected equal groups", moe.experts, moe.groups);
  }
  BF_TRY(check_range("number of groups that a token's experts are from", moe.groups_used, moe.groups));
  const int size = moe.experts / moe.groups;
  if (moe.experts_used > moe.groups_used * size) {
    return make_error(ErrorCode::kBadData, "{} experts a token from {} groups of {}", moe.experts_used, moe.groups_used,
                      size);
  }
  if (moe.groups > 1 && size < 2 && moe.group_score == MoeConfig::GroupScore::kTwoLargest) {
    return make_error(ErrorCode::kBadData, "groups of {} expert are compared by their two largest scores", size);
  }
  return {};
}

Status check_experts(const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  if (moe.experts == 0) return {};
  constexpr int kMaxExperts = 1 << 12;
  if (moe.experts < 2 || moe.experts > kMaxExperts) {
    return make_error(ErrorCode::kBadData, "the model's number of experts is {}, expected 2 to {}", moe.experts,
                      kMaxExperts);
  }
  BF_TRY(check_range("number of experts that a token uses", moe.experts_used, moe.experts));
  BF_TRY(check_range("width of an expert", moe.ff_dim, kMaxWidth));
  if (moe.shared_ff_dim != 0) BF_TRY(check_range("width of the shared expert", moe.shared_ff_dim, kMaxWidth));
  BF_TRY(check_layers("kinds of MLP", moe.layers, config, 0, 1));
  BF_TRY(check_groups(moe));
  if (moe.shared_gate && moe.shared_ff_dim == 0) {
    return make_error(ErrorCode::kBadData, "a gate of the shared expert in a model that has no shared expert");
  }
  if (config.mlp != MlpKind::kGated || config.norm_bias) {
    return make_error(ErrorCode::kUnsupported,
                      "experts without a gate or under norms with a bias, supported are others");
  }
  BF_TRY(check_number("scale of the experts' weights", moe.weight_scale, true));
  BF_TRY(check_number("epsilon of the experts' weights", moe.renormalise_epsilon, false));
  return check_number("limit of the experts' activation", moe.swiglu_limit, false);
}

std::uint64_t elements(const std::vector<WeightInfo>& weights) {
  std::uint64_t total = 0;
  for (const WeightInfo& weight : weights) {
    total += static_cast<std::uint64_t>(weight.rows) * static_cast<std::uint64_t>(weight.cols);
  }
  return total;
}

}  // namespace

Status validate(const ModelConfig& config) {
  BF_TRY(check_range("number of layers", config.layers, kLayersMax));
  BF_TRY(check_range("width", config.model_dim, kMaxWidth));
  BF_TRY(check_range("number of heads", config.heads, kMaxWidth));
  BF_TRY(check_range("number of key-value heads", config.kv_heads, config.heads));
  BF_TRY(check_range("head size", config.head_dim, kMaxWidth / config.heads));
  BF_TRY(check_range("MLP width", config.ff_dim, kMaxWidth));
  BF_TRY(check_range("vocabulary size", config.vocab, kMaxVocab));
  BF_TRY(check_range("context", config.context, kMaxContext));
  if (config.heads % config.kv_heads != 0) {
    return make_error(ErrorCode::kBadData, "{} heads cannot share {} key-value heads evenly", config.heads,
                      config.kv_heads);
  }
  if (!std::isfinite(config.norm_epsilon) || config.norm_epsilon <= 0) {
    return make_error(ErrorCode::kBadData, "the norm's epsilon is {}, expected a small positive number",
                      config.norm_epsilon);
  }
  BF_TRY(check_layers("sliding windows", config.windows, config, 0, kMaxContext));
  BF_TRY(check_layers("kinds of rope", config.ropes, config, kNoRope, kLocalRope));
  BF_TRY(check_scales(config));
  BF_TRY(check_block(config));
  BF_TRY(check_experts(config));
  BF_TRY(check_relative(config));
  BF_TRY(check_encoder(config));
  BF_TRY(check_tables(config));
  if (config.position == PositionKind::kRope) BF_TRY(check_rope(config, config.rope));
  if (config.has_local_rope()) BF_TRY(check_rope(config, config.local_rope));
  BF_TRY(check_latent(config));
  return {};
}

bool ModelConfig::has_local_rope() const {
  return position == PositionKind::kRope && std::ranges::find(ropes, kLocalRope) != ropes.end();
}

int ModelConfig::expert_layers() const {
  if (moe.experts == 0) return 0;
  return moe.layers.empty() ? layers : static_cast<int>(std::ranges::count(moe.layers, 1));
}

std::uint64_t block_parameter_count(const ModelConfig& config) {
  return elements(expected_weights(config, {.first_layer = 0, .last_layer = 1}));
}

std::uint64_t active_parameter_count(const ModelConfig& config) {
  const std::uint64_t all = parameter_count(config);
  if (config.moe.experts == 0) return all;
  const auto width = static_cast<std::uint64_t>(config.model_dim);
  const auto ff_dim = static_cast<std::uint64_t>(config.moe.ff_dim);
  const std::uint64_t expert = 3 * width * ff_dim + (config.moe.expert_bias ? width + 2 * ff_dim : 0);
  const auto idle = static_cast<std::uint64_t>(config.moe.experts - config.moe.experts_used);
  return all - idle * expert * static_cast<std::uint64_t>(config.expert_layers());
}

void set_facts(const ModelConfig& config) {
  trace::set_fact("model.name", config.name);
  trace::set_fact("model.type", std::string(to_string(config.weight_type)));
  trace::set_fact("model.layers", config.layers);
  trace::set_fact("model.model_dim", config.model_dim);
  trace::set_fact("model.vocab", config.vocab);
  trace::set_fact("model.parameters", static_cast<double>(parameter_count(config)));
  trace::set_fact("model.active_parameters", static_cast<double>(active_parameter_count(config)));
}

std::uint64_t parameter_count(const ModelConfig& config) {
  std::uint64_t total = elements(expected_weights(config, {.embedding = true, .head = true}));
  // One layer stands for all of its kind.
  std::array<std::optional<std::uint64_t>, 16> of_kind;
  for (int layer = 0; layer < config.layers; ++layer) {
    if (layer > 0 && config.weight_layer(layer) == config.weight_layer(layer - 1)) continue;
    const bool last_encoder = config.has_decoder() && layer == config.encoder_layers - 1;
    const std::size_t kind = (config.has_experts(layer) ? 1u : 0u) + (config.has_cross_attention(layer) ? 2u : 0u) +
                             (config.has_attention_norm(layer) ? 4u : 0u) + (last_encoder ? 8u : 0u);
    if (!of_kind[kind]) {
      of_kind[kind] = elements(expected_weights(config, {.first_layer = layer, .last_layer = layer + 1}));
    }
    total += *of_kind[kind];
  }
  if (config.relative.shared) {
    const int tables = config.has_decoder() ? 2 : 1;
    const int sets = config.layer_groups > 0 ? config.layer_groups : config.layers;
    total -= static_cast<std::uint64_t>(std::max(sets - tables, 0)) *
             static_cast<std::uint64_t>(config.relative.buckets) * static_cast<std::uint64_t>(config.heads);
  }
  return total;
}

}  // namespace butterfly
