// What the files of encoders call the canonical weights. {} is the layer's number in the file.
#include <algorithm>
#include <charconv>

#include "butterfly/model/format/hugging_face/hugging_face_encoders.h"
#include "butterfly/model/format/hugging_face/hugging_face_names.h"

namespace butterfly {
namespace {

struct EncoderName {
  std::string_view canonical, file;
};
using EncoderNames = std::span<const EncoderName>;

constexpr EncoderName kBertNames[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"position_embd", "embeddings.position_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "embeddings.LayerNorm"},
    {"token_embd_norm", "emb_ln"},
    {"token_embd_proj", "encoder.embedding_hidden_mapping_in"},
    {"token_embd_proj", "embeddings_project"},
    {"output_dense", "cls.predictions.transform.dense"},
    {"output_dense", "lm_head.dense"},
    {"output_dense", "vocab_transform"},
    {"output_dense", "generator_predictions.dense"},
    {"output_dense", "predictions.dense"},
    {"output_dense_norm", "cls.predictions.transform.LayerNorm"},
    {"output_dense_norm", "cls.predictions.transform.layer_norm"},
    {"output_dense_norm", "lm_head.layer_norm"},
    {"output_dense_norm", "vocab_layer_norm"},
    {"output_dense_norm", "generator_predictions.LayerNorm"},
    {"output_dense_norm", "predictions.LayerNorm"},
    {"output", "cls.predictions"},
    {"output", "cls.predictions.decoder"},
    {"output", "lm_head"},
    {"output", "lm_head.decoder"},
    {"output", "vocab_projector"},
    {"output", "generator_lm_head"},
    {"output", "predictions"},
    {"output", "predictions.decoder"},
};
constexpr EncoderName kBertBlock[] = {
    {"attn_q", "encoder.layer.{}.attention.self.query"},
    {"attn_k", "encoder.layer.{}.attention.self.key"},
    {"attn_v", "encoder.layer.{}.attention.self.value"},
    {"attn_output", "encoder.layer.{}.attention.output.dense"},
    {"attn_norm", "encoder.layer.{}.attention.output.LayerNorm"},
    {"ffn_up", "encoder.layer.{}.intermediate.dense"},
    {"ffn_down", "encoder.layer.{}.output.dense"},
    {"ffn_norm", "encoder.layer.{}.output.LayerNorm"},
    // DistilBERT
    {"attn_q", "transformer.layer.{}.attention.q_lin"},
    {"attn_k", "transformer.layer.{}.attention.k_lin"},
    {"attn_v", "transformer.layer.{}.attention.v_lin"},
    {"attn_output", "transformer.layer.{}.attention.out_lin"},
    {"attn_norm", "transformer.layer.{}.sa_layer_norm"},
    {"ffn_up", "transformer.layer.{}.ffn.lin1"},
    {"ffn_down", "transformer.layer.{}.ffn.lin2"},
    {"ffn_norm", "transformer.layer.{}.output_layer_norm"},
    // MPNet
    {"attn_q", "encoder.layer.{}.attention.attn.q"},
    {"attn_k", "encoder.layer.{}.attention.attn.k"},
    {"attn_v", "encoder.layer.{}.attention.attn.v"},
    {"attn_output", "encoder.layer.{}.attention.attn.o"},
    {"attn_norm", "encoder.layer.{}.attention.LayerNorm"},
    {"attn_rel_b", "encoder.relative_attention_bias"},
};
constexpr EncoderName kAlbertBlock[] = {
    {"attn_q", "albert_layer_groups.{}.albert_layers.0.attention.query"},
    {"attn_k", "albert_layer_groups.{}.albert_layers.0.attention.key"},
    {"attn_v", "albert_layer_groups.{}.albert_layers.0.attention.value"},
    {"attn_output", "albert_layer_groups.{}.albert_layers.0.attention.dense"},
    {"attn_norm", "albert_layer_groups.{}.albert_layers.0.attention.LayerNorm"},
    {"ffn_up", "albert_layer_groups.{}.albert_layers.0.ffn"},
    {"ffn_down", "albert_layer_groups.{}.albert_layers.0.ffn_output"},
    {"ffn_norm", "albert_layer_groups.{}.albert_layers.0.full_layer_layer_norm"},
};
constexpr EncoderName kNomicBlock[] = {
    {"attn_q", "layers.{}.attn.Wqkv"},          {"attn_k", "layers.{}.attn.Wqkv"}, {"attn_v", "layers.{}.attn.Wqkv"},
    {"attn_output", "layers.{}.attn.out_proj"}, {"attn_norm", "layers.{}.norm1"},  {"ffn_up", "layers.{}.mlp.fc11"},
    {"ffn_gate", "layers.{}.mlp.fc12"},         {"ffn_down", "layers.{}.mlp.fc2"}, {"ffn_norm", "layers.{}.norm2"},
};
constexpr EncoderName kModernNames[] = {
    {"token_embd", "embeddings.tok_embeddings"},
    {"token_embd_norm", "embeddings.norm"},
    {"output_norm", "final_norm"},
    {"output_dense", "head.dense"},
    {"output_dense_norm", "head.norm"},
    {"output", "decoder"},
};
constexpr EncoderName kModernBlock[] = {
    {"attn_norm", "layers.{}.attn_norm"}, {"attn_q", "layers.{}.attn.Wqkv"},    {"attn_k", "layers.{}.attn.Wqkv"},
    {"attn_v", "layers.{}.attn.Wqkv"},    {"attn_output", "layers.{}.attn.Wo"}, {"ffn_norm", "layers.{}.mlp_norm"},
    {"ffn_gate", "layers.{}.mlp.Wi"},     {"ffn_up", "layers.{}.mlp.Wi"},       {"ffn_down", "layers.{}.mlp.Wo"},
};
constexpr EncoderName kT5Names[] = {
    {"token_embd", "shared"},
    {"token_embd", "encoder.embed_tokens"},
    {"output_norm", "decoder.final_layer_norm"},
    {"output", "lm_head"},
};
constexpr EncoderName kT5EncoderAlone[] = {{"output_norm", "encoder.final_layer_norm"}};
constexpr EncoderName kT5Encoder[] = {
    {"attn_norm", "encoder.block.{}.layer.0.layer_norm"},
    {"attn_q", "encoder.block.{}.layer.0.SelfAttention.q"},
    {"attn_k", "encoder.block.{}.layer.0.SelfAttention.k"},
    {"attn_v", "encoder.block.{}.layer.0.SelfAttention.v"},
    {"attn_output", "encoder.block.{}.layer.0.SelfAttention.o"},
    {"attn_rel_b", "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias"},
    {"attn_rel_b", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"},
    {"ffn_norm", "encoder.block.{}.layer.1.layer_norm"},
    {"ffn_up", "encoder.block.{}.layer.1.DenseReluDense.wi"},
    {"ffn_up", "encoder.block.{}.layer.1.DenseReluDense.wi_1"},
    {"ffn_gate", "encoder.block.{}.layer.1.DenseReluDense.wi_0"},
    {"ffn_down", "encoder.block.{}.layer.1.DenseReluDense.wo"},
    {"encoder_norm", "encoder.final_layer_norm"},
};
constexpr EncoderName kT5Decoder[] = {
    {"attn_norm", "decoder.block.{}.layer.0.layer_norm"},
    {"attn_q", "decoder.block.{}.layer.0.SelfAttention.q"},
    {"attn_k", "decoder.block.{}.layer.0.SelfAttention.k"},
    {"attn_v", "decoder.block.{}.layer.0.SelfAttention.v"},
    {"attn_output", "decoder.block.{}.layer.0.SelfAttention.o"},
    {"attn_rel_b", "decoder.block.{}.layer.0.SelfAttention.relative_attention_bias"},
    {"attn_rel_b", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"},
    {"cross_attn_norm", "decoder.block.{}.layer.1.layer_norm"},
    {"cross_attn_q", "decoder.block.{}.layer.1.EncDecAttention.q"},
    {"cross_attn_k", "decoder.block.{}.layer.1.EncDecAttention.k"},
    {"cross_attn_v", "decoder.block.{}.layer.1.EncDecAttention.v"},
    {"cross_attn_output", "decoder.block.{}.layer.1.EncDecAttention.o"},
    {"ffn_norm", "decoder.block.{}.layer.2.layer_norm"},
    {"ffn_up", "decoder.block.{}.layer.2.DenseReluDense.wi"},
    {"ffn_up", "decoder.block.{}.layer.2.DenseReluDense.wi_1"},
    {"ffn_gate", "decoder.block.{}.layer.2.DenseReluDense.wi_0"},
    {"ffn_down", "decoder.block.{}.layer.2.DenseReluDense.wo"},
};

EncoderNames names_outside_blocks(const ModelConfig& config, std::string_view stem) {
  if (config.architecture == "modern-bert") return kModernNames;
  if (config.architecture != "t5") return kBertNames;
  return stem == "output_norm" && config.encodes_only() ? EncoderNames(kT5EncoderAlone) : EncoderNames(kT5Names);
}

EncoderNames names_of_block(const ModelConfig& config, int layer) {
  if (config.architecture == "modern-bert") return kModernBlock;
  if (config.architecture == "nomic-bert") return kNomicBlock;
  if (config.architecture == "albert") return kAlbertBlock;
  if (config.architecture != "t5") return kBertBlock;
  return config.is_encoder(layer) ? EncoderNames(kT5Encoder) : EncoderNames(kT5Decoder);
}

/// The first files called the weights of norms gamma and beta.
void add_old_name(const std::string& name, std::vector<std::string>& names) {
  for (const auto& [now, then] :
       {std::pair{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}}) {
    if (!name.ends_with(now)) continue;
    names.push_back(name.substr(0, name.size() - std::string_view(now).size()) + then);
  }
}

bool is_name_of(std::string_view stored, std::string_view candidate) {
  if (!stored.ends_with(candidate)) return false;
  const std::size_t before = stored.size() - candidate.size();
  return before == 0 || stored[before - 1] == '.';
}

}  // namespace

std::vector<std::string> encoder_weight_names(const ModelConfig& config, std::string_view canonical) {
  std::vector<std::string> names;
  if (config.encoder_layers == 0) return names;
  const WeightNameParts parts = split_weight_name(canonical);
  int layer = 0;
  std::from_chars(parts.layer.data(), parts.layer.data() + parts.layer.size(), layer);
  const EncoderNames known =
      parts.layer.empty() ? names_outside_blocks(config, parts.stem) : names_of_block(config, layer);
  const int in_file = config.is_encoder(layer) ? layer : layer - config.encoder_layers;
  for (const EncoderName& name : known) {
    if (name.canonical != parts.stem) continue;
    std::string file(name.file);
    const std::size_t number = file.find("{}");
    if (number != std::string::npos) file.replace(number, 2, std::to_string(in_file));
    file += fmt::format(".{}", parts.kind);
    names.push_back(file);
    add_old_name(file, names);
  }
  return names;
}

std::optional<StoredEncoderWeight> find_encoder_weight(const std::vector<HuggingFaceShard>& shards,
                                                       const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (std::size_t shard = 0; shard < shards.size(); ++shard) {
      for (const auto& [stored, entry] : shards[shard].file.entries()) {
        if (is_name_of(stored, name)) return StoredEncoderWeight{stored, &entry, shard};
      }
    }
  }
  return std::nullopt;
}

std::int64_t place_encoder_weight(const ModelConfig& config, const WeightInfo& expected,
                                  const StoredEncoderWeight& stored, std::vector<std::int64_t>& shape) {
  const WeightNameParts parts = split_weight_name(expected.name);
  std::int64_t first = 0;
  if (stored.name.find(".Wqkv.") != std::string::npos) {
    shape.front() = config.q_dim() + 2 * std::int64_t{config.kv_dim()};
    if (parts.stem == "attn_k") first = config.q_dim();
    if (parts.stem == "attn_v") first = config.q_dim() + config.kv_dim();
  } else if (stored.name.find(".mlp.Wi.") != std::string::npos) {
    shape.front() *= 2;
    if (parts.stem == "ffn_up") first = config.ff_dim;
  } else if (parts.stem == "position_embd" && stored.entry->shape.size() == 2) {
    // The rows in front are of padding (config.context is without them).
    first = std::max<std::int64_t>(stored.entry->shape[0] - expected.rows, 0);
    shape.front() += first;
  }
  // A table of one row is no vector: its shape says so.
  if (stored.entry->shape.size() == 2 && expected.rows == 1) shape = {1, expected.cols};
  return expected.rows > 1 ? first * expected.cols : first;
}

void adapt_to_files(const std::vector<HuggingFaceShard>& shards, ModelConfig& config) {
  const auto has = [&](const char* canonical) {
    std::vector<std::string> names = encoder_weight_names(config, canonical);
    if (names.empty()) names = {hugging_face_name(canonical, config.architecture), "lm_head.weight"};
    return find_encoder_weight(shards, names).has_value();
  };
  if (config.has_decoder()) {
    config.tied_head = !has("output.weight");
  } else if (config.encodes_only()) {
    const bool head = config.head_transform && has("output_dense.weight");
    if (!head) config.output = OutputKind::kHidden;
    if (head && !config.tied_head) config.tied_head = !has("output.weight");
  } else if (!config.tied_head && !has("output.weight")) {
    config.output = OutputKind::kHidden;
  }
}

}  // namespace butterfly
