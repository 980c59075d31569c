#include "butterfly/infer/request/text_stream.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

/// A byte-level vocabulary of single letters and two longer pieces.
Tokenizer one_letter_tokens() {
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kByteBpe;
  for (char c = 'a'; c <= 'z'; ++c) vocabulary.pieces.emplace_back(1, c);
  vocabulary.pieces.emplace_back("stop");
  vocabulary.pieces.emplace_back("xyz");
  vocabulary.types.assign(vocabulary.pieces.size(), TokenType::kNormal);
  auto tokenizer = Tokenizer::create(std::move(vocabulary));
  EXPECT_TRUE(tokenizer);
  return std::move(*tokenizer);
}

struct Seen {
  std::string text;
  bool stopped = false;
};

Seen stream(const Tokenizer& tokenizer, const std::vector<int>& tokens, std::vector<std::string> stops) {
  TextStream stream(tokenizer, {.first_in_text = true}, std::move(stops));
  Seen seen;
  for (const int token : tokens) seen.text += stream.push(TokenId(token));
  seen.text += stream.finish();
  seen.stopped = stream.stopped();
  return seen;
}

TEST(TextStream, ControlTokensShowOnlyWhereTheyAreAskedFor) {
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kByteBpe;
  vocabulary.pieces = {"a", "<tool>", "<other>"};
  vocabulary.types = {TokenType::kNormal, TokenType::kControl, TokenType::kControl};
  const auto tokenizer = Tokenizer::create(std::move(vocabulary));
  ASSERT_TRUE(tokenizer);
  TextStream stream(*tokenizer, {.first_in_text = true}, {}, {TokenId(1)});
  std::string text;
  for (const int token : {0, 1, 2, 0}) text += stream.push(TokenId(token));
  EXPECT_EQ(text + stream.finish(), "a<tool>a");
}

TEST(TextStream, AStopStringOverSeveralTokensNeverShows) {
  const Tokenizer tokenizer = one_letter_tokens();
  const Seen seen = stream(tokenizer, {0, 1, 18, 19, 14, 15, 2}, {"stop"});  // a b s t o p c
  EXPECT_EQ(seen.text, "ab");
  EXPECT_TRUE(seen.stopped);
}

TEST(TextStream, WhatOnlyLooksLikeAStopStringComesOutAfterAll) {
  const Tokenizer tokenizer = one_letter_tokens();
  EXPECT_EQ(stream(tokenizer, {0, 18, 19, 14, 1}, {"stop"}).text, "astob");
  EXPECT_EQ(stream(tokenizer, {0, 18, 19, 14}, {"stop"}).text, "asto");
  EXPECT_EQ(stream(tokenizer, {18, 18, 19, 14, 15}, {"stop"}).text, "s");
}

TEST(TextStream, TheFirstOfSeveralStopStringsEndsTheText) {
  const Tokenizer tokenizer = one_letter_tokens();
  EXPECT_EQ(stream(tokenizer, {0, 27, 26}, {"stop", "yz"}).text, "ax");
  EXPECT_EQ(stream(tokenizer, {0, 26, 27}, {"", "yz"}).text, "astopx");
  EXPECT_EQ(stream(tokenizer, {0, 26, 27}, {}).text, "astopxyz");
}

TEST(TextStream, WhichStopStringEndsTheTextDoesNotDependOnTokens) {
  const Tokenizer tokenizer = one_letter_tokens();
  // x y z: "y" is complete before "xyz", also where all three come at once.
  for (const std::vector<int>& tokens : {std::vector<int>{0, 23, 24, 25}, std::vector<int>{0, 27}}) {
    EXPECT_EQ(stream(tokenizer, tokens, {"xyz", "y"}).text, "ax");
    EXPECT_EQ(stream(tokenizer, tokens, {"z", "yz", "xyz"}).text, "a");
  }
  // a a b a a c: what begins inside of a failed beginning counts.
  EXPECT_EQ(stream(tokenizer, {0, 0, 1, 0, 0, 1, 0, 0, 2, 3}, {"aabaac"}).text, "aab");
  EXPECT_EQ(stream(tokenizer, {0, 0, 1, 0, 0, 1}, {"aabaac"}).text, "aabaab");
}

}  // namespace
}  // namespace butterfly
