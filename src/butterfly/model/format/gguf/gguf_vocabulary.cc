#include "butterfly/model/format/gguf/gguf_vocabulary.h"

#include <algorithm>
#include <charconv>

#include "butterfly/model/format/tokenizer/tokenizer_json.h"
#include "butterfly/text/steps/published_patterns.h"
#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

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

void use_pre_tokenizer(const NamedPreTokenizer& named, Vocabulary& vocabulary) {
  vocabulary.ignore_merges = named.ignore_merges;
  vocabulary.add_bos = named.add_bos;
  vocabulary.add_eos = named.add_sep;
  vocabulary.pre_tokenizer = PreTokenizer::kCustom;
  vocabulary.pre_tokenizer_name = named.name;
  const auto patterns = named.patterns();
  if (named.visible_spaces) {
    // SentencePiece's spelling with the merges of BPE: lines are the words.
    vocabulary.kind = TokenizerKind::kBpe;
    vocabulary.byte_fallback = true;
    vocabulary.drops_unknown = true;
    vocabulary.normalizers = {
        {.kind = NormalizerStep::Kind::kReplace, .pattern = " ", .content = std::string(kVisibleSpace)}};
    vocabulary.pre_tokenizers = {{.pattern = std::string(patterns[0])}};
    vocabulary.decoders = {{.kind = DecoderStep::Kind::kReplace, .pattern = std::string(kVisibleSpace), .content = " "},
                           {.kind = DecoderStep::Kind::kByteFallback}};
    return;
  }
  if (patterns.size() == 1) {
    for (PreTokenizer known : {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2}) {
      if (patterns[0] == pre_tokenizer_pattern(known)) vocabulary.pre_tokenizer = known;
    }
  }
  if (vocabulary.pre_tokenizer != PreTokenizer::kCustom) return;
  vocabulary.custom_pattern = patterns[0];
  vocabulary.further_patterns.assign(patterns.begin() + 1, patterns.end());
}

/// "whitespace": BPE over words of plain characters, which no other name means.
Status use_whitespace(const GgufFile& file, Vocabulary& vocabulary) {
  BF_ASSIGN_OR_RETURN(const auto lower, file.get_bool("tokenizer.ggml.normalizer.lowercase"));
  vocabulary.kind = TokenizerKind::kBpe;
  vocabulary.byte_fallback = true;
  vocabulary.drops_unknown = true;
  if (lower.value_or(false)) vocabulary.normalizers = {{.kind = NormalizerStep::Kind::kLowercase}};
  vocabulary.pre_tokenizers = {{.kind = PreTokenizerStep::Kind::kWhitespaceSplit}};
  vocabulary.decoders = {{.kind = DecoderStep::Kind::kByteFallback}, {.kind = DecoderStep::Kind::kFuse}};
  return {};
}

/// BERT's WordPiece as llama.cpp spells it: U+2581 in front of pieces that begin a word, nothing in front of others.
Status read_word_piece(const GgufFile& file, Vocabulary& vocabulary) {
  vocabulary.kind = TokenizerKind::kWordPiece;
  BF_TRY(read_pieces(file, vocabulary));
  BF_ASSIGN_OR_RETURN(const auto lower, file.get_bool("tokenizer.ggml.normalizer.lowercase"));
  BF_ASSIGN_OR_RETURN(const auto strip, file.get_bool("tokenizer.ggml.normalizer.strip_accents"));
  vocabulary.word_prefix = kVisibleSpace;
  vocabulary.word_characters_max = SIZE_MAX;
  vocabulary.normalizers = {{.kind = NormalizerStep::Kind::kBert,
                             .clean = true,
                             .han = true,
                             .strip_accents = strip.value_or(lower.value_or(true)),
                             .lowercase = lower.value_or(true)}};
  vocabulary.pre_tokenizers = {{.kind = PreTokenizerStep::Kind::kBert}};
  vocabulary.decoders = {{.kind = DecoderStep::Kind::kReplace, .pattern = std::string(kVisibleSpace), .content = " "},
                         {.kind = DecoderStep::Kind::kFuse},
                         {.kind = DecoderStep::Kind::kStrip, .content = " ", .left = 1}};
  return {};
}

/// Numbers from 0 to 255 as the bytes that they are; files write them signed, too.
Result<std::string> read_charsmap(const GgufFile& file) {
  BF_ASSIGN_OR_RETURN(const auto numbers, file.get_ints("tokenizer.ggml.precompiled_charsmap"));
  std::string bytes;
  for (std::int64_t number : numbers) {
    if (number < -128 || number > 255) {
      return make_error(ErrorCode::kBadData, "{}: the table of characters has {}, bytes end at 255", file.source(),
                        number);
    }
    bytes.push_back(static_cast<char>(number & 0xFF));
  }
  return bytes;
}

Status read_unigram(const GgufFile& file, Vocabulary& vocabulary) {
  BF_TRY(read_sentencepiece(file, vocabulary));
  vocabulary.kind = TokenizerKind::kUnigram;
  vocabulary.merges.clear();
  vocabulary.user_defined_inside = true;
  NormalizerStep step{.kind = NormalizerStep::Kind::kSentencePiece, .escape_spaces = true};
  BF_ASSIGN_OR_RETURN(step.content, read_charsmap(file));
  BF_ASSIGN_OR_RETURN(const auto space, file.get_bool("tokenizer.ggml.add_space_prefix"));
  BF_ASSIGN_OR_RETURN(const auto collapse, file.get_bool("tokenizer.ggml.remove_extra_whitespaces"));
  BF_ASSIGN_OR_RETURN(const auto suffix, file.get_bool("tokenizer.ggml.treat_whitespace_as_suffix"));
  BF_ASSIGN_OR_RETURN(const auto escape, file.get_bool("tokenizer.ggml.escape_whitespaces"));
  step.collapse_spaces = collapse.value_or(false);
  step.escape_spaces = escape.value_or(true);
  step.space_prefix = space.value_or(false) && !suffix.value_or(false);
  step.space_suffix = space.value_or(false) && suffix.value_or(false);
  vocabulary.decoders = {{.kind = DecoderStep::Kind::kReplace, .pattern = std::string(kVisibleSpace), .content = " "},
                         {.kind = DecoderStep::Kind::kByteFallback},
                         {.kind = DecoderStep::Kind::kFuse}};
  if (step.space_prefix || step.collapse_spaces) {
    vocabulary.decoders.push_back({.kind = DecoderStep::Kind::kStrip, .content = " ", .left = 1});
  }
  vocabulary.normalizers = {std::move(step)};
  return {};
}

/// A piece of RWKV's with its escapes (\\n, \\x0A, ...) as the bytes they stand for.
std::string unescaped(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      bytes.push_back(text[i]);
      continue;
    }
    const char kind = text[++i];
    int value = -1;
    if (kind == 'x' && i + 2 < text.size()) std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16);
    if (kind == 'x' && value >= 0) {
      bytes.push_back(static_cast<char>(value));
      i += 2;
    } else {
      bytes.push_back(kind == 't' ? '\t' : kind == 'n' ? '\n' : kind == 'r' ? '\r' : kind);
    }
  }
  return bytes;
}

Status read_longest_match(const GgufFile& file, Vocabulary& vocabulary) {
  vocabulary.kind = TokenizerKind::kLongestMatch;
  BF_TRY(read_pieces(file, vocabulary));
  for (std::string& piece : vocabulary.pieces) piece = unescaped(piece);
  return {};
}

Status read_byte_bpe(const GgufFile& file, Vocabulary& vocabulary) {
  vocabulary.kind = TokenizerKind::kByteBpe;
  BF_TRY(read_pieces(file, vocabulary));
  BF_ASSIGN_OR_RETURN(const auto merges, file.get_strings("tokenizer.ggml.merges"));
  vocabulary.merges.assign(merges.begin(), merges.end());
  BF_ASSIGN_OR_RETURN(const auto ranked, file.get_bool("butterfly.tokenizer.ranks_are_ids"));
  vocabulary.ranks_are_ids = ranked.value_or(false);
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
  if (pre && *pre == "whitespace") return use_whitespace(file, vocabulary);
  const NamedPreTokenizer* named = find_pre_tokenizer(pre.value_or("default"));
  if (named == nullptr) {
    return make_error(ErrorCode::kUnsupported, "{}: the pre-tokenizer \"{}\" is not known, such as gpt-2 and qwen2 are",
                      file.source(), printable(*pre));
  }
  use_pre_tokenizer(*named, vocabulary);
  if (ignore_merges) vocabulary.ignore_merges = *ignore_merges;
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

/// BERT's texts stand between [CLS] and [SEP], which files name in one way or another.
Status read_bert_tokens(const GgufFile& file, Vocabulary& vocabulary) {
  const int size = vocabulary.size();
  BF_ASSIGN_OR_RETURN(const TokenId first, read_token_id(file, "tokenizer.ggml.cls_token_id", size));
  // The second name is spelled as the format has it.
  BF_ASSIGN_OR_RETURN(TokenId last, read_token_id(file, "tokenizer.ggml.seperator_token_id", size));
  if (last.value < 0) {
    BF_ASSIGN_OR_RETURN(last, read_token_id(file, "tokenizer.ggml.separator_token_id", size));
  }
  const auto named = [&](const char* name) {
    const auto found = std::ranges::find(vocabulary.pieces, name);
    return TokenId{found == vocabulary.pieces.end() ? -1
                                                    : static_cast<std::int32_t>(found - vocabulary.pieces.begin())};
  };
  if (vocabulary.bos.value < 0) vocabulary.bos = first.value >= 0 ? first : named("[CLS]");
  if (last.value < 0) last = named("[SEP]");
  if (last.value >= 0) vocabulary.eos = last;
  if (vocabulary.unknown.value < 0) vocabulary.unknown = named("[UNK]");
  return {};
}

Status read_special_tokens(const GgufFile& file, Vocabulary& vocabulary) {
  const int size = vocabulary.size();
  BF_ASSIGN_OR_RETURN(vocabulary.bos, read_token_id(file, "tokenizer.ggml.bos_token_id", size));
  BF_ASSIGN_OR_RETURN(vocabulary.eos, read_token_id(file, "tokenizer.ggml.eos_token_id", size));
  BF_ASSIGN_OR_RETURN(vocabulary.unknown, read_token_id(file, "tokenizer.ggml.unknown_token_id", size));
  BF_TRY(read_end_tokens(file, vocabulary));
  const bool sentencepiece = vocabulary.kind == TokenizerKind::kSentencePiece;
  const bool word_piece = vocabulary.kind == TokenizerKind::kWordPiece;
  const bool unigram = vocabulary.kind == TokenizerKind::kUnigram;
  if (word_piece) BF_TRY(read_bert_tokens(file, vocabulary));
  const bool begins = sentencepiece || word_piece || vocabulary.add_bos;
  const bool ends = word_piece || unigram || vocabulary.add_eos;
  BF_ASSIGN_OR_RETURN(auto add_bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  BF_ASSIGN_OR_RETURN(auto add_eos, file.get_bool("tokenizer.ggml.add_eos_token"));
  BF_ASSIGN_OR_RETURN(const auto add_sep, file.get_bool("tokenizer.ggml.add_sep_token"));
  if (!add_eos) add_eos = add_sep;
  if (vocabulary.pre_tokenizer_name == "gemma4") add_bos = true;  // early files say false and mean true
  BF_ASSIGN_OR_RETURN(const auto space, file.get_bool("tokenizer.ggml.add_space_prefix"));
  // A text cannot begin or end with a token that the vocabulary lacks.
  vocabulary.add_bos = add_bos.value_or(begins) && vocabulary.bos.value >= 0;
  vocabulary.add_eos = add_eos.value_or(ends) && vocabulary.eos.value >= 0;
  vocabulary.add_space_prefix = space.value_or(sentencepiece);
  BF_ASSIGN_OR_RETURN(const auto once, file.get_bool("butterfly.tokenizer.space_prefix_once"));
  BF_ASSIGN_OR_RETURN(const auto fuse, file.get_bool("butterfly.tokenizer.fuse_unknown"));
  vocabulary.space_prefix_once = once.value_or(vocabulary.space_prefix_once);
  vocabulary.fuse_unknown = fuse.value_or(vocabulary.fuse_unknown);
  BF_ASSIGN_OR_RETURN(vocabulary.strip_before, read_token_ids(file, "butterfly.tokenizer.strip_before_ids", size));
  BF_ASSIGN_OR_RETURN(vocabulary.strip_after, read_token_ids(file, "butterfly.tokenizer.strip_after_ids", size));
  return {};
}

Result<Vocabulary> read_embedded_json(const GgufFile& file, const std::string& json) {
  auto vocabulary = read_tokenizer_json(json, "");
  if (!vocabulary) return make_error(vocabulary.error().code, "{}: {}", file.source(), vocabulary.error().message);
  const int size = vocabulary->size();
  BF_ASSIGN_OR_RETURN(const TokenId bos, read_token_id(file, "tokenizer.ggml.bos_token_id", size));
  BF_ASSIGN_OR_RETURN(const TokenId eos, read_token_id(file, "tokenizer.ggml.eos_token_id", size));
  if (bos.value >= 0) vocabulary->bos = bos;
  if (eos.value >= 0) vocabulary->eos = eos;
  BF_TRY(read_end_tokens(file, *vocabulary));
  BF_ASSIGN_OR_RETURN(const auto chat_template, file.get_string("tokenizer.chat_template"));
  vocabulary->chat_template = chat_template.value_or("");
  return vocabulary;
}

}  // namespace

Result<Vocabulary> read_gguf_vocabulary(const GgufFile& file) {
  Vocabulary vocabulary;
  BF_ASSIGN_OR_RETURN(const auto model, file.get_string("tokenizer.ggml.model"));
  // What no key of the format can say is there as Hugging Face has it.
  BF_ASSIGN_OR_RETURN(const auto whole, file.get_bool("butterfly.tokenizer.from_json"));
  BF_ASSIGN_OR_RETURN(const auto json, file.get_string("tokenizer.huggingface.json"));
  if (whole.value_or(false) && json) return read_embedded_json(file, std::string(*json));
  if (!model || *model == "none" || *model == "no_vocab") return vocabulary;
  if (*model == "llama") {
    BF_TRY(read_sentencepiece(file, vocabulary));
  } else if (*model == "gpt2" || *model == "gemma4") {
    BF_TRY(read_byte_bpe(file, vocabulary));
    if (*model == "gemma4") use_pre_tokenizer(*find_pre_tokenizer("gemma4"), vocabulary);
  } else if (*model == "bert") {
    BF_TRY(read_word_piece(file, vocabulary));
  } else if (*model == "t5") {
    BF_TRY(read_unigram(file, vocabulary));
  } else if (*model == "rwkv") {
    BF_TRY(read_longest_match(file, vocabulary));
  } else {
    return make_error(
        ErrorCode::kUnsupported,
        "{}: the tokenizer is \"{}\", supported are llama (SentencePiece), gpt2 (byte-level BPE), gemma4, "
        "bert (WordPiece), t5 (Unigram) and rwkv",
        file.source(), printable(*model));
  }
  BF_TRY(read_special_tokens(file, vocabulary));
  BF_ASSIGN_OR_RETURN(const auto chat_template, file.get_string("tokenizer.chat_template"));
  vocabulary.chat_template = chat_template.value_or("");
  return vocabulary;
}

std::string gguf_pre_tokenizer_name(const Vocabulary& vocabulary) {
  if (vocabulary.kind != TokenizerKind::kByteBpe) return "default";
  switch (vocabulary.pre_tokenizer) {
    case PreTokenizer::kGpt2:
      return "gpt-2";
    case PreTokenizer::kLlama3:
      return "llama-bpe";
    case PreTokenizer::kQwen2:
      return "qwen2";
    case PreTokenizer::kCustom:
      break;
  }
  return vocabulary.pre_tokenizer_name.empty() ? "default" : vocabulary.pre_tokenizer_name;
}

}  // namespace butterfly
