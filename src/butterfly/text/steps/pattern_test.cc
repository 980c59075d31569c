#include "butterfly/text/steps/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace butterfly {
namespace {

std::vector<std::string_view> split(const std::string& expression, std::string_view text) {
  auto pattern = Pattern::compile(expression, PatternSource::kUntrusted);
  EXPECT_TRUE(pattern) << pattern.error().message;
  std::vector<std::string_view> parts;
  PatternBudget budget(text.size(), 1);
  const Status status = pattern->split(text, budget, parts);
  EXPECT_TRUE(status) << status.error().message;
  return parts;
}

ErrorCode split_error(const std::string& expression, std::string_view text) {
  auto pattern = Pattern::compile(expression, PatternSource::kUntrusted);
  EXPECT_TRUE(pattern) << pattern.error().message;
  std::vector<std::string_view> parts;
  PatternBudget budget(text.size(), 1);
  const Status status = pattern->split(text, budget, parts);
  EXPECT_FALSE(status);
  return status ? ErrorCode::kCancelled : status.error().code;
}

TEST(Pattern, CutsMatchesAndWhatLiesBetweenThem) {
  EXPECT_THAT(split(R"(\p{N})", "ab12c"), ::testing::ElementsAre("ab", "1", "2", "c"));
  EXPECT_THAT(split("x", ""), ::testing::IsEmpty());
  EXPECT_THAT(split("x", "ab"), ::testing::ElementsAre("ab"));
}

TEST(Pattern, ClassesAreUnicode) {
  EXPECT_THAT(split(R"(\p{L}+|\s+)", "\u00e9\u4f60\u00a0\u2003x"),
              ::testing::ElementsAre("\u00e9\u4f60", "\u00a0\u2003", "x"));
}

TEST(Pattern, AnEmptyMatchCutsAndMovesOnByACharacter) {
  EXPECT_THAT(split("x*", "\u00e9\u00e9xx"), ::testing::ElementsAre("\u00e9", "\u00e9", "xx"));
}

TEST(Pattern, WhatIsNoExpressionIsBadDataAndTooLongIsUnsupported) {
  for (const char* expression : {"(", "[a", "\\p{Nonsense}", "a{2,1}", "\\C"}) {
    const auto pattern = Pattern::compile(expression, PatternSource::kUntrusted);
    ASSERT_FALSE(pattern) << expression;
    EXPECT_EQ(pattern.error().code, ErrorCode::kBadData) << expression;
  }
  EXPECT_EQ(Pattern::compile(std::string(100000, 'a'), PatternSource::kUntrusted).error().code,
            ErrorCode::kUnsupported);
}

TEST(Pattern, ExponentialBacktrackingIsAnErrorNotAHang) {
  EXPECT_EQ(split_error("(a+)+$", std::string(60, 'a') + "b"), ErrorCode::kTimeout);
  EXPECT_EQ(split_error("(a|a)*b", std::string(60, 'a') + "cb"), ErrorCode::kTimeout);
}

TEST(Pattern, ScanningTheWholeTextFromEveryPlaceIsAnErrorNotAHang) {
  EXPECT_EQ(split_error("(?=.*x)a", std::string(200'000, 'a')), ErrorCode::kTimeout);
}

TEST(Pattern, ManyPartsShareOneBudget) {
  auto pattern = Pattern::compile("(a+)+$", PatternSource::kUntrusted);
  ASSERT_TRUE(pattern);
  const std::string text = std::string(18, 'a') + "b";
  PatternBudget budget(text.size(), 1);
  std::vector<std::string_view> parts;
  Status status;
  for (int part = 0; part < 10'000 && status; ++part) status = pattern->split(text, budget, parts);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
}

TEST(Pattern, DeepRecursionIsAnErrorNotACrash) {
  const auto parts = Pattern::compile("(?:a(?R)?b)", PatternSource::kUntrusted);
  ASSERT_TRUE(parts);
  std::vector<std::string_view> out;
  const std::string text = std::string(500'000, 'a') + "b";
  PatternBudget budget(text.size(), 1);
  const Status status = parts->split(text, budget, out);
  if (status) {
    EXPECT_EQ(out.back(), "ab");
  } else {
    EXPECT_THAT(status.error().code, ::testing::AnyOf(ErrorCode::kTimeout, ErrorCode::kUnsupported));
  }
}

TEST(Pattern, PartsAreTheWholeTextInOrder) {
  const std::string text = "  a b\n\n\tc'd 123 \u00e9\u00e9 \U0001F642\u200d ";
  for (const char* expression : {R"(\s+)", R"(\S+)", "(?<= )", "(?= )", ".", "$", "^", "a|b|", R"(\Kb)", R"(a\K b)"}) {
    std::string joined;
    for (std::string_view part : split(expression, text)) joined += part;
    EXPECT_EQ(joined, text) << expression;
  }
}

}  // namespace
}  // namespace butterfly
