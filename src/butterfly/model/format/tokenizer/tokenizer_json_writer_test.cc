#include "butterfly/model/format/tokenizer/tokenizer_json_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "butterfly/model/format/tokenizer/tokenizer_json.h"
#include "butterfly/model/format/vocabulary_file.h"
#include "butterfly/text/bpe_trainer.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

Vocabulary trained() {
  auto trainer = BpeTrainer::create({.vocab = 300});
  EXPECT_TRUE(trainer && trainer->add("To be, or not to be, that is the question: whether \"'tis\" \\ nobler"));
  return *trainer->train();
}

void expect_same(const Vocabulary& read, const Vocabulary& written) {
  EXPECT_EQ(read.kind, written.kind);
  EXPECT_EQ(read.pre_tokenizer, written.pre_tokenizer);
  EXPECT_EQ(read.custom_pattern, written.custom_pattern);
  EXPECT_EQ(read.pieces, written.pieces);
  EXPECT_EQ(read.types, written.types);
  EXPECT_EQ(read.merges, written.merges);
  EXPECT_EQ(read.bos, written.bos);
  EXPECT_EQ(read.eos, written.eos);
  EXPECT_EQ(read.add_bos, written.add_bos);
  EXPECT_EQ(read.end_tokens, written.end_tokens);
  EXPECT_EQ(read.ignore_merges, written.ignore_merges);
}

TEST(TokenizerJsonWriter, ReadingGivesBackTheVocabulary) {
  Vocabulary vocabulary = trained();
  for (const PreTokenizer pattern : {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2}) {
    vocabulary.pre_tokenizer = pattern;
    const auto text = write_tokenizer_json(vocabulary);
    ASSERT_TRUE(text) << text.error().message;
    const auto read = read_tokenizer_json(*text, "");
    ASSERT_TRUE(read) << read.error().message;
    expect_same(*read, vocabulary);
  }
}

TEST(TokenizerJsonWriter, AVocabularyIsFoundByItsFileOrItsFolder) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tokenizer_json_writer";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << *write_tokenizer_json(trained());
  for (const std::string& path : {folder.string(), (folder / "tokenizer.json").string()}) {
    const auto vocabulary = open_vocabulary(path);
    ASSERT_TRUE(vocabulary) << vocabulary.error().message;
    expect_same(*vocabulary, trained());
  }
  std::ofstream(folder / "broken.json") << "{";
  EXPECT_THAT(open_vocabulary((folder / "broken.json").string()).error().message, HasSubstr("broken.json: "));
  EXPECT_EQ(open_vocabulary((folder / "absent.json").string()).error().code, ErrorCode::kNotFound);
}

TEST(TokenizerJsonWriter, OtherKindsAreRefused) {
  EXPECT_THAT(write_tokenizer_json({}).error().message, HasSubstr("not no tokenizer at all"));
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kSentencePiece;
  EXPECT_THAT(write_tokenizer_json(vocabulary).error().message, HasSubstr("not sentencepiece"));
}

}  // namespace
}  // namespace butterfly
