// A small model for each mechanism that shows in the arithmetic, for the matrix of promise 1.
#pragma once

#include <string>
#include <vector>

#include "butterfly/model/core/config.h"

namespace butterfly {

struct Mechanism {
  std::string name;
  ModelConfig config;
};

/// Rows of 256 elements, so that every weight type has whole blocks, and uneven widths where slices are cut.
inline ModelConfig plain_config() {
  ModelConfig c;
  c.name = "plain";
  c.layers = 2;
  c.model_dim = 256;
  c.heads = 8;
  c.kv_heads = 2;
  c.head_dim = 32;
  c.ff_dim = 768;
  c.vocab = 301;
  c.context = 64;
  c.rope.dim = 32;
  return c;
}

inline std::vector<Mechanism> mechanisms() {
  std::vector<Mechanism> all{{"plain", plain_config()}};
  ModelConfig c = plain_config();
  c.windows = {5, 0};
  c.ropes = {kLocalRope, kMainRope};
  c.local_rope = c.rope;
  c.local_rope.base = 500.0f;
  c.qk_norm = QkNorm::kHead;
  all.push_back({"window", c});

  c = plain_config();
  c.layers = 3;
  c.ff_dim = 512;
  c.moe = {.experts = 40,
           .experts_used = 3,
           .ff_dim = 256,
           .layers = {0, 1, 1},
           .scores = MoeConfig::Scores::kSigmoid,
           .choice_bias = true,
           .groups = 4,
           .groups_used = 2,
           .group_score = MoeConfig::GroupScore::kTwoLargest,
           .renormalise = true,
           .renormalise_epsilon = 1e-20f,
           .weight_scale = 2.5f,
           .shared_ff_dim = 256};
  all.push_back({"moe", c});

  c = plain_config();
  c.kv_heads = 1;
  c.head_dim = 48;
  c.rope.dim = 16;
  c.latent = {.dim = 64, .query_rank = 256, .value_dim = 32};
  all.push_back({"mla", c});

  c = plain_config();
  c.attention_sinks = true;
  c.qkv_bias = c.attention_output_bias = true;
  c.windows = {0, 6};
  c.moe = {.experts = 6,
           .experts_used = 2,
           .ff_dim = 256,
           .scores = MoeConfig::Scores::kSoftmaxOfChosen,
           .router_bias = true,
           .expert_bias = true,
           .swiglu_limit = 7.0f};
  all.push_back({"sinks", c});

  c = plain_config();
  c.norm = NormKind::kLayer;
  c.activation = Activation::kGeluErf;
  c.mlp = MlpKind::kPlain;
  c.position = PositionKind::kAlibi;
  c.rope = {};
  c.parallel_block = c.shared_norm = c.head_bias = true;
  all.push_back({"parallel", c});

  c = plain_config();
  c.norm_place = NormPlace::kBoth;
  c.activation = Activation::kGeluTanh;
  c.embedding_scale = 11.3f;
  c.attention_cap = 5.0f;
  c.logit_cap = 3.0f;
  all.push_back({"caps", c});
  return all;
}

}  // namespace butterfly
