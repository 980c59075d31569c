#include <gtest/gtest.h>

#include "butterfly/text/grammar/regex.h"
#include "butterfly/text/grammar/state_table.h"

namespace butterfly {
namespace {

/// What a grammar says of a whole text.
bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  StateTable table(grammar);
  StateTable::State state = table.start();
  for (const char c : text) state = table.next(state, static_cast<unsigned char>(c));
  return table.accepts(state);
}

bool matches(std::string_view pattern, std::string_view text) {
  const auto grammar = compile_regex(pattern);
  EXPECT_TRUE(grammar) << pattern << ": " << grammar.error().message;
  return grammar && accepts(*grammar, text);
}

TEST(Regex, WholeTextsMatch) {
  EXPECT_TRUE(matches("a(b|cd)*e", "abcdbe"));
  EXPECT_FALSE(matches("a(b|cd)*e", "abce"));
  EXPECT_TRUE(matches("^[^a-c]{2,3}$", "xé"));
  EXPECT_FALSE(matches("[^a-c]{2,3}", "xb"));
  EXPECT_FALSE(matches("[^a-c]{2,3}", "x"));
  EXPECT_FALSE(matches("[^a-c]{2,3}", "xyzu"));
  EXPECT_TRUE(matches("(a*)*(b?)+c{0}", "aab"));
  EXPECT_TRUE(matches("\\d+\\.\\d{2}|\\u20AC", "12.50"));
  EXPECT_TRUE(matches("\\d+\\.\\d{2}|\\u20AC", "€"));
  EXPECT_TRUE(matches(".{200}", std::string(200, 'x')));
  EXPECT_FALSE(matches(".{200}", std::string(199, 'x')));
  EXPECT_FALSE(matches(".{200}", std::string(201, 'x')));
  EXPECT_FALSE(matches(".", "\xC3"));
  EXPECT_FALSE(matches(".", "\xED\xA0\x80"));  // a surrogate
  EXPECT_TRUE(matches(".", "\xF4\x8F\xBF\xBF"));
  EXPECT_FALSE(matches(".", "\xF4\x90\x80\x80"));
  EXPECT_TRUE(matches("", ""));
}

TEST(Regex, WhatIsNotPossibleIsNamed) {
  const auto message = [](std::string_view pattern) {
    const auto grammar = compile_regex(pattern);
    return grammar ? "" : grammar.error().message;
  };
  EXPECT_EQ(message("(a)\\1"),
            "the regular expression (a)\\1 has a back reference, which is not possible here, at byte 3");
  EXPECT_EQ(message("a(?=b)"), "the regular expression a(?=b) has look-ahead, which is not possible here, at byte 1");
  for (const char* bad : {"(?<!a)b",   "a++",
                          "[b-a]",     "[",
                          "(",         ")",
                          "a**",       "*",
                          "a{3,2}",    "\\p{L}",
                          "\\bx",      "(?i)a",
                          "a^b",       "a$b",
                          "\\",        "\\q",
                          "[]",        "\\x1",
                          "\\uD800",   "(^a)",
                          "x{200000}", "(((a{30}){30}){30}){30}"}) {
    EXPECT_FALSE(message(bad).empty()) << bad;
  }
}

TEST(Grammar, CountsTheBytesThatAreMissing) {
  const auto grammar = compile_regex("ab{3}(cc|ddd)");
  ASSERT_TRUE(grammar);
  StateTable table(*grammar);
  EXPECT_EQ(table.bytes_needed(table.start()), 6u);
  const auto after = table.next(table.start(), 'a');
  EXPECT_EQ(table.bytes_needed(after), 5u);
  EXPECT_EQ(table.next(after, 'c'), StateTable::kDead);
}

}  // namespace
}  // namespace butterfly
