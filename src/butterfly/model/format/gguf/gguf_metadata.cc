#include "butterfly/model/format/gguf/gguf_metadata.h"

#include "butterfly/model/format/gguf/gguf_experts.h"
#include "butterfly/model/format/gguf/gguf_families.h"
#include "butterfly/model/format/gguf/gguf_latent.h"
#include "butterfly/model/format/gguf/gguf_vocabulary.h"

namespace butterfly {
namespace {

/// llama.cpp's numbers for general.file_type.
std::uint32_t file_type_number(DType type) {
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ8_0:
    case DType::kInt8:
      return 7;
    case DType::kBF16:
      return 32;
    case DType::kQ4_1:
      return 3;
    case DType::kQ5_0:
      return 8;
    case DType::kQ5_1:
      return 9;
    case DType::kQ2_K:
      return 10;
    case DType::kQ3_K:
      return 12;
    case DType::kQ4_K:
      return 14;
    case DType::kQ5_K:
      return 16;
    case DType::kQ6_K:
      return 18;
    case DType::kIQ4_NL:
      return 25;
    case DType::kIQ4_XS:
      return 30;
    case DType::kMXFP4:
      return 38;
    default:
      return 0;
  }
}

void write_token_id(GgufWriter& writer, const char* key, TokenId token) {
  if (token.value >= 0) writer.add_integer(key, static_cast<std::uint32_t>(token.value));
}

void write_token_ids(GgufWriter& writer, const char* key, const std::vector<TokenId>& tokens) {
  std::vector<std::int32_t> ids;
  for (TokenId token : tokens) ids.push_back(token.value);
  if (!ids.empty()) writer.add_integers(key, ids);
}

void write_pieces(const Vocabulary& vocabulary, std::size_t size, GgufWriter& writer) {
  std::vector<std::string> pieces = vocabulary.pieces;
  std::vector<std::int32_t> types;
  for (TokenType type : vocabulary.types) types.push_back(static_cast<std::int32_t>(type));
  std::vector<float> scores(vocabulary.scores.begin(), vocabulary.scores.end());
  while (pieces.size() < size) pieces.push_back(fmt::format("[PAD{}]", pieces.size()));
  types.resize(pieces.size(), static_cast<std::int32_t>(TokenType::kUnused));
  writer.add_strings("tokenizer.ggml.tokens", pieces);
  writer.add_integers("tokenizer.ggml.token_type", types);
  if (scores.empty()) return;
  constexpr float kNeverMerged = -1e9f;
  scores.resize(pieces.size(), kNeverMerged);
  writer.add_floats("tokenizer.ggml.scores", scores);
}

/// Kinds that no name of the format means are written as what they are, so that other programs refuse them by name.
const char* gguf_model_name(const Vocabulary& vocabulary) {
  switch (vocabulary.kind) {
    case TokenizerKind::kNone:
      return "no_vocab";
    case TokenizerKind::kByteBpe:
      return "gpt2";
    case TokenizerKind::kSentencePiece:
      return "llama";
    case TokenizerKind::kBpe:
      return "huggingface-bpe";
    case TokenizerKind::kWordPiece:
      return "huggingface-wordpiece";
    case TokenizerKind::kUnigram:
      return "huggingface-unigram";
    case TokenizerKind::kWordLevel:
      return "huggingface-wordlevel";
    case TokenizerKind::kLongestMatch:
      return "rwkv";
  }
  return "no_vocab";
}

/// What the common keys cannot say; other programs skip keys they do not know.
void write_own_keys(const Vocabulary& vocabulary, GgufWriter& writer) {
  write_token_ids(writer, "butterfly.tokenizer.end_token_ids", vocabulary.end_tokens);
  write_token_ids(writer, "butterfly.tokenizer.strip_before_ids", vocabulary.strip_before);
  write_token_ids(writer, "butterfly.tokenizer.strip_after_ids", vocabulary.strip_after);
  writer.add_bool("butterfly.tokenizer.fuse_unknown", vocabulary.fuse_unknown);
  writer.add_bool("butterfly.tokenizer.space_prefix_once", vocabulary.space_prefix_once);
  if (vocabulary.kind == TokenizerKind::kSentencePiece) {
    if (!vocabulary.merges.empty()) writer.add_strings("butterfly.tokenizer.merges", vocabulary.merges);
    return;
  }
  if (vocabulary.kind != TokenizerKind::kByteBpe) return;
  writer.add_bool("butterfly.tokenizer.ignore_merges", vocabulary.ignore_merges);
  if (vocabulary.ranks_are_ids) writer.add_bool("butterfly.tokenizer.ranks_are_ids", true);
  if (vocabulary.pre_tokenizer != PreTokenizer::kCustom) return;
  std::vector<std::string> patterns = {vocabulary.custom_pattern};
  patterns.insert(patterns.end(), vocabulary.further_patterns.begin(), vocabulary.further_patterns.end());
  writer.add_strings("butterfly.tokenizer.patterns", patterns);
}

}  // namespace

Status write_gguf_config(const ModelConfig& config, GgufWriter& writer, std::optional<std::uint32_t> file_type) {
  const std::string prefix = config.architecture + ".";
  const auto integer = [&](const char* key, int value) {
    writer.add_integer(prefix + key, static_cast<std::uint32_t>(value));
  };
  writer.add_string("general.architecture", config.architecture);
  writer.add_string("general.name", config.name);
  writer.add_integer("general.file_type", file_type.value_or(file_type_number(config.weight_type)));
  if (block_elements(config.weight_type) > 1) writer.add_integer("general.quantization_version", 2);
  integer("vocab_size", config.vocab);
  integer("context_length", config.context);
  integer("embedding_length", config.model_dim);
  integer("block_count", config.has_decoder() ? config.encoder_layers : config.layers);
  integer("feed_forward_length", config.ff_dim);
  integer("attention.head_count", config.heads);
  integer("attention.head_count_kv", config.kv_heads);
  if (config.has_latent()) {
    write_gguf_latent_sizes(config, writer);
  } else if (config.head_dim * config.heads != config.model_dim) {
    integer("attention.key_length", config.head_dim);
    integer("attention.value_length", config.head_dim);
  }
  const char* epsilon =
      config.norm == NormKind::kLayer ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  writer.add_float(prefix + epsilon, config.norm_epsilon);
  BF_TRY(write_gguf_experts(config, writer));
  return write_gguf_family(config, writer);
}

void write_gguf_vocabulary(const Vocabulary& vocabulary, int size, GgufWriter& writer) {
  if (vocabulary.kind == TokenizerKind::kNone) {
    writer.add_string("tokenizer.ggml.model", "no_vocab");
    return;
  }
  const bool byte_level = vocabulary.kind == TokenizerKind::kByteBpe;
  writer.add_string("tokenizer.ggml.model", gguf_model_name(vocabulary));
  writer.add_string("tokenizer.ggml.pre", gguf_pre_tokenizer_name(vocabulary));
  if (!vocabulary.tokenizer_json.empty()) {
    writer.add_string("tokenizer.huggingface.json", vocabulary.tokenizer_json);
    writer.add_bool("butterfly.tokenizer.from_json", true);
  }
  write_pieces(vocabulary, static_cast<std::size_t>(size), writer);
  if (byte_level) writer.add_strings("tokenizer.ggml.merges", vocabulary.merges);
  write_token_id(writer, "tokenizer.ggml.bos_token_id", vocabulary.bos);
  write_token_id(writer, "tokenizer.ggml.eos_token_id", vocabulary.eos);
  write_token_id(writer, "tokenizer.ggml.unknown_token_id", vocabulary.unknown);
  writer.add_bool("tokenizer.ggml.add_bos_token", vocabulary.add_bos);
  writer.add_bool("tokenizer.ggml.add_eos_token", vocabulary.add_eos);
  writer.add_bool("tokenizer.ggml.add_space_prefix", vocabulary.add_space_prefix);
  if (!vocabulary.chat_template.empty()) writer.add_string("tokenizer.chat_template", vocabulary.chat_template);
  write_own_keys(vocabulary, writer);
}

}  // namespace butterfly
