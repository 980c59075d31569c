#include "butterfly/model/format/hugging_face/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <optional>

#include "butterfly/base/json.h"
#include "butterfly/base/printable.h"
#include "butterfly/model/format/hugging_face/tokenizer_json_pipeline.h"
#include "butterfly/text/merge_table.h"

namespace butterfly {
namespace {

using nlohmann::json;

/// Deepest nesting outside strings; hostile files nest millions deep to exhaust the stack of the code that walks them.
int json_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

Result<json> parse_object(const std::string& text, const char* source) {
  constexpr int kDepthMax = 64;
  const int depth = json_depth(text);
  if (depth > kDepthMax) {
    return make_error(ErrorCode::kBadData, "{}: nested {} deep, at most {} is possible", source, depth, kDepthMax);
  }
  json document = parse_json(text);
  if (document.is_discarded()) return make_error(ErrorCode::kBadData, "{}: is not valid JSON", source);
  if (!document.is_object()) {
    return make_error(ErrorCode::kBadData, "{}: is {}, expected an object", source, document.type_name());
  }
  return document;
}

/// "tok", or {"content": "tok"}; empty for anything else.
std::string token_text(const json& value) {
  return value.is_string() ? value.get<std::string>() : json_string(value, "content");
}

class Reader {
 public:
  Reader(const json& root, const json& config) : root_(root), config_(config), model_(json_member(root, "model")) {}

  Result<Vocabulary> read() {
    BF_TRY(check_model());
    BF_TRY(read_pieces());
    BF_TRY(read_added_tokens());
    for (int id = 0; id < out_.size(); ++id) {
      const auto index = static_cast<std::size_t>(id);
      if (!out_.pieces[index].empty()) ids_.try_emplace(out_.pieces[index], id);
    }
    BF_TRY(read_tokenizer_pipeline(root_, out_));
    BF_TRY(read_merges());
    BF_TRY(read_unknown());
    if (out_.kind == TokenizerKind::kSentencePiece) {
      mark_bytes();
      score_pieces();
    }
    BF_TRY(read_post_processor(json_member(root_, "post_processor")));
    read_config();
    add_known_end_tokens(out_);
    return std::move(out_);
  }

 private:
  Status check_model();
  Status read_pieces();
  Status read_added_tokens();
  Status place(const std::string& piece, const json& id, TokenType type);
  Status read_merges();
  Status read_unknown();
  void mark_bytes();
  void score_pieces();
  Status read_post_processor(const json& processor);
  Result<TokenId> template_token(const json& processor, const json& step) const;
  void read_config();
  TokenId find(const std::string& piece) const;

  const json& root_;
  const json& config_;
  const json& model_;
  Vocabulary out_;
  std::int64_t id_limit_ = 0;
  PieceMap ids_;  // every spelling; points into out_.pieces
  bool has_template_ = false;
};

TokenId Reader::find(const std::string& piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? TokenId{-1} : TokenId{found->second};
}

Status Reader::check_model() {
  if (!model_.is_object()) return make_error(ErrorCode::kBadData, "tokenizer.json: has no model");
  const std::string type = json_string(model_, "type");
  // Files of 2020 do not name the type.
  const bool bpe = type == "BPE" || (type.empty() && json_member(model_, "merges").is_array());
  if (!bpe) {
    return make_error(ErrorCode::kUnsupported, "tokenizer.json: the model is \"{}\", supported is BPE",
                      printable(type));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string value = json_string(model_, key);
    if (!value.empty()) {
      return make_error(ErrorCode::kUnsupported, "tokenizer.json: {} is \"{}\", only none is supported", key,
                        printable(value));
    }
  }
  const json& dropout = json_member(model_, "dropout");
  if (dropout.is_number() && dropout.get<double>() != 0) {
    return make_error(ErrorCode::kUnsupported, "tokenizer.json: dropout is {}, only 0 gives one answer",
                      dropout.get<double>());
  }
  out_.ignore_merges = json_bool(model_, "ignore_merges");
  out_.fuse_unknown = json_bool(model_, "fuse_unk");
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

Status Reader::read_added_tokens() {
  const json& added = json_member(root_, "added_tokens");
  if (added.is_null()) return {};
  if (!added.is_array()) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: added_tokens is {}, expected an array", added.type_name());
  }
  for (const json& token : added) {
    const std::string content = json_string(token, "content");
    if (content.empty()) return make_error(ErrorCode::kBadData, "tokenizer.json: an added token has no content");
    if (json_bool(token, "single_word")) {
      return make_error(ErrorCode::kUnsupported,
                        "tokenizer.json: added token \"{}\" is single_word, which is unsupported", printable(content));
    }
    const json& id = json_member(token, "id");
    BF_TRY(place(content, id, json_bool(token, "special") ? TokenType::kControl : TokenType::kUserDefined));
    const TokenId token_id{id.get<std::int32_t>()};
    if (json_bool(token, "lstrip")) out_.strip_before.push_back(token_id);
    if (json_bool(token, "rstrip")) out_.strip_after.push_back(token_id);
  }
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
    if (!parse_merge(text, ids_)) {
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
  const std::string unknown = json_string(model_, "unk_token");
  if (unknown.empty()) return {};
  out_.unknown = find(unknown);
  if (out_.unknown.value < 0) {
    return make_error(ErrorCode::kBadData,
                      "tokenizer.json: the unknown token is \"{}\", which is not in the vocabulary",
                      printable(unknown));
  }
  // Byte-level vocabularies name a token that has another job, and never need it.
  if (out_.kind == TokenizerKind::kSentencePiece) {
    out_.types[static_cast<std::size_t>(out_.unknown.value)] = TokenType::kUnknown;
  }
  return {};
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
    const std::optional<MergeParts> parts = parse_merge(out_.merges[i], ids_);
    out_.scores[static_cast<std::size_t>(parts->merged)] = -static_cast<float>(i) - 1;
  }
}

Result<TokenId> Reader::template_token(const json& processor, const json& step) const {
  const json& special = json_member(step, "SpecialToken");
  if (!special.is_object()) return TokenId{-1};
  const std::string name = json_string(special, "id");
  const json& entry = json_member(json_member(processor, "special_tokens"), name.c_str());
  const json& ids = json_member(entry, "ids");
  const bool one = ids.is_array() && ids.size() == 1 && ids[0].is_number_unsigned();
  if (!one || ids[0].get<std::uint64_t>() >= out_.pieces.size()) {
    return make_error(ErrorCode::kBadData,
                      "tokenizer.json: the template's token \"{}\" has the ids {}, expected one of {}", printable(name),
                      printable(dump_json(ids)), out_.pieces.size());
  }
  return TokenId{ids[0].get<std::int32_t>()};
}

Status Reader::read_post_processor(const json& processor) {
  if (processor.is_null()) return {};
  const std::string type = json_string(processor, "type");
  if (type == "ByteLevel") return {};
  if (type == "Sequence") {
    const json& steps = json_member(processor, "processors");
    if (steps.is_array()) {
      for (const json& step : steps) BF_TRY(read_post_processor(step));
    }
    return {};
  }
  if (type != "TemplateProcessing") {
    return make_error(ErrorCode::kUnsupported,
                      "tokenizer.json: the post-processor is \"{}\", supported are ByteLevel and TemplateProcessing",
                      printable(type));
  }
  const json& single = json_member(processor, "single");
  if (!single.is_array() || single.empty()) return {};
  has_template_ = true;
  const auto text =
      std::find_if(single.begin(), single.end(), [](const json& step) { return step.contains("Sequence"); });
  if (text != single.begin()) {
    BF_ASSIGN_OR_RETURN(out_.bos, template_token(processor, single.front()));
    out_.add_bos = out_.bos.value >= 0;
  }
  if (text != single.end() && text + 1 != single.end()) {
    BF_ASSIGN_OR_RETURN(out_.eos, template_token(processor, single.back()));
    out_.add_eos = out_.eos.value >= 0;
  }
  return {};
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
  BF_ASSIGN_OR_RETURN(const json root, parse_object(tokenizer_json, "tokenizer.json"));
  json config = json::object();
  if (!tokenizer_config_json.empty()) {
    BF_ASSIGN_OR_RETURN(config, parse_object(tokenizer_config_json, "tokenizer_config.json"));
  }
  return Reader(root, config).read();
}

}  // namespace butterfly
