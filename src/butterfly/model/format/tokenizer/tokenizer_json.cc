#include "butterfly/model/format/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <optional>

#include "butterfly/base/json.h"
#include "butterfly/base/text/printable.h"
#include "butterfly/model/format/tokenizer/tokenizer_json_steps.h"
#include "butterfly/text/models/merge_table.h"

namespace butterfly {
namespace {

using nlohmann::json;

/// `score` as `tokenizers` reads its digits: all of them as one whole number, rounded, then divided by a power of ten.
/// The last bit may differ from the nearest double, and with it which of two equal sums is the greater.
double score_as_read(double score) {
  const std::string text = fmt::format("{}", score);
  const std::size_t point = text.find('.');
  constexpr std::size_t kExactPowersMax = 22;
  double power = 1;
  std::uint64_t digits = 0;
  for (std::size_t i = text.starts_with('-') ? 1 : 0; i < text.size(); ++i) {
    if (i == point) continue;
    if (text[i] < '0' || text[i] > '9') return score;  // an exponent
    digits = digits * 10 + static_cast<std::uint64_t>(text[i] - '0');
    if (point != std::string::npos && i > point) power *= 10;  // exact up to 10^22
  }
  if (text.size() > kExactPowersMax - 2) return score;
  const double magnitude = static_cast<double>(digits) / power;
  return text.starts_with('-') ? -magnitude : magnitude;
}

/// "tok", or {"content": "tok"}; empty for anything else.
std::string token_text(const json& value) {
  return value.is_string() ? value.get<std::string>() : json_string(value, "content");
}

class Reader {
 public:
  Reader(const json& root, const json& config) : root_(root), config_(config), model_(json_member(root, "model")) {}

  Result<Vocabulary> read() {
    BF_TRY(read_model());
    BF_TRY(out_.kind == TokenizerKind::kUnigram ? read_scored_pieces() : read_pieces());
    model_size_ = out_.pieces.size();
    BF_ASSIGN_OR_RETURN(out_.normalizers, read_normalizers(json_member(root_, "normalizer")));
    BF_ASSIGN_OR_RETURN(out_.pre_tokenizers, read_pre_tokenizers(json_member(root_, "pre_tokenizer")));
    BF_ASSIGN_OR_RETURN(out_.decoders, read_decoders(json_member(root_, "decoder")));
    BF_TRY(read_added_tokens());
    for (int id = 0; id < out_.size(); ++id) {
      const auto index = static_cast<std::size_t>(id);
      if (!out_.pieces[index].empty()) ids_.try_emplace(out_.pieces[index], id);
    }
    if (out_.kind == TokenizerKind::kBpe) BF_TRY(read_merges());
    BF_TRY(read_unknown());
    simplify_kind(out_);
    if (out_.kind == TokenizerKind::kSentencePiece) mark_bytes();
    if (out_.kind == TokenizerKind::kSentencePiece || out_.kind == TokenizerKind::kBpe) score_pieces();
    mark_unknown();
    BF_TRY(read_post_processor(json_member(root_, "post_processor")));
    finish_template();
    read_config();
    add_known_end_tokens(out_);
    return std::move(out_);
  }

 private:
  Status read_model();
  Status read_bpe();
  Status read_pieces();
  Status read_scored_pieces();
  Status read_added_tokens();
  Status place(const std::string& piece, const json& id, TokenType type);
  Status read_merges();
  Status read_unknown();
  void mark_bytes();
  void mark_unknown();
  void score_pieces();
  Status read_post_processor(const json& processor);
  Status read_template(const json& processor);
  Status read_pair_of_tokens(const json& processor);
  Status template_tokens(const json& processor, const json& step, std::vector<TokenId>& ids) const;
  void finish_template();
  void read_config();
  TokenId find(const std::string& piece) const;

  const json& root_;
  const json& config_;
  const json& model_;
  Vocabulary out_;
  std::int64_t id_limit_ = 0;
  PieceMap ids_;                // every spelling; points into out_.pieces
  std::size_t model_size_ = 0;  // pieces of the model itself, without added tokens
  bool has_template_ = false;
  std::vector<TokenId> before_;  // what templates put in front of a text, and behind it
  std::vector<TokenId> behind_;
};

TokenId Reader::find(const std::string& piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? TokenId{-1} : TokenId{found->second};
}

Status Reader::read_model() {
  if (!model_.is_object()) return make_error(ErrorCode::kBadData, "tokenizer.json: has no model");
  std::string type = json_string(model_, "type");
  // Files of 2020 do not name the type.
  if (type.empty() && json_member(model_, "merges").is_array()) type = "BPE";
  if (type.empty() && json_member(model_, "vocab").is_array()) type = "Unigram";
  if (type.empty() && model_.contains("continuing_subword_prefix")) type = "WordPiece";
  if (type.empty() && json_member(model_, "unk_token").is_string()) type = "WordLevel";
  if (type == "BPE") return read_bpe();
  if (type == "WordPiece") {
    out_.kind = TokenizerKind::kWordPiece;
    const json& prefix = json_member(model_, "continuing_subword_prefix");
    out_.continuing_prefix = prefix.is_string() ? prefix.get<std::string>() : "##";
    constexpr std::size_t kMost = 1 << 30;
    BF_ASSIGN_OR_RETURN(out_.word_characters_max, json_count(model_, "max_input_chars_per_word", 100, kMost));
  } else if (type == "Unigram") {
    out_.kind = TokenizerKind::kUnigram;
    out_.byte_fallback = json_bool(model_, "byte_fallback");
  } else if (type == "WordLevel") {
    out_.kind = TokenizerKind::kWordLevel;
  } else {
    return make_error(ErrorCode::kUnsupported,
                      "tokenizer.json: the model is \"{}\", supported are BPE, WordPiece, Unigram and WordLevel",
                      printable(type));
  }
  return {};
}

Status Reader::read_bpe() {
  out_.kind = TokenizerKind::kBpe;
  const json& dropout = json_member(model_, "dropout");
  if (dropout.is_number() && dropout.get<double>() != 0) {
    return make_error(ErrorCode::kUnsupported, "tokenizer.json: dropout is {}, only 0 gives one answer",
                      dropout.get<double>());
  }
  out_.continuing_prefix = json_string(model_, "continuing_subword_prefix");
  out_.word_suffix = json_string(model_, "end_of_word_suffix");
  out_.ignore_merges = json_bool(model_, "ignore_merges");
  out_.fuse_unknown = json_bool(model_, "fuse_unk");
  out_.byte_fallback = json_bool(model_, "byte_fallback");
  out_.drops_unknown = true;
  return {};
}

Status Reader::place(const std::string& piece, const json& id, TokenType type) {
  if (!id.is_number_integer() ||
      (id.is_number_unsigned() ? id.get<std::uint64_t>() >= static_cast<std::uint64_t>(id_limit_)
                               : id.get<std::int64_t>() < 0)) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: the id of \"{}\" is {}, expected 0 to {}", printable(piece),
                      printable(dump_json(id)), id_limit_ - 1);
  }
  const auto index = id.get<std::size_t>();
  if (index >= out_.pieces.size()) {
    out_.pieces.resize(index + 1);
    out_.types.resize(index + 1, TokenType::kUnused);
  }
  std::string& slot = out_.pieces[index];
  if (!slot.empty() && slot != piece) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: \"{}\" and \"{}\" both have the id {}", printable(slot),
                      printable(piece), index);
  }
  slot = piece;
  out_.types[index] = type;
  return {};
}

Status Reader::read_pieces() {
  const json& vocab = json_member(model_, "vocab");
  if (!vocab.is_object() || vocab.empty()) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: the vocabulary is {}, expected a non-empty object",
                      vocab.type_name());
  }
  // Real vocabularies have few holes; a huge id would only make us allocate.
  const json& added = json_member(root_, "added_tokens");
  id_limit_ = 2 * static_cast<std::int64_t>(vocab.size() + (added.is_array() ? added.size() : 0)) + 65536;
  for (const auto& [piece, id] : vocab.items()) BF_TRY(place(piece, id, TokenType::kNormal));
  return {};
}

/// [["piece", score], ...], the id is the place.
Status Reader::read_scored_pieces() {
  const json& vocab = json_member(model_, "vocab");
  if (!vocab.is_array() || vocab.empty()) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: the vocabulary is {}, expected a non-empty array",
                      vocab.type_name());
  }
  const json& added = json_member(root_, "added_tokens");
  id_limit_ = 2 * static_cast<std::int64_t>(vocab.size() + (added.is_array() ? added.size() : 0)) + 65536;
  for (const json& entry : vocab) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return make_error(ErrorCode::kBadData, "tokenizer.json: entry {} of the vocabulary is {}, expected [text, score]",
                        out_.pieces.size(), printable(dump_json(entry)));
    }
    out_.pieces.push_back(entry[0].get<std::string>());
    out_.scores.push_back(score_as_read(entry[1].get<double>()));
    out_.types.push_back(TokenType::kNormal);
  }
  return {};
}

Status Reader::read_added_tokens() {
  const json& added = json_member(root_, "added_tokens");
  if (added.is_null()) return {};
  if (!added.is_array()) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: added_tokens is {}, expected an array", added.type_name());
  }
  const bool prepends = std::ranges::any_of(
      out_.normalizers, [](const NormalizerStep& step) { return step.kind == NormalizerStep::Kind::kPrepend; });
  for (const json& token : added) {
    const std::string content = json_string(token, "content");
    if (content.empty()) return make_error(ErrorCode::kBadData, "tokenizer.json: an added token has no content");
    const json& id = json_member(token, "id");
    BF_TRY(place(content, id, json_bool(token, "special") ? TokenType::kControl : TokenType::kUserDefined));
    const TokenId token_id{id.get<std::int32_t>()};
    if (json_bool(token, "lstrip")) out_.strip_before.push_back(token_id);
    if (json_bool(token, "rstrip")) out_.strip_after.push_back(token_id);
    if (json_bool(token, "single_word")) out_.single_word.push_back(token_id);
    // Where every text gets a prefix, special ones are looked for in the text as it is, whatever their flag says:
    // `</s>` behind a word would never be found.
    const bool hidden = prepends && json_bool(token, "special");
    const bool late = json_bool_or(token, "normalized", true) && !hidden;
    if (late && !out_.normalizers.empty()) out_.normalized.push_back(token_id);
  }
  if (out_.kind == TokenizerKind::kUnigram) out_.scores.resize(out_.pieces.size(), 0);
  return {};
}

Status Reader::read_merges() {
  const json& merges = json_member(model_, "merges");
  if (!merges.is_array()) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: merges is {}, expected an array", merges.type_name());
  }
  out_.merges.reserve(merges.size());
  for (const json& merge : merges) {
    std::string text;
    if (merge.is_string()) {
      text = merge.get<std::string>();
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      text = merge[0].get<std::string>() + ' ' + merge[1].get<std::string>();
    } else {
      return make_error(ErrorCode::kBadData, "tokenizer.json: merge {} is {}, expected \"left right\" or two strings",
                        out_.merges.size(), merge.type_name());
    }
    if (!parse_merge(text, ids_, out_.continuing_prefix)) {
      return make_error(
          ErrorCode::kBadData,
          "tokenizer.json: merge {} is \"{}\", but its halves and their union are not all in the vocabulary",
          out_.merges.size(), printable(text));
    }
    out_.merges.push_back(std::move(text));
  }
  return {};
}

Status Reader::read_unknown() {
  if (out_.kind == TokenizerKind::kUnigram) {
    const json& id = json_member(model_, "unk_id");
    if (id.is_null()) return {};
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= model_size_) {
      return make_error(ErrorCode::kBadData, "tokenizer.json: unk_id is {}, the vocabulary has {} pieces",
                        printable(dump_json(id)), model_size_);
    }
    out_.unknown = TokenId{id.get<std::int32_t>()};
    return {};
  }
  const std::string unknown = json_string(model_, "unk_token");
  if (unknown.empty()) return {};
  out_.unknown = find(unknown);
  // WordPiece and WordLevel always name one, and need it for some texts only.
  if (out_.unknown.value < 0 && out_.kind == TokenizerKind::kBpe) {
    return make_error(ErrorCode::kBadData,
                      "tokenizer.json: the unknown token is \"{}\", which is not in the vocabulary",
                      printable(unknown));
  }
  return {};
}

/// Byte-level vocabularies name a token that has another job, and never need it.
void Reader::mark_unknown() {
  if (out_.unknown.value < 0 || out_.kind == TokenizerKind::kByteBpe) return;
  out_.types[static_cast<std::size_t>(out_.unknown.value)] = TokenType::kUnknown;
}

void Reader::mark_bytes() {
  if (!json_bool(model_, "byte_fallback")) return;
  for (int byte = 0; byte < 256; ++byte) {
    const TokenId id = find(fmt::format("<0x{:02X}>", byte));
    if (id.value >= 0) out_.types[static_cast<std::size_t>(id.value)] = TokenType::kByte;
  }
}

/// The tokenizer follows the merges; scores say the same as far as scores can, for formats that know nothing else.
void Reader::score_pieces() {
  out_.scores.assign(out_.pieces.size(), 0);
  const float last = -static_cast<float>(out_.merges.size()) - 1;
  for (std::size_t id = 0; id < out_.pieces.size(); ++id) {
    if (out_.types[id] == TokenType::kNormal) out_.scores[id] = last;
  }
  for (std::size_t i = out_.merges.size(); i-- > 0;) {
    const std::optional<MergeParts> parts = parse_merge(out_.merges[i], ids_, out_.continuing_prefix);
    out_.scores[static_cast<std::size_t>(parts->merged)] = -static_cast<float>(i) - 1;
  }
}

/// Appends the ids of a template's step; none where it is the text.
Status Reader::template_tokens(const json& processor, const json& step, std::vector<TokenId>& ids) const {
  const json& special = json_member(step, "SpecialToken");
  if (!special.is_object()) return {};
  const std::string name = json_string(special, "id");
  const json& entry = json_member(json_member(processor, "special_tokens"), name.c_str());
  const json& listed = json_member(entry, "ids");
  const bool some = listed.is_array() && !listed.empty() && std::ranges::all_of(listed, [&](const json& id) {
                      return id.is_number_unsigned() && id.get<std::uint64_t>() < out_.pieces.size();
                    });
  if (!some) {
    return make_error(ErrorCode::kBadData,
                      "tokenizer.json: the template's token \"{}\" has the ids {}, expected some of {}",
                      printable(name), printable(dump_json(listed)), out_.pieces.size());
  }
  for (const json& id : listed) ids.emplace_back(id.get<std::int32_t>());
  return {};
}

Status Reader::read_template(const json& processor) {
  const json& single = json_member(processor, "single");
  if (!single.is_array() || single.empty()) return {};
  const auto is_text = [](const json& step) { return step.contains("Sequence"); };
  const auto text = std::find_if(single.begin(), single.end(), is_text);
  if (text != single.end() && std::find_if(text + 1, single.end(), is_text) != single.end()) {
    return make_error(ErrorCode::kUnsupported, "tokenizer.json: a template for one text has it more than once");
  }
  has_template_ = true;
  std::vector<TokenId> before;
  for (auto step = single.begin(); step != single.end(); ++step) {
    BF_TRY(template_tokens(processor, *step, step < text ? before : behind_));
  }
  before_.insert(before_.begin(), before.begin(), before.end());
  return {};
}

/// BertProcessing and RobertaProcessing: "cls" in front, "sep" behind, each [text, id].
Status Reader::read_pair_of_tokens(const json& processor) {
  for (const char* key : {"cls", "sep"}) {
    const json& token = json_member(processor, key);
    const bool good = token.is_array() && token.size() == 2 && token[1].is_number_unsigned() &&
                      token[1].get<std::uint64_t>() < out_.pieces.size();
    if (!good) {
      return make_error(ErrorCode::kBadData, "tokenizer.json: {} is {}, expected a token and its id below {}", key,
                        printable(dump_json(token)), out_.pieces.size());
    }
    const TokenId id{token[1].get<std::int32_t>()};
    if (*key == 'c') {
      before_.insert(before_.begin(), id);
    } else {
      behind_.push_back(id);
    }
  }
  has_template_ = true;
  return {};
}

Status Reader::read_post_processor(const json& processor) {
  if (processor.is_null()) return {};
  const std::string type = json_string(processor, "type");
  if (type == "ByteLevel") return {};  // moves offsets, which nothing here has
  if (type == "TemplateProcessing") return read_template(processor);
  if (type == "BertProcessing" || type == "RobertaProcessing") return read_pair_of_tokens(processor);
  if (type == "Sequence") {
    const json& steps = json_member(processor, "processors");
    if (steps.is_array()) {
      for (const json& step : steps) BF_TRY(read_post_processor(step));
    }
    return {};
  }
  return make_error(ErrorCode::kUnsupported, "tokenizer.json: the post-processor \"{}\" is not supported",
                    printable(type));
}

void Reader::finish_template() {
  if (!before_.empty()) out_.bos = before_.front();
  if (!behind_.empty()) out_.eos = behind_.back();
  out_.add_bos = !before_.empty();
  out_.add_eos = !behind_.empty();
  if (before_.size() > 1) out_.text_prefix = before_;
  if (behind_.size() > 1) out_.text_suffix = behind_;
}

/// Where tokenizer.json's template already says what starts a text, tokenizer_config.json is not asked again.
void Reader::read_config() {
  const auto named = [&](const char* key) { return find(token_text(json_member(config_, key))); };
  if (out_.bos.value < 0) out_.bos = named("bos_token");
  if (const TokenId eos = named("eos_token"); eos.value >= 0) out_.eos = eos;
  if (out_.eos.value < 0) {
    for (const char* name : {"</s>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "<eos>"}) {
      const TokenId id = find(name);
      if (id.value < 0) continue;
      out_.eos = id;
      break;
    }
  }
  if (!has_template_) {
    out_.add_bos = json_bool(config_, "add_bos_token") && out_.bos.value >= 0;
    out_.add_eos = json_bool(config_, "add_eos_token") && out_.eos.value >= 0;
  }
  const json& chat = json_member(config_, "chat_template");
  if (chat.is_string()) {
    out_.chat_template = chat.get<std::string>();
  } else if (chat.is_array()) {
    for (const json& entry : chat) {
      if (json_string(entry, "name") == "default") out_.chat_template = json_string(entry, "template");
    }
  }
}

}  // namespace

Result<Vocabulary> read_tokenizer_json(const std::string& tokenizer_json, const std::string& tokenizer_config_json) {
  BF_ASSIGN_OR_RETURN(const json root, parse_tokenizer_object(tokenizer_json, "tokenizer.json"));
  json config = json::object();
  if (!tokenizer_config_json.empty()) {
    BF_ASSIGN_OR_RETURN(config, parse_tokenizer_object(tokenizer_config_json, "tokenizer_config.json"));
  }
  BF_ASSIGN_OR_RETURN(Vocabulary vocabulary, Reader(root, config).read());
  const bool known = vocabulary.kind == TokenizerKind::kByteBpe || vocabulary.kind == TokenizerKind::kSentencePiece;
  const bool plain = vocabulary.normalizers.empty() && vocabulary.single_word.empty() &&
                     vocabulary.text_prefix.empty() && vocabulary.text_suffix.empty();
  if (!known || !plain) vocabulary.tokenizer_json = tokenizer_json;
  return vocabulary;
}

}  // namespace butterfly
