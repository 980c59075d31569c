// The BPE trainer against Hugging Face's (tools/make_tokenizer_golden.py).
#include <gtest/gtest.h>

#include "butterfly/model/tokenizer_json.h"
#include "butterfly/model/vocabulary_file.h"
#include "butterfly/text/bpe_trainer.h"
#include "golden_data.h"

namespace butterfly {
namespace {

TEST(BpeGolden, LearnsThePiecesAndMergesOfTokenizers) {
  const auto expected = read_tokenizer_json(golden::read_file(golden::committed("bpe_tokenizer.json")), "");
  ASSERT_TRUE(expected) << expected.error().message;
  ASSERT_GT(expected->size(), 800);
  auto trainer = BpeTrainer::create({.vocab = 900});
  ASSERT_TRUE(trainer);
  ASSERT_TRUE(trainer->add(golden::read_file(golden::committed("bpe_text.txt"))));
  const auto vocabulary = trainer->train();
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->pieces, expected->pieces);
  EXPECT_EQ(vocabulary->merges, expected->merges);
  EXPECT_EQ(vocabulary->types, expected->types);
}

TEST(BpeGolden, LearnsTheTokenizerOfTheDemoModelWhereItsTextIsThere) {
  const auto path = golden::data("text/tinyshakespeare_input.txt");
  if (!path) GTEST_SKIP() << golden::kNoData;
  const auto expected = open_vocabulary(BUTTERFLY_SOURCE_DIR "/models/demo.gguf");
  ASSERT_TRUE(expected) << expected.error().message;
  const std::string text = golden::read_file(*path);
  auto trainer = BpeTrainer::create({.vocab = expected->size()});
  ASSERT_TRUE(trainer && trainer->add(text.substr(0, text.size() * 9 / 10)));
  const auto vocabulary = trainer->train();
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->pieces, expected->pieces);
  EXPECT_EQ(vocabulary->merges, expected->merges);
}

}  // namespace
}  // namespace butterfly
