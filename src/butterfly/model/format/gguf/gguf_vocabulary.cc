#include "butterfly/model/format/gguf/gguf_vocabulary.h"

#include <algorithm>

namespace butterfly {
namespace {

struct PreTokenizerName {
  std::string_view name;
  PreTokenizer value;
};
constexpr PreTokenizerName kPreTokenizerNames[] = {
    {"gpt-2", PreTokenizer::kGpt2},
    {"default", PreTokenizer::kGpt2},
    {"llama-bpe", PreTokenizer::kLlama3},
    {"llama3", PreTokenizer::kLlama3},
    {"llama-v3", PreTokenizer::kLlama3},
    {"qwen2", PreTokenizer::kQwen2},
    {"deepseek-r1-qwen", PreTokenizer::kQwen2},
};

Status read_pieces(const GgufFile& file, Vocabulary& vocabulary) {
  BF_ASSIGN_OR_RETURN(const auto pieces, file.get_strings("tokenizer.ggml.tokens"));
  if (pieces.empty()) {
    return make_error(ErrorCode::kBadData, "{}: names a tokenizer but has no tokenizer.ggml.tokens", file.source());
  }
  vocabulary.pieces.assign(pieces.begin(), pieces.end());
  BF_ASSIGN_OR_RETURN(const auto types, file.get_ints("tokenizer.ggml.token_type"));
  if (!types.empty() && types.size() != pieces.size()) {
    return make_error(ErrorCode::kBadData, "{}: has {} token types for {} tokens", file.source(), types.size(),
                      pieces.size());
  }
  vocabulary.types.assign(pieces.size(), TokenType::kNormal);
  for (std::size_t i = 0; i < types.size(); ++i) {
    // 0 is "undefined" in old files.
    if (types[i] < 0 || types[i] > static_cast<int>(TokenType::kByte)) {
      return make_error(ErrorCode::kBadData, "{}: token {} has the type {}, types end at {}", file.source(), i,
                        types[i], static_cast<int>(TokenType::kByte));
    }
    if (types[i] != 0) vocabulary.types[i] = static_cast<TokenType>(types[i]);
  }
  return {};
}

Status read_sentencepiece(const GgufFile& file, Vocabulary& vocabulary) {
  vocabulary.kind = TokenizerKind::kSentencePiece;
  BF_TRY(read_pieces(file, vocabulary));
  BF_ASSIGN_OR_RETURN(const auto scores, file.get_floats("tokenizer.ggml.scores"));
  vocabulary.scores.assign(scores.begin(), scores.end());
  if (vocabulary.scores.size() != vocabulary.pieces.size()) {
    return make_error(ErrorCode::kBadData, "{}: has {} token scores for {} tokens", file.source(),
                      vocabulary.scores.size(), vocabulary.pieces.size());
  }
  // Merges of a SentencePiece vocabulary count only where this library wrote them: others carry them along unused.
  BF_ASSIGN_OR_RETURN(const auto merges, file.get_strings("butterfly.tokenizer.merges"));
  vocabulary.merges.assign(merges.begin(), merges.end());
  return {};
}

Status read_byte_bpe(const GgufFile& file, Vocabulary& vocabulary) {
  vocabulary.kind = TokenizerKind::kByteBpe;
  BF_TRY(read_pieces(file, vocabulary));
  BF_ASSIGN_OR_RETURN(const auto merges, file.get_strings("tokenizer.ggml.merges"));
  vocabulary.merges.assign(merges.begin(), merges.end());
  BF_ASSIGN_OR_RETURN(const auto patterns, file.get_strings("butterfly.tokenizer.patterns"));
  BF_ASSIGN_OR_RETURN(const auto ignore_merges, file.get_bool("butterfly.tokenizer.ignore_merges"));
  if (!patterns.empty()) {
    vocabulary.pre_tokenizer = PreTokenizer::kCustom;
    vocabulary.custom_pattern = patterns.front();
    vocabulary.further_patterns.assign(patterns.begin() + 1, patterns.end());
    vocabulary.ignore_merges = ignore_merges.value_or(false);
    return {};
  }
  BF_ASSIGN_OR_RETURN(const auto pre, file.get_string("tokenizer.ggml.pre"));
  const auto* found =
      std::find_if(std::begin(kPreTokenizerNames), std::end(kPreTokenizerNames),
                   [&](const PreTokenizerName& entry) { return entry.name == pre.value_or("default"); });
  if (found == std::end(kPreTokenizerNames)) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: the pre-tokenizer is \"{}\", supported are gpt-2, llama-bpe and qwen2", file.source(),
                      printable(*pre));
  }
  vocabulary.pre_tokenizer = found->value;
  vocabulary.ignore_merges = ignore_merges.value_or(found->value == PreTokenizer::kLlama3);
  return {};
}

Result<TokenId> read_token_id(const GgufFile& file, std::string_view key, int vocabulary_size) {
  BF_ASSIGN_OR_RETURN(const auto value, file.get_int(key));
  // Writers that have no such token leave the key out, or write -1 as a signed or an unsigned number.
  if (!value || *value == -1 || *value == 0xFFFFFFFF) return TokenId{-1};
  if (*value < 0 || *value >= vocabulary_size) {
    return make_error(ErrorCode::kBadData, "{}: {} is {}, the vocabulary has {} tokens", file.source(), key, *value,
                      vocabulary_size);
  }
  return TokenId{static_cast<std::int32_t>(*value)};
}

Result<std::vector<TokenId>> read_token_ids(const GgufFile& file, std::string_view key, int vocabulary_size) {
  BF_ASSIGN_OR_RETURN(const auto ids, file.get_ints(key));
  std::vector<TokenId> tokens;
  for (std::int64_t id : ids) {
    if (id < 0 || id >= vocabulary_size) {
      return make_error(ErrorCode::kBadData, "{}: {} has {}, the vocabulary has {} tokens", file.source(), key, id,
                        vocabulary_size);
    }
    tokens.push_back(TokenId{static_cast<std::int32_t>(id)});
  }
  return tokens;
}

Status read_end_tokens(const GgufFile& file, Vocabulary& vocabulary) {
  const auto add = [&](TokenId token) {
    auto& ends = vocabulary.end_tokens;
    if (token.value >= 0 && std::find(ends.begin(), ends.end(), token) == ends.end()) ends.push_back(token);
  };
  add(vocabulary.eos);
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    BF_ASSIGN_OR_RETURN(const TokenId token, read_token_id(file, key, vocabulary.size()));
    add(token);
  }
  BF_ASSIGN_OR_RETURN(const auto listed, read_token_ids(file, "butterfly.tokenizer.end_token_ids", vocabulary.size()));
  for (TokenId token : listed) add(token);
  add_known_end_tokens(vocabulary);
  return {};
}

Status read_special_tokens(const GgufFile& file, Vocabulary& vocabulary) {
  const int size = vocabulary.size();
  BF_ASSIGN_OR_RETURN(vocabulary.bos, read_token_id(file, "tokenizer.ggml.bos_token_id", size));
  BF_ASSIGN_OR_RETURN(vocabulary.eos, read_token_id(file, "tokenizer.ggml.eos_token_id", size));
  BF_ASSIGN_OR_RETURN(vocabulary.unknown, read_token_id(file, "tokenizer.ggml.unknown_token_id", size));
  BF_TRY(read_end_tokens(file, vocabulary));
  const bool sentencepiece = vocabulary.kind == TokenizerKind::kSentencePiece;
  const bool begins = sentencepiece || vocabulary.pre_tokenizer == PreTokenizer::kLlama3;
  BF_ASSIGN_OR_RETURN(const auto add_bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  BF_ASSIGN_OR_RETURN(const auto add_eos, file.get_bool("tokenizer.ggml.add_eos_token"));
  BF_ASSIGN_OR_RETURN(const auto space, file.get_bool("tokenizer.ggml.add_space_prefix"));
  // A text cannot begin or end with a token that the vocabulary lacks.
  vocabulary.add_bos = add_bos.value_or(begins) && vocabulary.bos.value >= 0;
  vocabulary.add_eos = add_eos.value_or(false) && vocabulary.eos.value >= 0;
  vocabulary.add_space_prefix = space.value_or(sentencepiece);
  BF_ASSIGN_OR_RETURN(const auto once, file.get_bool("butterfly.tokenizer.space_prefix_once"));
  BF_ASSIGN_OR_RETURN(const auto fuse, file.get_bool("butterfly.tokenizer.fuse_unknown"));
  vocabulary.space_prefix_once = once.value_or(vocabulary.space_prefix_once);
  vocabulary.fuse_unknown = fuse.value_or(vocabulary.fuse_unknown);
  BF_ASSIGN_OR_RETURN(vocabulary.strip_before, read_token_ids(file, "butterfly.tokenizer.strip_before_ids", size));
  BF_ASSIGN_OR_RETURN(vocabulary.strip_after, read_token_ids(file, "butterfly.tokenizer.strip_after_ids", size));
  return {};
}

}  // namespace

Result<Vocabulary> read_gguf_vocabulary(const GgufFile& file) {
  Vocabulary vocabulary;
  BF_ASSIGN_OR_RETURN(const auto model, file.get_string("tokenizer.ggml.model"));
  if (!model || *model == "none" || *model == "no_vocab") return vocabulary;
  if (*model == "llama") {
    BF_TRY(read_sentencepiece(file, vocabulary));
  } else if (*model == "gpt2") {
    BF_TRY(read_byte_bpe(file, vocabulary));
  } else {
    return make_error(ErrorCode::kUnsupported,
                      "{}: the tokenizer is \"{}\", supported are llama (SentencePiece) and gpt2 (byte-level BPE)",
                      file.source(), printable(*model));
  }
  BF_TRY(read_special_tokens(file, vocabulary));
  BF_ASSIGN_OR_RETURN(const auto chat_template, file.get_string("tokenizer.chat_template"));
  vocabulary.chat_template = chat_template.value_or("");
  return vocabulary;
}

const char* gguf_pre_tokenizer_name(PreTokenizer pre_tokenizer) {
  switch (pre_tokenizer) {
    case PreTokenizer::kGpt2:
      return "gpt-2";
    case PreTokenizer::kLlama3:
      return "llama-bpe";
    case PreTokenizer::kQwen2:
      return "qwen2";
    case PreTokenizer::kCustom:
      return "default";
  }
  return "default";
}

}  // namespace butterfly
