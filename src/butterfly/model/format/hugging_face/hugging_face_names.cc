#include "butterfly/model/format/hugging_face/hugging_face_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace butterfly {
namespace {

struct NamePair {
  std::string_view canonical, file;
};
using Names = std::span<const NamePair>;

constexpr NamePair kLlamaTop[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr NamePair kLlamaBlock[] = {{"attn_norm", "input_layernorm"},
                                    {"attn_q", "self_attn.q_proj"},
                                    {"attn_k", "self_attn.k_proj"},
                                    {"attn_v", "self_attn.v_proj"},
                                    {"attn_q_norm", "self_attn.q_norm"},
                                    {"attn_k_norm", "self_attn.k_norm"},
                                    {"attn_output", "self_attn.o_proj"},
                                    {"ffn_norm", "post_attention_layernorm"},
                                    {"ffn_gate", "mlp.gate_proj"},
                                    {"ffn_up", "mlp.up_proj"},
                                    {"ffn_down", "mlp.down_proj"},
                                    {"attn_sinks", "self_attn.sinks"},
                                    {"attn_q_a", "self_attn.q_a_proj"},
                                    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
                                    {"attn_q_b", "self_attn.q_b_proj"},
                                    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
                                    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
                                    {"attn_k_b", "self_attn.kv_b_proj"},
                                    {"attn_v_b", "self_attn.kv_b_proj"},
                                    {"ffn_gate_inp", "mlp.gate"},
                                    {"ffn_gate_exps", "mlp.experts.*.gate_proj"},
                                    {"ffn_up_exps", "mlp.experts.*.up_proj"},
                                    {"ffn_down_exps", "mlp.experts.*.down_proj"},
                                    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
                                    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"}};
constexpr NamePair kMixtralBlock[] = {{"ffn_gate_inp", "block_sparse_moe.gate"},
                                      {"ffn_gate_exps", "block_sparse_moe.experts.*.w1"},
                                      {"ffn_up_exps", "block_sparse_moe.experts.*.w3"},
                                      {"ffn_down_exps", "block_sparse_moe.experts.*.w2"}};
constexpr NamePair kQwen2MoeBlock[] = {{"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                                       {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                                       {"ffn_down_shexp", "mlp.shared_expert.down_proj"}};
constexpr NamePair kGraniteMoeBlock[] = {{"ffn_gate_inp", "block_sparse_moe.router.layer"}};
constexpr NamePair kGptOssBlock[] = {{"ffn_gate_inp", "mlp.router"}};
constexpr NamePair kGpt2Top[] = {{"token_embd", "transformer.wte"},
                                 {"position_embd", "transformer.wpe"},
                                 {"output_norm", "transformer.ln_f"},
                                 {"output", "lm_head"}};
constexpr NamePair kGpt2Block[] = {{"attn_norm", "ln_1"},     {"attn_q", "attn.c_attn"},      {"attn_k", "attn.c_attn"},
                                   {"attn_v", "attn.c_attn"}, {"attn_output", "attn.c_proj"}, {"ffn_norm", "ln_2"},
                                   {"ffn_up", "mlp.c_fc"},    {"ffn_down", "mlp.c_proj"}};
constexpr NamePair kOutputNorms[] = {{"post_attention_norm", "post_attention_layernorm"},
                                     {"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr NamePair kGemma2Block[] = {{"post_attention_norm", "post_attention_layernorm"},
                                     {"ffn_norm", "pre_feedforward_layernorm"},
                                     {"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr NamePair kFusedBlock[] = {{"attn_q", "self_attn.qkv_proj"},
                                    {"attn_k", "self_attn.qkv_proj"},
                                    {"attn_v", "self_attn.qkv_proj"},
                                    {"ffn_gate", "mlp.gate_up_proj"},
                                    {"ffn_up", "mlp.gate_up_proj"}};
constexpr NamePair kGlmBlock[] = {{"post_attention_norm", "post_self_attn_layernorm"},
                                  {"post_ffw_norm", "post_mlp_layernorm"},
                                  {"ffn_gate", "mlp.gate_up_proj"},
                                  {"ffn_up", "mlp.gate_up_proj"}};
constexpr NamePair kStarcoderBlock[] = {{"ffn_up", "mlp.c_fc"}, {"ffn_down", "mlp.c_proj"}};
constexpr NamePair kPhiTop[] = {{"output_norm", "model.final_layernorm"}};
constexpr NamePair kPhiBlock[] = {{"attn_output", "self_attn.dense"}, {"ffn_up", "mlp.fc1"}, {"ffn_down", "mlp.fc2"}};
constexpr NamePair kNeoxTop[] = {
    {"token_embd", "gpt_neox.embed_in"}, {"output_norm", "gpt_neox.final_layer_norm"}, {"output", "embed_out"}};
constexpr NamePair kNeoxBlock[] = {{"attn_q", "attention.query_key_value"}, {"attn_k", "attention.query_key_value"},
                                   {"attn_v", "attention.query_key_value"}, {"attn_output", "attention.dense"},
                                   {"ffn_up", "mlp.dense_h_to_4h"},         {"ffn_down", "mlp.dense_4h_to_h"}};
constexpr NamePair kFalconTop[] = {{"token_embd", "transformer.word_embeddings"}, {"output_norm", "transformer.ln_f"}};
constexpr NamePair kFalconBlock[] = {{"attn_q", "self_attention.query_key_value"},
                                     {"attn_k", "self_attention.query_key_value"},
                                     {"attn_v", "self_attention.query_key_value"},
                                     {"attn_output", "self_attention.dense"},
                                     {"ffn_up", "mlp.dense_h_to_4h"},
                                     {"ffn_down", "mlp.dense_4h_to_h"}};
constexpr NamePair kMptTop[] = {{"token_embd", "transformer.wte"}, {"output_norm", "transformer.norm_f"}};
constexpr NamePair kMptBlock[] = {{"attn_norm", "norm_1"},   {"attn_q", "attn.Wqkv"},          {"attn_k", "attn.Wqkv"},
                                  {"attn_v", "attn.Wqkv"},   {"attn_output", "attn.out_proj"}, {"ffn_norm", "norm_2"},
                                  {"ffn_up", "ffn.up_proj"}, {"ffn_down", "ffn.down_proj"}};

/// What a family calls otherwise than Llama.
struct FamilyNames {
  std::string_view architecture;
  std::string_view blocks = "model.layers";
  Names top{};
  Names block{};
  QkvOrder qkv = QkvOrder::kApart;
};
constexpr FamilyNames kFamilyNames[] = {
    {.architecture = "gpt2", .blocks = "transformer.h", .top = kGpt2Top, .block = kGpt2Block},
    {.architecture = "llama", .block = kMixtralBlock},
    {.architecture = "qwen2moe", .block = kQwen2MoeBlock},
    {.architecture = "granitemoe", .block = kGraniteMoeBlock},
    {.architecture = "gpt-oss", .block = kGptOssBlock},
    {.architecture = "olmo2", .block = kOutputNorms},
    {.architecture = "gemma2", .block = kGemma2Block},
    {.architecture = "gemma3", .block = kGemma2Block},
    {.architecture = "phi3", .block = kFusedBlock, .qkv = QkvOrder::kBehindOneAnother},
    {.architecture = "chatglm", .block = kGlmBlock},
    {.architecture = "glm4", .block = kGlmBlock},
    {.architecture = "starcoder2", .block = kStarcoderBlock},
    {.architecture = "phi2", .top = kPhiTop, .block = kPhiBlock},
    {.architecture = "gptneox",
     .blocks = "gpt_neox.layers",
     .top = kNeoxTop,
     .block = kNeoxBlock,
     .qkv = QkvOrder::kByKeyHead},
    {.architecture = "falcon",
     .blocks = "transformer.h",
     .top = kFalconTop,
     .block = kFalconBlock,
     .qkv = QkvOrder::kByKeyHead},
    {.architecture = "mpt",
     .blocks = "transformer.blocks",
     .top = kMptTop,
     .block = kMptBlock,
     .qkv = QkvOrder::kBehindOneAnother},
};

const FamilyNames& family_of(std::string_view architecture) {
  static constexpr FamilyNames kLlama{.architecture = "llama"};
  for (const FamilyNames& family : kFamilyNames) {
    if (family.architecture == architecture) return family;
  }
  return kLlama;
}

std::string_view translate(Names names, Names otherwise, std::string_view canonical) {
  for (const Names& list : {names, otherwise}) {
    for (const NamePair& pair : list) {
      if (pair.canonical == canonical) return pair.file;
    }
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
  const std::size_t exps = parts.stem.find("_exps.");
  if (exps != std::string_view::npos) {
    parts.expert = parts.stem.substr(parts.stem.find('.') + 1);
    parts.stem = parts.stem.substr(0, parts.stem.find('.'));
  }
  return parts;
}

std::string hugging_face_name(std::string_view canonical, std::string_view architecture) {
  const FamilyNames& family = family_of(architecture);
  const WeightNameParts parts = split_weight_name(canonical);
  if (parts.layer.empty()) {
    const std::string_view stem = translate(family.top, kLlamaTop, parts.stem);
    return stem.empty() ? "" : fmt::format("{}.{}", stem, parts.kind);
  }
  const bool gpt2 = architecture == "gpt2";
  const std::string_view stem = translate(family.block, gpt2 ? Names{} : Names(kLlamaBlock), parts.stem);
  if (parts.stem == "exp_probs_b") {
    return fmt::format("{}.{}.mlp.gate.e_score_correction_bias", family.blocks, parts.layer);
  }
  if (stem.empty()) return "";
  if (parts.stem == "attn_sinks") return fmt::format("{}.{}.{}", family.blocks, parts.layer, stem);
  if (!parts.expert.empty()) {
    std::string of_expert(stem);
    const std::size_t star = of_expert.find('*');
    if (star != std::string::npos) of_expert.replace(star, 1, parts.expert);
    return fmt::format("{}.{}.{}.{}", family.blocks, parts.layer, of_expert, parts.kind);
  }
  return fmt::format("{}.{}.{}.{}", family.blocks, parts.layer, stem, parts.kind);
}

QkvOrder qkv_order(std::string_view architecture) {
  return family_of(architecture).qkv;
}

bool rotates_halves_in_files(std::string_view architecture) {
  return architecture == "llama" || architecture == "granite" || architecture == "granitemoe" ||
         architecture == "smollm3";
}

bool norms_around_one(std::string_view architecture) {
  return architecture == "gemma" || architecture == "gemma2" || architecture == "gemma3";
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
