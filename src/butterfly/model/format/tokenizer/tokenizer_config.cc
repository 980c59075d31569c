#include "butterfly/base/json.h"
#include "butterfly/base/text/printable.h"
#include "butterfly/model/format/tokenizer/sentencepiece_model.h"
#include "butterfly/model/format/tokenizer/tokenizer_json_steps.h"

namespace butterfly {
namespace {

using nlohmann::json;

/// {"128000": {"content": "<|begin_of_text|>", "special": true}, ...}
Status add_listed_tokens(const json& listed, Vocabulary& vocabulary) {
  if (!listed.is_object()) return {};
  const std::size_t most = 2 * vocabulary.pieces.size() + 65536;
  for (const auto& [key, token] : listed.items()) {
    const bool digits = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    const std::size_t id = digits ? std::stoul(key) : most;
    const std::string content = json_string(token, "content");
    if (id >= most || content.empty()) {
      return make_error(ErrorCode::kBadData,
                        "tokenizer_config.json: the added token \"{}\" has the id {}, below {} wanted",
                        printable(content), printable(key), most);
    }
    if (id >= vocabulary.pieces.size()) {
      vocabulary.pieces.resize(id + 1);
      vocabulary.types.resize(id + 1, TokenType::kUnused);
      if (!vocabulary.scores.empty()) vocabulary.scores.resize(id + 1, 0);
    }
    TokenType& type = vocabulary.types[id];
    const TokenId token_id{static_cast<std::int32_t>(id)};
    if (type == TokenType::kByte || token_id == vocabulary.unknown) continue;
    vocabulary.pieces[id] = content;
    // SentencePiece's own pieces of text stay what they are: an added one is looked for before its model runs.
    type =
        json_bool(token, "special") || vocabulary.user_defined_inside ? TokenType::kControl : TokenType::kUserDefined;
    if (json_bool(token, "lstrip")) vocabulary.strip_before.push_back(token_id);
    if (json_bool(token, "rstrip")) vocabulary.strip_after.push_back(token_id);
    if (json_bool(token, "single_word")) vocabulary.single_word.push_back(token_id);
  }
  return {};
}

TokenId named_token(const json& config, const char* key, const Vocabulary& vocabulary) {
  const json& value = json_member(config, key);
  const std::string text = value.is_string() ? value.get<std::string>() : json_string(value, "content");
  if (text.empty()) return TokenId{-1};
  for (int id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.pieces[static_cast<std::size_t>(id)] == text) return TokenId{id};
  }
  return TokenId{-1};
}

}  // namespace

Status apply_tokenizer_config(const std::string& tokenizer_config_json, Vocabulary& vocabulary) {
  if (tokenizer_config_json.empty()) return {};
  BF_ASSIGN_OR_RETURN(const json config, parse_tokenizer_object(tokenizer_config_json, "tokenizer_config.json"));
  BF_TRY(add_listed_tokens(json_member(config, "added_tokens_decoder"), vocabulary));
  if (const TokenId bos = named_token(config, "bos_token", vocabulary); bos.value >= 0) vocabulary.bos = bos;
  if (const TokenId eos = named_token(config, "eos_token", vocabulary); eos.value >= 0) vocabulary.eos = eos;
  const std::string name = json_string(config, "tokenizer_class");
  const bool begins = vocabulary.add_bos || name.starts_with("Llama") || name.starts_with("Gemma");
  const bool ends = vocabulary.add_eos || name.starts_with("T5") || name.starts_with("MT5");
  vocabulary.add_bos = json_bool_or(config, "add_bos_token", begins) && vocabulary.bos.value >= 0;
  vocabulary.add_eos = json_bool_or(config, "add_eos_token", ends) && vocabulary.eos.value >= 0;
  const json& chat = json_member(config, "chat_template");
  if (chat.is_string()) vocabulary.chat_template = chat.get<std::string>();
  add_known_end_tokens(vocabulary);
  return {};
}

}  // namespace butterfly
