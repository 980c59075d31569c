#include "butterfly/model/format/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "butterfly/base/json.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A byte-level vocabulary of three letters and a merge.
json byte_level() {
  return parse_json(R"({
    "added_tokens": [{"id": 4, "content": "<|endoftext|>", "special": true}, {"id": 6, "content": "<tool>"}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "\u0120": 2, "ab": 3}, "merges": ["a b"]}
  })");
}

/// A sentencepiece-like vocabulary with ranked merges and a byte.
json sentencepiece() {
  return parse_json(R"({
    "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true},
                     {"id": 2, "content": "</s>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "\u2581"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "post_processor": {"type": "Sequence", "processors": [{"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
      "special_tokens": {"<s>": {"ids": [1]}, "</s>": {"ids": [2]}}}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
      "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x63>": 3, "\u2581": 4, "a": 5, "b": 6, "ab": 7, "\u2581a": 8},
      "merges": [["\u2581", "a"], ["a", "b"]]}
  })");
}

Vocabulary read(const json& document, const std::string& config = "") {
  auto vocabulary = read_tokenizer_json(dump_json(document), config);
  EXPECT_TRUE(vocabulary) << vocabulary.error().message;
  return vocabulary ? std::move(*vocabulary) : Vocabulary{};
}

Error refused(const std::string& text, const std::string& config = "") {
  auto vocabulary = read_tokenizer_json(text, config);
  EXPECT_FALSE(vocabulary) << text.substr(0, 200);
  return vocabulary ? Error{ErrorCode::kCancelled, "", {}} : vocabulary.error();
}

/// `document` with the value at a JSON pointer replaced.
Error refused_with(json document, const char* pointer, const json& value) {
  document[json::json_pointer(pointer)] = value;
  return refused(dump_json(document));
}

TEST(TokenizerJson, ByteLevelBpeIsReadWithItsSpecialTokens) {
  const Vocabulary vocabulary = read(byte_level());
  EXPECT_EQ(vocabulary.kind, TokenizerKind::kByteBpe);
  EXPECT_EQ(vocabulary.pre_tokenizer, PreTokenizer::kGpt2);
  EXPECT_THAT(vocabulary.pieces, ElementsAre("a", "b", "\u0120", "ab", "<|endoftext|>", "", "<tool>"));
  EXPECT_EQ(vocabulary.types[4], TokenType::kControl);
  EXPECT_EQ(vocabulary.types[5], TokenType::kUnused);
  EXPECT_EQ(vocabulary.types[6], TokenType::kUserDefined);
  EXPECT_THAT(vocabulary.merges, ElementsAre("a b"));
  EXPECT_EQ(vocabulary.eos, TokenId{4}) << "known by name";
  EXPECT_THAT(vocabulary.end_tokens, ElementsAre(TokenId{4}));
  EXPECT_FALSE(vocabulary.add_bos);
  EXPECT_FALSE(vocabulary.add_space_prefix);
}

TEST(TokenizerJson, SentencePieceLikeBpeKeepsItsMergesAndScoresThemInOrder) {
  const Vocabulary vocabulary = read(sentencepiece());
  EXPECT_EQ(vocabulary.kind, TokenizerKind::kSentencePiece);
  EXPECT_EQ(vocabulary.types[0], TokenType::kUnknown);
  EXPECT_EQ(vocabulary.types[3], TokenType::kByte);
  EXPECT_EQ(vocabulary.unknown, TokenId{0});
  EXPECT_TRUE(vocabulary.add_space_prefix);
  EXPECT_TRUE(vocabulary.fuse_unknown);
  EXPECT_THAT(vocabulary.merges, ElementsAre("\u2581 a", "a b"));
  ASSERT_EQ(vocabulary.scores.size(), vocabulary.pieces.size());
  EXPECT_GT(vocabulary.scores[8], vocabulary.scores[7]);
  EXPECT_GT(vocabulary.scores[7], vocabulary.scores[5]) << "a piece that no merge makes comes last";
}

TEST(TokenizerJson, TheTemplateSaysWhatTextsStartAndEndWith) {
  const Vocabulary vocabulary = read(sentencepiece());
  EXPECT_TRUE(vocabulary.add_bos);
  EXPECT_EQ(vocabulary.bos, TokenId{1});
  EXPECT_TRUE(vocabulary.add_eos);
  EXPECT_EQ(vocabulary.eos, TokenId{2});
}

TEST(TokenizerJson, TheConfigNamesWhatTheTemplateDoesNot) {
  const Vocabulary vocabulary =
      read(byte_level(), R"({"bos_token": {"content": "<|endoftext|>"}, "eos_token": "<tool>", "add_bos_token": true,
                             "chat_template": [{"name": "x", "template": "1"}, {"name": "default", "template": "2"}]})");
  EXPECT_EQ(vocabulary.bos, TokenId{4});
  EXPECT_EQ(vocabulary.eos, TokenId{6});
  EXPECT_TRUE(vocabulary.add_bos);
  EXPECT_EQ(vocabulary.chat_template, "2");
}

TEST(TokenizerJson, PublishedPatternsAreRecognisedAndOthersKept) {
  json document = byte_level();
  const json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto with = [&](const std::string& pattern) {
    const json split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    document["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, level}}};
    return read(document);
  };
  EXPECT_EQ(with(std::string(pre_tokenizer_pattern(PreTokenizer::kLlama3))).pre_tokenizer, PreTokenizer::kLlama3);
  EXPECT_EQ(with(std::string(pre_tokenizer_pattern(PreTokenizer::kQwen2))).pre_tokenizer, PreTokenizer::kQwen2);
  const Vocabulary custom = with("[ab]");
  EXPECT_EQ(custom.pre_tokenizer, PreTokenizer::kCustom);
  EXPECT_EQ(custom.custom_pattern, "[ab]");

  document["pre_tokenizer"] = level;
  EXPECT_EQ(read(document).custom_pattern, "(?s).+") << "no pattern at all";

  document["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", true}}, {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}};
  const Vocabulary two = read(document);
  EXPECT_EQ(two.custom_pattern, "\\p{N}");
  EXPECT_THAT(two.further_patterns, ElementsAre(pre_tokenizer_pattern(PreTokenizer::kGpt2)));
}

TEST(TokenizerJson, AStringPatternMatchesJustItself) {
  json document = byte_level();
  document["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers",
                                {{{"type", "Split"}, {"pattern", {{"String", "a.[b"}}}, {"behavior", "Isolated"}},
                                 {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_EQ(read(document).custom_pattern, "a\\.\\[b");
}

TEST(TokenizerJson, MetaspaceSaysWhereTheArtificialSpaceStands) {
  json document = sentencepiece();
  document["normalizer"] = nullptr;
  for (const char* scheme : {"always", "first", "never"}) {
    document["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}};
    const Vocabulary vocabulary = read(document);
    EXPECT_EQ(vocabulary.add_space_prefix, std::string(scheme) != "never");
    EXPECT_EQ(vocabulary.space_prefix_once, std::string(scheme) == "first");
  }
}

TEST(TokenizerJson, TheVocabularyItReadsTokenizes) {
  auto tokenizer = Tokenizer::create(read(sentencepiece()));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto ids = tokenizer->encode("ab cb");
  ASSERT_TRUE(ids) << ids.error().message;
  // By score "ab" would lose to "_a" as well; "b" stays alone because "_a b" is no merge.
  EXPECT_THAT(*ids, ElementsAre(TokenId{1}, TokenId{8}, TokenId{6}, TokenId{4}, TokenId{3}, TokenId{6}));
}

TEST(TokenizerJson, WhatIsNotSupportedIsNamed) {
  const auto unsupported = [](const json& document, const char* pointer, const json& value) {
    const Error error = refused_with(document, pointer, value);
    EXPECT_EQ(error.code, ErrorCode::kUnsupported) << error.message;
    return error.message;
  };
  EXPECT_THAT(unsupported(byte_level(), "/model/type", "Trigram"), HasSubstr("Trigram"));
  EXPECT_THAT(unsupported(byte_level(), "/model/dropout", 0.1), HasSubstr("0.1"));
  EXPECT_THAT(unsupported(byte_level(), "/normalizer/type", "Upper"), HasSubstr("Upper"));
  EXPECT_THAT(unsupported(byte_level(), "/pre_tokenizer/type", "Sentences"), HasSubstr("Sentences"));
  EXPECT_THAT(unsupported(byte_level(), "/decoder", {{"type", "Rot13"}}), HasSubstr("Rot13"));
  EXPECT_THAT(unsupported(byte_level(), "/post_processor/type", "Chat"), HasSubstr("Chat"));
}

TEST(TokenizerJson, ContradictionsAreBadDataNamingBothValues) {
  const auto bad = [](const char* pointer, const json& value) {
    const Error error = refused_with(byte_level(), pointer, value);
    EXPECT_EQ(error.code, ErrorCode::kBadData) << error.message;
    return error.message;
  };
  EXPECT_THAT(bad("/model/vocab/ab", 0), HasSubstr("both have the id 0"));
  EXPECT_THAT(bad("/added_tokens/0/id", 0), HasSubstr("both have the id 0"));
  EXPECT_THAT(bad("/model/vocab/ab", -1), HasSubstr("-1"));
  EXPECT_THAT(bad("/model/vocab/ab", 4000000000u), HasSubstr("4000000000"));
  EXPECT_THAT(bad("/model/vocab/ab", 18446744073709551615u), HasSubstr("18446744073709551615"));
  EXPECT_THAT(bad("/model/vocab/ab", 1e300), HasSubstr("1e+300"));
  EXPECT_THAT(bad("/model/vocab/ab", "three"), HasSubstr("three"));
  EXPECT_THAT(bad("/model/unk_token", "<unk>"), HasSubstr("<unk>"));
  EXPECT_THAT(bad("/model/merges/0", "a c"), HasSubstr("a c"));
  EXPECT_THAT(bad("/model/merges/0", json::array({"b", "a"})), HasSubstr("b a"));
}

TEST(TokenizerJson, EveryValueOfAnotherTypeIsRefusedOrIgnoredNeverFatal) {
  const std::vector<json> others = {
      nullptr, true, -1, 1.5, "text", json::array(), json::object(), json::array({nullptr})};
  for (const json& document : {byte_level(), sentencepiece()}) {
    const json flat = document.flatten();
    std::set<std::string> pointers;
    for (const auto& [leaf, value] : flat.items()) {
      for (std::size_t end = leaf.size(); end != std::string::npos && end > 0; end = leaf.rfind('/', end - 1)) {
        pointers.insert(leaf.substr(0, end));
      }
    }
    ASSERT_GT(pointers.size(), 20u);
    for (const std::string& pointer : pointers) {
      for (const json& other : others) {
        json changed = document;
        changed[json::json_pointer(pointer)] = other;
        auto vocabulary = read_tokenizer_json(dump_json(changed), "");
        if (!vocabulary) continue;
        auto tokenizer = Tokenizer::create(std::move(*vocabulary));
        if (tokenizer) (void)tokenizer->encode("ab <s> <tool>");
      }
    }
  }
}

TEST(TokenizerJson, WhatIsNoJsonObjectIsBadData) {
  for (const char* text : {"", "{", "[]", "null", "\"x\"", "{\"model\": }", "{} {}", "{\"a\": \"\\ud800\"}"}) {
    EXPECT_EQ(refused(text).code, ErrorCode::kBadData) << text;
    if (*text == 0) continue;  // no config at all is fine
    EXPECT_EQ(refused(dump_json(byte_level()), text).code, ErrorCode::kBadData) << text;
  }
  EXPECT_EQ(refused("{}").code, ErrorCode::kBadData);
}

TEST(TokenizerJson, DeepNestingIsRefusedBeforeAnybodyWalksIt) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text = "{\"model\":";
    for (int i = 0; i < 200'000; ++i) text += open;
    EXPECT_THAT(refused(text).message, HasSubstr("nested 20000"));
  }
  json document = byte_level();
  document["note"] = std::string(1000, '[') + "\\\"{";
  read(document);  // brackets inside strings do not nest
}

/// Words that are lowered before they are looked up; <Tool> and <End> are looked for afterwards.
json lowered() {
  return parse_json(R"({
    "added_tokens": [{"id": 3, "content": "<End>", "special": true, "normalized": true},
                     {"id": 4, "content": "<Tool>", "normalized": true},
                     {"id": 5, "content": "<Raw>", "special": true, "normalized": false}],
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2}}
  })");
}

TEST(TokenizerJson, NormalizedTokensAreFoundAndSpelledAsTheTextIsNormalised) {
  const auto tokenizer = Tokenizer::create(read(lowered())).value();
  const auto ids = tokenizer.encode("A <END> <tool> <raw> <Raw> b").value();
  EXPECT_THAT(ids, ElementsAre(TokenId{1}, TokenId{3}, TokenId{4}, TokenId{0}, TokenId{5}, TokenId{2}));
  EXPECT_EQ(tokenizer.decode(ids, Tokenizer::Control::kShown), "a <end> <tool> ? <Raw> b");
  EXPECT_EQ(tokenizer.decode({TokenId{1}, TokenId{3}, TokenId{4}}, Tokenizer::Control::kHidden), "a <tool>");
}

TEST(TokenizerJson, NormalizedControlTokensOfATemplateCountBesideTheTextOfAUser) {
  const auto tokenizer = Tokenizer::create(read(lowered())).value();
  const std::string text = "<End>a <End> b";  // the first is the template's, the rest a user's
  const std::string marks = std::string(5, '\0') + std::string(9, '\1');
  EXPECT_THAT(tokenizer.encode(text, {.marks = marks}).value(),
              ElementsAre(TokenId{3}, TokenId{1}, TokenId{0}, TokenId{2}));
}

TEST(TokenizerJson, APrefixDoesNotHideSpecialTokensThatClaimToBeNormalized) {
  json document = sentencepiece();
  for (json& token : document["added_tokens"]) token["normalized"] = true;
  const auto tokenizer = Tokenizer::create(read(document)).value();
  EXPECT_THAT(tokenizer.encode("ab</s>", {.add_bos = false}).value(), ElementsAre(TokenId{8}, TokenId{6}, TokenId{2}));
}

}  // namespace
}  // namespace butterfly
