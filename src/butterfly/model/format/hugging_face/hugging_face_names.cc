#include "butterfly/model/format/hugging_face/hugging_face_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace butterfly {
namespace {

struct NamePair {
  std::string_view canonical, file;
};

constexpr std::array<NamePair, 3> kLlamaTop{
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}}};
constexpr std::array<NamePair, 9> kLlamaBlock{{{"attn_norm", "input_layernorm"},
                                               {"attn_q", "self_attn.q_proj"},
                                               {"attn_k", "self_attn.k_proj"},
                                               {"attn_v", "self_attn.v_proj"},
                                               {"attn_output", "self_attn.o_proj"},
                                               {"ffn_norm", "post_attention_layernorm"},
                                               {"ffn_gate", "mlp.gate_proj"},
                                               {"ffn_up", "mlp.up_proj"},
                                               {"ffn_down", "mlp.down_proj"}}};
constexpr std::array<NamePair, 4> kGpt2Top{{{"token_embd", "transformer.wte"},
                                            {"position_embd", "transformer.wpe"},
                                            {"output_norm", "transformer.ln_f"},
                                            {"output", "lm_head"}}};
constexpr std::array<NamePair, 8> kGpt2Block{{{"attn_norm", "ln_1"},
                                              {"attn_q", "attn.c_attn"},
                                              {"attn_k", "attn.c_attn"},
                                              {"attn_v", "attn.c_attn"},
                                              {"attn_output", "attn.c_proj"},
                                              {"ffn_norm", "ln_2"},
                                              {"ffn_up", "mlp.c_fc"},
                                              {"ffn_down", "mlp.c_proj"}}};

template <std::size_t kSize>
std::string_view translate(const std::array<NamePair, kSize>& names, std::string_view canonical) {
  for (const NamePair& pair : names) {
    if (pair.canonical == canonical) return pair.file;
  }
  return {};
}

}  // namespace

WeightNameParts split_weight_name(std::string_view name) {
  WeightNameParts parts;
  if (name.starts_with("blk.")) {
    name.remove_prefix(4);
    parts.layer = name.substr(0, name.find('.'));
    name.remove_prefix(std::min(name.size(), parts.layer.size() + 1));
  }
  const std::size_t dot = name.rfind('.');
  parts.stem = name.substr(0, dot);
  if (dot != std::string_view::npos) parts.kind = name.substr(dot + 1);
  return parts;
}

std::string hugging_face_name(std::string_view canonical, std::string_view architecture) {
  const bool gpt2 = architecture == "gpt2";
  const WeightNameParts parts = split_weight_name(canonical);
  if (parts.layer.empty()) {
    const std::string_view stem = gpt2 ? translate(kGpt2Top, parts.stem) : translate(kLlamaTop, parts.stem);
    return stem.empty() ? "" : fmt::format("{}.{}", stem, parts.kind);
  }
  const std::string_view stem = gpt2 ? translate(kGpt2Block, parts.stem) : translate(kLlamaBlock, parts.stem);
  if (stem.empty()) return "";
  return fmt::format("{}.{}.{}.{}", gpt2 ? "transformer.h" : "model.layers", parts.layer, stem, parts.kind);
}

bool is_query_or_key(std::string_view canonical) {
  return canonical.find(".attn_q.") != std::string_view::npos || canonical.find(".attn_k.") != std::string_view::npos;
}

std::int64_t half_split_row(std::int64_t row, std::int64_t head_dim) {
  const std::int64_t head = row / head_dim;
  const std::int64_t r = row % head_dim;
  return head * head_dim + r / 2 + (r % 2) * (head_dim / 2);
}

}  // namespace butterfly
