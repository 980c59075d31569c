#include "butterfly/model/core/config_json.h"

#include "butterfly/base/json.h"

namespace butterfly {
namespace {

class Writer {
 public:
  template <typename T>
  void operator()(const char* name, const T& value) {
    if constexpr (std::is_enum_v<T>) {
      json[name] = static_cast<int>(value);
    } else {
      json[name] = value;
    }
  }
  /// Left out where it is what it is without being written.
  template <typename T>
  void optional(const char* name, const T& value, const T& fallback) {
    if (value != fallback) (*this)(name, value);
  }
  nlohmann::ordered_json json;
};

/// What only some families have. Left out where it is off, so that the text of the others stays what it was.
void write_variants(Writer& field, const ModelConfig& c) {
  const ModelConfig off;
  field.optional("rope_magnitude", c.rope.magnitude, off.rope.magnitude);
  field.optional("local_rope_base", c.local_rope.base, off.local_rope.base);
  field.optional("local_rope_dim", c.local_rope.dim, off.local_rope.dim);
  field.optional("local_rope_pairs", c.local_rope.pairs, off.local_rope.pairs);
  field.optional("local_rope_scaling", c.local_rope.scaling, off.local_rope.scaling);
  field.optional("local_rope_factor", c.local_rope.factor, off.local_rope.factor);
  field.optional("local_rope_factors", c.local_rope.factors, off.local_rope.factors);
  field.optional("local_rope_magnitude", c.local_rope.magnitude, off.local_rope.magnitude);
  field.optional("ropes", c.ropes, off.ropes);
  field.optional("windows", c.windows, off.windows);
  field.optional("qk_norm", c.qk_norm, off.qk_norm);
  field.optional("attention_scale", c.attention_scale, off.attention_scale);
  field.optional("attention_cap", c.attention_cap, off.attention_cap);
  field.optional("logit_cap", c.logit_cap, off.logit_cap);
  field.optional("alibi_max_bias", c.alibi_max_bias, off.alibi_max_bias);
  field.optional("parallel_block", c.parallel_block, off.parallel_block);
  field.optional("shared_norm", c.shared_norm, off.shared_norm);
  field.optional("embedding_scale", c.embedding_scale, off.embedding_scale);
  field.optional("residual_scale", c.residual_scale, off.residual_scale);
  field.optional("logit_scale", c.logit_scale, off.logit_scale);
  field.optional("head_bias", c.head_bias, off.head_bias);
  field.optional("attention_sinks", c.attention_sinks, off.attention_sinks);
  field.optional("latent_dim", c.latent.dim, off.latent.dim);
  field.optional("latent_query_rank", c.latent.query_rank, off.latent.query_rank);
  field.optional("latent_value_dim", c.latent.value_dim, off.latent.value_dim);
  field.optional("latent_norm_epsilon", c.latent.norm_epsilon, off.latent.norm_epsilon);
}

void write_encoder(Writer& field, const ModelConfig& c) {
  const ModelConfig off;
  field.optional("encoder_layers", c.encoder_layers, off.encoder_layers);
  field.optional("relative_buckets", c.relative.buckets, off.relative.buckets);
  field.optional("relative_distance", c.relative.distance, off.relative.distance);
  field.optional("relative_shared", c.relative.shared, off.relative.shared);
  field.optional("embedding_dim", c.embedding_dim, off.embedding_dim);
  field.optional("token_types", c.token_types, off.token_types);
  field.optional("embedding_norm", c.embedding_norm, off.embedding_norm);
  field.optional("skip_first_norm", c.skip_first_norm, off.skip_first_norm);
  field.optional("layer_groups", c.layer_groups, off.layer_groups);
  field.optional("head_transform", c.head_transform, off.head_transform);
  field.optional("head_transform_bias", c.head_transform_bias, off.head_transform_bias);
  field.optional("head_gelu", c.head_gelu, off.head_gelu);
  field.optional("output", c.output, off.output);
  field.optional("decoder_start", c.decoder_start, off.decoder_start);
}

void write_experts(Writer& field, const MoeConfig& c) {
  const MoeConfig off;
  field.optional("experts", c.experts, off.experts);
  field.optional("experts_used", c.experts_used, off.experts_used);
  field.optional("expert_ff_dim", c.ff_dim, off.ff_dim);
  field.optional("expert_layers", c.layers, off.layers);
  field.optional("expert_scores", c.scores, off.scores);
  field.optional("expert_choice_bias", c.choice_bias, off.choice_bias);
  field.optional("expert_groups", c.groups, off.groups);
  field.optional("expert_groups_used", c.groups_used, off.groups_used);
  field.optional("expert_group_score", c.group_score, off.group_score);
  field.optional("expert_renormalise", c.renormalise, off.renormalise);
  field.optional("expert_renormalise_epsilon", c.renormalise_epsilon, off.renormalise_epsilon);
  field.optional("expert_weight_scale", c.weight_scale, off.weight_scale);
  field.optional("router_bias", c.router_bias, off.router_bias);
  field.optional("expert_bias", c.expert_bias, off.expert_bias);
  field.optional("shared_ff_dim", c.shared_ff_dim, off.shared_ff_dim);
  field.optional("shared_gate", c.shared_gate, off.shared_gate);
  field.optional("swiglu_limit", c.swiglu_limit, off.swiglu_limit);
}

void write(Writer& field, const ModelConfig& c) {
  field("architecture", c.architecture);
  field("name", c.name);
  field("layers", c.layers);
  field("model_dim", c.model_dim);
  field("heads", c.heads);
  field("kv_heads", c.kv_heads);
  field("head_dim", c.head_dim);
  field("ff_dim", c.ff_dim);
  field("vocab", c.vocab);
  field("context", c.context);
  field("norm", c.norm);
  field("norm_place", c.norm_place);
  field("norm_epsilon", c.norm_epsilon);
  field("activation", c.activation);
  field("mlp", c.mlp);
  field("position", c.position);
  field("rope_base", c.rope.base);
  field("rope_dim", c.rope.dim);
  field("rope_pairs", c.rope.pairs);
  field("rope_scaling", c.rope.scaling);
  field("rope_factor", c.rope.factor);
  field("rope_low_freq_factor", c.rope.low_freq_factor);
  field("rope_high_freq_factor", c.rope.high_freq_factor);
  field("rope_original_context", c.rope.original_context);
  field("rope_factors", c.rope.factors);
  field("qkv_bias", c.qkv_bias);
  field("attention_output_bias", c.attention_output_bias);
  field("mlp_bias", c.mlp_bias);
  field("norm_bias", c.norm_bias);
  field("tied_head", c.tied_head);
  field("weight_type", c.weight_type);
  write_variants(field, c);
  write_experts(field, c.moe);
  write_encoder(field, c);
}

}  // namespace

std::string to_json(const ModelConfig& config) {
  Writer writer;
  write(writer, config);
  return dump_json(writer.json);
}

}  // namespace butterfly
