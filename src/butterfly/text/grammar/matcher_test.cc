#include "butterfly/text/grammar/matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "butterfly/text/grammar/constraint.h"

namespace butterfly {
namespace {

constexpr const char* kSchemaText = R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9},
  "list": {"type": "array", "items": {"enum": ["red", "green", 7]}}, "more": {"$ref": "#"}}, "required": ["name"],
  "additionalProperties": false})";

/// Every byte, what JSON is made of, and an end.
Tokenizer bytes_and_pieces() {
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kSentencePiece;
  vocabulary.byte_fallback = true;
  for (unsigned byte = 0; byte < 256; ++byte) {
    vocabulary.pieces.push_back(fmt::format("<0x{:02X}>", byte));
    vocabulary.types.push_back(TokenType::kByte);
  }
  for (const char* piece : {"</s>", "{\"", "\":", "\":\"", "\"}", "name", "list", "red", "},", "\xE2\x96\x81",
                            "\xE2\x96\x81red", "ab", "abc", "abcd", "[\"", "\",\"", "\xC3\xA9t\xC3\xA9", "red"}) {
    vocabulary.pieces.emplace_back(piece);
    vocabulary.types.push_back(TokenType::kNormal);
  }
  vocabulary.types[256] = TokenType::kControl;
  vocabulary.scores.assign(vocabulary.pieces.size(), 0);
  vocabulary.eos = TokenId(256);
  vocabulary.end_tokens = {TokenId(256)};
  vocabulary.add_space_prefix = true;
  auto tokenizer = Tokenizer::create(std::move(vocabulary));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(*tokenizer);
}

std::shared_ptr<TokenAutomaton> automaton_of(const Constraint& constraint, const AutomatonLimits& limits = {}) {
  static const auto trie = TokenTrie::create(bytes_and_pieces());
  auto grammar = compile(constraint);
  EXPECT_TRUE(grammar) << grammar.error().message;
  return std::make_shared<TokenAutomaton>(std::move(*grammar), trie, limits);
}

bool is_set(std::span<const std::uint64_t> bits, int id) {
  return (bits[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

struct Written {
  std::string text;
  int tokens = 0;
  bool whole = false;
  bool ended = false;  // by the end token
};

/// Any allowed token, the end hardly ever.
Written write(const std::shared_ptr<TokenAutomaton>& automaton, int limit, unsigned seed) {
  auto matcher = GrammarMatcher::create(automaton, {.tokens_max = limit, .end_tokens = {TokenId(256)}});
  EXPECT_TRUE(matcher) << matcher.error().message;
  std::mt19937 random(seed);
  Written written;
  for (; written.tokens < limit && !matcher->complete(); ++written.tokens) {
    const auto bits = matcher->mask();
    std::vector<int> allowed;
    for (int id = 0; id < automaton->trie().vocab(); ++id) {
      if (is_set(bits, id) && (id != 256 || random() % 8 == 0)) allowed.push_back(id);
    }
    if (allowed.empty()) allowed.push_back(256);
    const TokenId token(allowed[random() % allowed.size()]);
    if (token == TokenId(256)) {
      written.ended = true;
      break;
    }
    EXPECT_TRUE(matcher->accept(token));
    written.text += automaton->trie().bytes(token);
  }
  written.whole = matcher->accepts();
  return written;
}

bool is_whole(const Constraint& constraint, std::string_view text) {
  const auto grammar = compile(constraint);
  StateTable table(*grammar);
  StateTable::State state = table.start();
  for (const char c : text) state = table.next(state, static_cast<unsigned char>(c));
  return table.accepts(state);
}

const Constraint& schema() {
  static const Constraint constraint{Constraint::Kind::kJsonSchema, kSchemaText};
  return constraint;
}

TEST(GrammarMatcher, EveryTextIsWholeWithinItsLimit) {
  for (const Constraint& constraint :
       {schema(), Constraint{Constraint::Kind::kJsonObject, ""}, Constraint{Constraint::Kind::kRegex, "(été|ab)+x?"},
        Constraint{Constraint::Kind::kGbnf, "root ::= \"(\" root \")\" | \"abcd\" | root2 \nroot2 ::= \"x\" root"}}) {
    const auto automaton = automaton_of(constraint);
    auto first = GrammarMatcher::create(automaton, {.tokens_max = 1000});
    ASSERT_TRUE(first) << first.error().message;
    const int needed = static_cast<int>(first->tokens_needed());
    for (int limit = needed; limit < needed + 25; ++limit) {
      for (unsigned seed = 0; seed < 4; ++seed) {
        const Written written = write(automaton, limit, seed);
        EXPECT_TRUE(written.whole) << written.text;
        EXPECT_LE(written.tokens, limit);
        EXPECT_TRUE(is_whole(constraint, written.text)) << written.text;
      }
    }
  }
}

TEST(GrammarMatcher, ALimitBelowTheShortestTextIsRefusedWithBoth) {
  // { name " : " " } : "{\"" name "\":\"" "\"}"
  const auto automaton = automaton_of(schema());
  const auto matcher = GrammarMatcher::create(automaton, {.tokens_max = 3});
  ASSERT_FALSE(matcher);
  EXPECT_EQ(matcher.error().message, "the shortest text that the grammar allows takes 4 tokens, 3 may be generated");
  const auto exact = write(automaton, 4, 1);
  EXPECT_EQ(exact.text, R"({"name":""})");
}

TEST(GrammarMatcher, TheMaskIsWhatMayBeAcceptedAndTheEndComesWhereTheTextIsWhole) {
  const auto automaton = automaton_of({Constraint::Kind::kRegex, "ab(cd|é)*|red"});
  auto matcher = GrammarMatcher::create(automaton, {.tokens_max = 50, .end_tokens = {TokenId(256)}});
  ASSERT_TRUE(matcher);
  for (const std::string_view part : {"", "ab", "c", "d", "\xC3", "\xA9", "cd"}) {
    for (const char byte : part) ASSERT_TRUE(matcher->accept(TokenId(static_cast<unsigned char>(byte))));
    const auto view = matcher->mask();
    const std::vector<std::uint64_t> bits(view.begin(), view.end());
    int count = 0;
    for (int id = 0; id < automaton->trie().vocab(); ++id) {
      if (id == 256) continue;
      GrammarMatcher copy = *matcher;
      EXPECT_EQ(is_set(bits, id), copy.accept(TokenId(id)).has_value()) << part << " " << id;
      count += is_set(bits, id) ? 1 : 0;
    }
    EXPECT_GT(count, 0);
    EXPECT_EQ(is_set(bits, 256), matcher->accepts());
  }
  EXPECT_FALSE(matcher->accept(TokenId('x')));
  EXPECT_FALSE(matcher->accept(TokenId(-1)));
  EXPECT_FALSE(matcher->accept(TokenId(100'000)));
}

TEST(GrammarMatcher, WhatIsForgottenChangesNothing) {
  const auto all = automaton_of(schema());
  const auto little = automaton_of(schema(), {.states_bytes = 20'000, .masks_bytes = 100});
  const auto narrow = automaton_of(schema(), {.items_per_mask = 10});
  for (unsigned seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(write(all, 60, seed).text, write(little, 60, seed).text);
    EXPECT_TRUE(write(narrow, 60, seed).whole);
  }
}

TEST(GrammarMatcher, TextsGoNoDeeperThanTheyMay) {
  const auto automaton = automaton_of({Constraint::Kind::kGbnf, "root ::= \"[\" root? \"]\""});
  auto matcher = GrammarMatcher::create(automaton, {.tokens_max = 100'000});
  ASSERT_TRUE(matcher);
  int depth = 0;
  while (is_set(matcher->mask(), '[')) {
    ASSERT_TRUE(matcher->accept(TokenId('[')));
    ASSERT_LT(++depth, 1000);
  }
  EXPECT_GT(depth, 100);
  for (; depth > 0; --depth) ASSERT_TRUE(matcher->accept(TokenId(']')));
  EXPECT_TRUE(matcher->complete());
}

TEST(GrammarMatcher, AFirstSpaceThatIsNotShownDoesNotCount) {
  const auto automaton = automaton_of({Constraint::Kind::kRegex, "red"});
  ASSERT_TRUE(automaton->trie().strips_first_space());
  const int spaced = 266;  // " red"
  auto inside = GrammarMatcher::create(automaton, {.tokens_max = 9});
  EXPECT_FALSE(is_set(inside->mask(), spaced));
  auto first = GrammarMatcher::create(automaton, {.tokens_max = 9, .first_in_text = true});
  EXPECT_TRUE(is_set(first->mask(), spaced));
  EXPECT_TRUE(is_set(first->mask(), 263));  // "red", and its twin
  EXPECT_TRUE(is_set(first->mask(), 273));
  EXPECT_FALSE(is_set(first->mask(), 265));  // a space alone shows nothing
  ASSERT_TRUE(first->accept(TokenId(spaced)));
  EXPECT_TRUE(first->complete());
}

TEST(GrammarMatcher, AVocabularyThatCannotSpellTheTextIsNamed) {
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kByteBpe;
  vocabulary.pieces = {"a", "b", "ab"};
  vocabulary.types.assign(3, TokenType::kNormal);
  const auto tokenizer = Tokenizer::create(std::move(vocabulary));
  ASSERT_TRUE(tokenizer);
  const auto trie = TokenTrie::create(*tokenizer);
  const auto over = [&](const char* regex) {
    return std::make_shared<TokenAutomaton>(*compile({Constraint::Kind::kRegex, regex}), trie);
  };
  EXPECT_EQ(GrammarMatcher::create(over("abc"), {.tokens_max = 10}).error().message,
            "the tokens of this model cannot spell what the grammar asks for");
  auto possible = GrammarMatcher::create(over("a(bab|[c-z])b"), {.tokens_max = 3});
  EXPECT_FALSE(possible);  // the shortest way has a letter that is no token
  auto matcher = GrammarMatcher::create(over("(ab|b)*a"), {.tokens_max = 2});
  ASSERT_TRUE(matcher);
  EXPECT_EQ(matcher->mask()[0], 0b111u);
  ASSERT_TRUE(matcher->accept(TokenId(2)));
  EXPECT_EQ(matcher->mask()[0], 0b001u);
}

TEST(ConstraintCache, OneAutomatonForRequestsWithOneSource) {
  const auto trie = TokenTrie::create(bytes_and_pieces());
  ConstraintCache cache(trie, 2);
  const auto first = cache.find(schema());
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, *cache.find(schema()));
  EXPECT_NE(*first, *cache.find({Constraint::Kind::kRegex, "a"}));
  EXPECT_EQ(*first, *cache.find(schema()));
  (void)cache.find({Constraint::Kind::kRegex, "b"});
  (void)cache.find({Constraint::Kind::kRegex, "c"});
  EXPECT_NE(*first, *cache.find(schema()));
  EXPECT_FALSE(cache.find({Constraint::Kind::kRegex, "("}));
  EXPECT_EQ(*cache.find({}), nullptr);
}

}  // namespace
}  // namespace butterfly
