#include "butterfly/model/format/tokenizer/tokenizer_json_writer.h"

#include <algorithm>
#include <vector>

#include "butterfly/base/json.h"

namespace butterfly {
namespace {

using nlohmann::json;

json byte_level(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json split(const std::string& expression) {
  return {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json pre_tokenizer(const Vocabulary& vocabulary) {
  if (vocabulary.pre_tokenizer == PreTokenizer::kGpt2) return byte_level(vocabulary.add_space_prefix, true);
  json steps = json::array();
  if (vocabulary.pre_tokenizer == PreTokenizer::kCustom) {
    steps.push_back(split(vocabulary.custom_pattern));
    for (const std::string& pattern : vocabulary.further_patterns) steps.push_back(split(pattern));
  } else {
    steps.push_back(split(std::string(pre_tokenizer_pattern(vocabulary.pre_tokenizer))));
  }
  steps.push_back(byte_level(false, false));
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

json added_tokens(const Vocabulary& vocabulary) {
  const auto strips = [](const std::vector<TokenId>& list, int id) {
    return std::ranges::find(list, TokenId(id)) != list.end();
  };
  json added = json::array();
  for (int id = 0; id < vocabulary.size(); ++id) {
    const TokenType type = vocabulary.types[static_cast<std::size_t>(id)];
    if (type != TokenType::kControl && type != TokenType::kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", vocabulary.pieces[static_cast<std::size_t>(id)]},
                     {"single_word", false},
                     {"lstrip", strips(vocabulary.strip_before, id)},
                     {"rstrip", strips(vocabulary.strip_after, id)},
                     {"normalized", false},
                     {"special", type == TokenType::kControl}});
  }
  return added;
}

/// The token that starts texts, and the one that ends them.
json post_processor(const Vocabulary& vocabulary) {
  if (!vocabulary.add_bos && !vocabulary.add_eos) return nullptr;
  json single = json::array(), special = json::object();
  const auto add = [&](TokenId id) {
    const std::string& piece = vocabulary.pieces[static_cast<std::size_t>(id.value)];
    single.push_back({{"SpecialToken", {{"id", piece}, {"type_id", 0}}}});
    special[piece] = {{"id", piece}, {"ids", {id.value}}, {"tokens", {piece}}};
  };
  if (vocabulary.add_bos) add(vocabulary.bos);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (vocabulary.add_eos) add(vocabulary.eos);
  const json pair =
      json::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}});
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

json model(const Vocabulary& vocabulary) {
  json pieces = json::object();
  for (int id = 0; id < vocabulary.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    if (vocabulary.types[index] != TokenType::kUnused) pieces[vocabulary.pieces[index]] = id;
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", vocabulary.ignore_merges},
          {"vocab", std::move(pieces)},
          {"merges", vocabulary.merges}};
}

}  // namespace

Result<std::string> write_tokenizer_json(const Vocabulary& vocabulary) {
  if (vocabulary.kind != TokenizerKind::kByteBpe) {
    return make_error(ErrorCode::kUnsupported, "only byte-level BPE can be written as tokenizer.json, not {}",
                      vocabulary.kind == TokenizerKind::kNone ? "no tokenizer at all" : "sentencepiece");
  }
  if (vocabulary.add_space_prefix && vocabulary.pre_tokenizer != PreTokenizer::kGpt2) {
    return make_error(ErrorCode::kUnsupported,
                      "a space in front of texts can be written as tokenizer.json with GPT-2's "
                      "pattern alone, the vocabulary has another one");
  }
  const json root = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added_tokens(vocabulary)},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", pre_tokenizer(vocabulary)},
                     {"post_processor", post_processor(vocabulary)},
                     {"decoder", byte_level(false, true)},
                     {"model", model(vocabulary)}};
  return dump_json(root) + "\n";
}

}  // namespace butterfly
