// The BPE trainer against Hugging Face's (tools/make_tokenizer_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "butterfly/base/hash/digest.h"
#include "butterfly/base/json.h"
#include "butterfly/model/format/tokenizer/tokenizer_json.h"
#include "butterfly/model/format/vocabulary_file.h"
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

/// The parts of the text that tools/demo_data.py cuts: the first 90 %, each begins with a speech.
std::vector<std::string> demo_parts(const std::string& text) {
  std::vector<std::string> parts;
  const std::size_t split = text.size() * 9 / 10;
  for (std::size_t begin = 0; begin < split;) {
    const std::size_t border = text.find("\n\n", begin + 10'000);
    const std::size_t end = border == std::string::npos ? split : std::min(border + 2, split);
    parts.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return parts;
}

TEST(BpeGolden, LearnsFromAMegabyteWhatTokenizersDoesAndTheDemoModelSpeaks) {
  const auto path = golden::data("text/tinyshakespeare_input.txt");
  if (!path) GTEST_SKIP() << golden::kNoData;
  const auto expected = parse_json(golden::read_file(golden::committed("bpe_large.json")));
  const std::string text = golden::read_file(*path);
  ASSERT_EQ(to_hex(sha256(as_bytes(text))), expected["text_sha256"]);
  auto trainer = BpeTrainer::create({.vocab = expected["vocab"]});
  ASSERT_TRUE(trainer);
  for (const std::string& part : demo_parts(text)) ASSERT_TRUE(trainer->add(part));
  const auto vocabulary = trainer->train();
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;
  std::string merges;
  for (const std::string& merge : vocabulary->merges) merges += merge + "\n";
  EXPECT_EQ(to_hex(sha256(as_bytes(merges))), expected["merges_sha256"]);
  const auto demo = open_vocabulary(BUTTERFLY_SOURCE_DIR "/models/demo.gguf");
  ASSERT_TRUE(demo) << demo.error().message;
  EXPECT_EQ(demo->pieces, vocabulary->pieces);
  EXPECT_EQ(demo->merges, vocabulary->merges);
}

}  // namespace
}  // namespace butterfly
