#include "butterfly/text/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/text/tokenizer.h"

namespace butterfly {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Vocabulary trained(const std::vector<std::string>& texts, const BpeTrainerOptions& options) {
  auto trainer = BpeTrainer::create(options);
  EXPECT_TRUE(trainer);
  for (const std::string& text : texts) EXPECT_TRUE(trainer->add(text));
  auto vocabulary = trainer->train();
  EXPECT_TRUE(vocabulary) << (vocabulary ? "" : vocabulary.error().message);
  return vocabulary ? *vocabulary : Vocabulary{};
}

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  const Vocabulary vocabulary = trained({"abc abc abc xy xy"}, {.vocab = 260});
  // " abc" is there twice, "abc" once; U+0120 is the space.
  EXPECT_THAT(vocabulary.merges, ElementsAre("a b", "ab c", "x y"));
  EXPECT_THAT(std::vector(vocabulary.pieces.begin() + 257, vocabulary.pieces.end()), ElementsAre("ab", "abc", "xy"));
}

TEST(BpeTrainer, OfEquallyFrequentPairsTheLowestIdsWin) {
  EXPECT_THAT(trained({"cd,ab"}, {.vocab = 259}).merges, ElementsAre("a b", "c d"));
}

TEST(BpeTrainer, StopsWhereNothingIsFrequentEnough) {
  const Vocabulary vocabulary = trained({"abab,ab,cd"}, {.vocab = 1000, .min_count = 2});
  EXPECT_THAT(vocabulary.merges, ElementsAre("a b"));
  EXPECT_EQ(vocabulary.size(), 258);
}

TEST(BpeTrainer, MergesOverlapsFromTheLeft) {
  EXPECT_THAT(trained({"aaaaa"}, {.vocab = 1000}).merges, ElementsAre("a a", "aa a", "aa aaa"));
}

TEST(BpeTrainer, NothingGoesFromOneTextIntoTheNext) {
  EXPECT_THAT(trained({"a", "b"}, {.vocab = 1000}).merges, ElementsAre());
}

TEST(BpeTrainer, WhatItLearnsIsATokenizerForAnyBytes) {
  const auto tokenizer = Tokenizer::create(trained({"the theatre then the"}, {.vocab = 262}));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const std::string text = "the thé \U0001F642 <|endoftext|>\n";
  const auto ids = tokenizer->encode(text);
  ASSERT_TRUE(ids);
  EXPECT_EQ(ids->front(), TokenId(0));
  EXPECT_EQ(tokenizer->decode({ids->begin() + 1, ids->end()}, Tokenizer::Control::kShown), text);
}

TEST(BpeTrainer, WhatItCannotLearnFromIsRefused) {
  const auto small = BpeTrainer::create({.vocab = 256});
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().message, HasSubstr("256 tokens cannot hold the 256 bytes"));
  auto trainer = BpeTrainer::create({.vocab = 300});
  ASSERT_TRUE(trainer);
  EXPECT_THAT(trainer->add("caf\xE9").error().message, HasSubstr("0xE9 at offset 3"));
  EXPECT_THAT(trainer->train().error().message, HasSubstr("0 words"));
}

}  // namespace
}  // namespace butterfly
