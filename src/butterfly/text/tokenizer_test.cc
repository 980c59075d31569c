#include "butterfly/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Entry {
  std::string piece;
  float score = 0;
  TokenType type = TokenType::kNormal;
};

Vocabulary vocabulary_of(TokenizerKind kind, const std::vector<Entry>& entries) {
  Vocabulary vocabulary;
  vocabulary.kind = kind;
  for (const Entry& entry : entries) {
    vocabulary.pieces.push_back(entry.piece);
    vocabulary.types.push_back(entry.type);
    if (kind == TokenizerKind::kSentencePiece) vocabulary.scores.push_back(entry.score);
  }
  return vocabulary;
}

/// <unk> 0, <s> 1, </s> 2, then letters and merges; spaces are U+2581 in front of words.
Vocabulary sentences() {
  Vocabulary vocabulary = vocabulary_of(TokenizerKind::kSentencePiece, {{"<unk>", 0, TokenType::kUnknown},
                                                                        {"<s>", 0, TokenType::kControl},
                                                                        {"</s>", 0, TokenType::kControl},
                                                                        {"\u2581", -9},
                                                                        {"a", -9},
                                                                        {"b", -9},
                                                                        {"c", -9},
                                                                        {"ab", -1},
                                                                        {"bc", -2},
                                                                        {"\u2581a", -3},
                                                                        {"\u2581ab", -4},
                                                                        {"<tool>", 0, TokenType::kUserDefined},
                                                                        {"<tool>x", 0, TokenType::kUserDefined}});
  vocabulary.unknown = TokenId{0};
  vocabulary.bos = TokenId{1};
  vocabulary.eos = TokenId{2};
  vocabulary.add_bos = true;
  vocabulary.add_space_prefix = true;
  return vocabulary;
}

/// The 256 bytes, in order of the bytes, as GPT-2 spells them; then `more`.
Vocabulary bytes_and(const std::vector<std::string>& more) {
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kByteBpe;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    std::string piece;
    append_utf8(piece, itself ? static_cast<char32_t>(byte) : next++);
    vocabulary.pieces.push_back(piece);
  }
  vocabulary.pieces.insert(vocabulary.pieces.end(), more.begin(), more.end());
  vocabulary.types.assign(vocabulary.pieces.size(), TokenType::kNormal);
  return vocabulary;
}

Tokenizer make(Vocabulary vocabulary) {
  auto tokenizer = Tokenizer::create(std::move(vocabulary));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(*tokenizer);
}

std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
  const auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids) << ids.error().message;
  std::vector<std::int32_t> values;
  if (ids) {
    for (TokenId id : *ids) values.push_back(id.value);
  }
  return values;
}

std::vector<TokenId> tokens(const std::vector<std::int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

TEST(SentencePiece, MergesTheBestScoreFirst) {
  const Tokenizer tokenizer = make(sentences());
  EXPECT_THAT(encode(tokenizer, "abc", {.add_bos = false}), ElementsAre(10, 6));
  EXPECT_THAT(encode(tokenizer, "bc abc", {.add_bos = false}), ElementsAre(3, 8, 10, 6));
}

TEST(SentencePiece, EqualScoresMergeTheLeftmostFirst) {
  Vocabulary vocabulary = sentences();
  vocabulary.scores[7] = vocabulary.scores[8] = -1;
  vocabulary.add_space_prefix = false;
  EXPECT_THAT(encode(make(vocabulary), "abc", {.add_bos = false}), ElementsAre(7, 6));
  vocabulary.scores[8] = -0.5f;
  EXPECT_THAT(encode(make(vocabulary), "abc", {.add_bos = false}), ElementsAre(4, 8));
}

TEST(SentencePiece, MergesByRankOnlyThePairsThatAreListed) {
  Vocabulary vocabulary = sentences();
  vocabulary.add_space_prefix = false;
  vocabulary.merges = {"b c"};
  EXPECT_THAT(encode(make(vocabulary), "abc ab", {.add_bos = false}), ElementsAre(4, 8, 3, 4, 5));
}

TEST(SentencePiece, SpacePrefixComesBackAfterSpecialTokensUnlessOnce) {
  Vocabulary vocabulary = sentences();
  EXPECT_THAT(encode(make(vocabulary), "a</s>a"), ElementsAre(1, 9, 2, 9));
  vocabulary.space_prefix_once = true;
  EXPECT_THAT(encode(make(vocabulary), "a</s>a"), ElementsAre(1, 9, 2, 4));
  EXPECT_THAT(encode(make(vocabulary), "</s>a"), ElementsAre(1, 2, 4));
}

TEST(SentencePiece, ACharacterWithoutTokenBecomesItsBytesOrOneUnknownOrAnError) {
  Vocabulary vocabulary = sentences();
  EXPECT_THAT(encode(make(vocabulary), "a\u00e9\u00e9b\u00e9"), ElementsAre(1, 9, 0, 5, 0));
  vocabulary.fuse_unknown = false;
  EXPECT_THAT(encode(make(vocabulary), "a\u00e9\u00e9b"), ElementsAre(1, 9, 0, 0, 5));

  Vocabulary with_bytes = vocabulary;
  with_bytes.pieces.insert(with_bytes.pieces.end(), {"<0xC3>", "<0xA9>"});
  with_bytes.types.insert(with_bytes.types.end(), 2, TokenType::kByte);
  with_bytes.scores.insert(with_bytes.scores.end(), 2, 0.0f);
  const Tokenizer tokenizer = make(with_bytes);
  EXPECT_THAT(encode(tokenizer, "a\u00e9b"), ElementsAre(1, 9, 13, 14, 5));
  EXPECT_THAT(encode(tokenizer, "a\u00eab"), ElementsAre(1, 9, 0, 5)) << "only one of its two bytes has a token";
  EXPECT_EQ(tokenizer.decode(tokens({1, 9, 13, 14, 5})), "a\u00e9b");

  vocabulary.unknown = TokenId{-1};
  const auto refused = make(vocabulary).encode("a\u00e9b");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kBadData);
  EXPECT_THAT(refused.error().message, HasSubstr("\u00e9"));
}

TEST(SentencePiece, ControlPiecesAndUnusedPiecesAreNeverMergedFromText) {
  Vocabulary vocabulary = sentences();
  for (const char* piece : {"<", "s", ">", "<s", "s>"}) {
    vocabulary.pieces.emplace_back(piece);
    vocabulary.types.push_back(TokenType::kNormal);
    vocabulary.scores.push_back(-1);
  }
  vocabulary.types[7] = TokenType::kUnused;
  vocabulary.types[10] = TokenType::kUnused;
  const Tokenizer tokenizer = make(vocabulary);
  EXPECT_THAT(encode(tokenizer, "ab<s>", {.parse_special = false}), ElementsAre(1, 9, 5, 16, 15));
}

TEST(SentencePiece, DecodingDropsOnlyTheArtificialSpace) {
  Vocabulary vocabulary = sentences();
  const Tokenizer tokenizer = make(vocabulary);
  EXPECT_EQ(tokenizer.decode(tokens(encode(tokenizer, "a b"))), "a b");
  EXPECT_EQ(tokenizer.decode(tokens(encode(tokenizer, " a  b "))), " a  b ");
  EXPECT_EQ(tokenizer.decode(tokens({1, 9, 2})), "a");
  EXPECT_EQ(tokenizer.decode(tokens({1, 9, 2}), Tokenizer::Control::kShown), "<s> a</s>");
  vocabulary.add_space_prefix = false;
  EXPECT_EQ(make(vocabulary).decode(tokens({9})), " a");
}

TEST(ByteBpe, MergesByRankNotByLength) {
  Vocabulary vocabulary = bytes_and({"ab", "bc", "abc"});
  vocabulary.merges = {"b c", "a b", "ab c", "a bc"};
  EXPECT_THAT(encode(make(vocabulary), "abc"), ElementsAre(258));
  vocabulary.merges = {"b c", "a b", "ab c"};
  EXPECT_THAT(encode(make(vocabulary), "abc"), ElementsAre('a', 257));
}

TEST(ByteBpe, WholePreTokensWinOnlyWhereMergesAreIgnored) {
  Vocabulary vocabulary = bytes_and({"ab", "abc"});
  vocabulary.merges = {"a b"};
  EXPECT_THAT(encode(make(vocabulary), "abc"), ElementsAre(256, 'c'));
  vocabulary.ignore_merges = true;
  EXPECT_THAT(encode(make(vocabulary), "abc"), ElementsAre(257));
}

TEST(ByteBpe, NoMergeCrossesThePreTokenizersCuts) {
  Vocabulary vocabulary = bytes_and({"1a", "12", "\u0120a"});
  vocabulary.merges = {"1 a", "1 2", "\u0120 a"};
  EXPECT_THAT(encode(make(vocabulary), "1a"), ElementsAre('1', 'a'));
  EXPECT_THAT(encode(make(vocabulary), "12 a"), ElementsAre(257, 258));
  vocabulary.pre_tokenizer = PreTokenizer::kQwen2;
  EXPECT_THAT(encode(make(vocabulary), "12"), ElementsAre('1', '2'));
  vocabulary.pre_tokenizer = PreTokenizer::kCustom;
  vocabulary.custom_pattern = "(?s).+";
  EXPECT_THAT(encode(make(vocabulary), "1a12"), ElementsAre(256, 257));
  vocabulary.further_patterns = {"2"};
  EXPECT_THAT(encode(make(vocabulary), "1a12"), ElementsAre(256, '1', '2'));
}

TEST(ByteBpe, EveryByteSequenceThatIsUtf8ComesBack) {
  const Tokenizer tokenizer = make(bytes_and({}));
  const std::string text = std::string("\0\x01\x7f \t\n", 6) + "\u00e9\u4f60\U0001F642\U0010FFFF";
  EXPECT_EQ(encode(tokenizer, text).size(), text.size());
  EXPECT_EQ(tokenizer.decode(tokens(encode(tokenizer, text))), text);
}

TEST(ByteBpe, MergesThatNameUnknownPiecesAreLeftOutAndDuplicatePiecesGiveTheFirstId) {
  Vocabulary vocabulary = bytes_and({"ab", "ab", "abc"});
  vocabulary.merges = {"x yz", "nonsense", "", " ", "a  b", "ab d", "a b", "ab c"};
  EXPECT_THAT(encode(make(vocabulary), "ab abc"), ElementsAre(256, ' ', 258));
}

TEST(ByteBpe, AMissingByteIsTheUnknownTokenOrAnErrorThatNamesIt) {
  Vocabulary vocabulary = bytes_and({"<unk>"});
  vocabulary.pieces['b'] = "gone";
  const auto refused = make(vocabulary).encode("abc");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kBadData);
  EXPECT_THAT(refused.error().message, HasSubstr("0x62"));
  vocabulary.unknown = TokenId{256};
  EXPECT_THAT(encode(make(vocabulary), "abc"), ElementsAre('a', 256, 'c'));
}

TEST(ByteBpe, SpacePrefixIsAddedOnlyWhereThereIsNone) {
  Vocabulary vocabulary = bytes_and({});
  vocabulary.add_space_prefix = true;
  EXPECT_THAT(encode(make(vocabulary), "a"), ElementsAre(' ', 'a'));
  EXPECT_THAT(encode(make(vocabulary), " a"), ElementsAre(' ', 'a'));
}

TEST(SpecialTokens, TheLongestOfThoseThatStartAtAPlaceWins) {
  const Tokenizer tokenizer = make(sentences());
  EXPECT_THAT(encode(tokenizer, "<tool>a<tool>x<tool", {.add_bos = false}), ElementsAre(11, 9, 12, 3, 0));
}

TEST(SpecialTokens, ControlTokensCanBeKeptAsTextUserDefinedOnesNot) {
  const Tokenizer tokenizer = make(sentences());
  EXPECT_THAT(encode(tokenizer, "a<s><tool>", {.add_bos = false, .parse_special = false}), ElementsAre(9, 0, 11));
  EXPECT_THAT(encode(tokenizer, "a<s><tool>", {.add_bos = false}), ElementsAre(9, 1, 11));
}

TEST(SpecialTokens, BosIsAddedOnceAndOnlyWhereWanted) {
  const Tokenizer tokenizer = make(sentences());
  EXPECT_THAT(encode(tokenizer, ""), ElementsAre(1));
  EXPECT_THAT(encode(tokenizer, "a"), ElementsAre(1, 9));
  EXPECT_THAT(encode(tokenizer, "<s>a"), ElementsAre(1, 9));
  EXPECT_THAT(encode(tokenizer, "<s><s>a"), ElementsAre(1, 1, 9));
  EXPECT_THAT(encode(tokenizer, "<s>a", {.add_bos = false}), ElementsAre(1, 9));
  Vocabulary without = sentences();
  without.add_bos = false;
  EXPECT_THAT(encode(make(without), "a"), ElementsAre(9));
}

TEST(SpecialTokens, SwallowWhiteSpaceWhereTheVocabularySaysSo) {
  Vocabulary vocabulary = sentences();
  vocabulary.add_space_prefix = false;
  vocabulary.strip_before = {TokenId{11}};
  EXPECT_THAT(encode(make(vocabulary), "a \n<tool> b", {.add_bos = false}), ElementsAre(4, 11, 3, 5));
  vocabulary.strip_after = {TokenId{11}};
  EXPECT_THAT(encode(make(vocabulary), "a <tool> \tb", {.add_bos = false}), ElementsAre(4, 11, 5));
}

TEST(SpecialTokens, ThoseThatWouldSlowTheSearchAreRefused) {
  Vocabulary vocabulary = sentences();
  vocabulary.pieces[11] = std::string(257, 'a');
  EXPECT_EQ(Tokenizer::create(vocabulary).error().code, ErrorCode::kUnsupported);
}

TEST(Tokenizer, InvalidUtf8IsRefusedNamingTheOffset) {
  const auto ids = make(bytes_and({})).encode("abc\xE2\x82");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(ids.error().message, HasSubstr("offset 3"));
}

TEST(Tokenizer, AVocabularyThatContradictsItselfIsRefusedWithBothValues) {
  const auto refused = [](const auto& change) {
    Vocabulary vocabulary = sentences();
    change(vocabulary);
    auto tokenizer = Tokenizer::create(std::move(vocabulary));
    EXPECT_FALSE(tokenizer);
    return tokenizer ? Error{} : tokenizer.error();
  };
  EXPECT_THAT(refused([](Vocabulary& v) { v.scores.pop_back(); }).message, HasSubstr("13 pieces and 12 scores"));
  EXPECT_THAT(refused([](Vocabulary& v) { v.types.pop_back(); }).message, HasSubstr("13 pieces and 12 token types"));
  EXPECT_THAT(refused([](Vocabulary& v) { v.eos = TokenId{13}; }).message, HasSubstr("13"));
  EXPECT_THAT(refused([](Vocabulary& v) { v.unknown = TokenId{-2}; }).message, HasSubstr("-2"));
  EXPECT_THAT(refused([](Vocabulary& v) { v.end_tokens = {TokenId{99}}; }).message, HasSubstr("99"));
  EXPECT_THAT(refused([](Vocabulary& v) { v.bos = TokenId{-1}; }).code, ErrorCode::kBadData);
  EXPECT_THAT(refused([](Vocabulary& v) { v.scores[4] = kNan; }).message, HasSubstr("token 4"));
  EXPECT_THAT(refused([](Vocabulary& v) { v.types[4] = TokenType::kByte; }).message, HasSubstr("token 4"));
  EXPECT_THAT(refused([](Vocabulary& v) { v.kind = TokenizerKind::kNone; }).code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused([](Vocabulary& v) {
                v = Vocabulary{};
                v.kind = TokenizerKind::kByteBpe;
              }).code,
              ErrorCode::kBadData);
}

TEST(Tokenizer, IdsOutsideTheVocabularyDecodeToNothing) {
  const Tokenizer tokenizer = make(sentences());
  EXPECT_EQ(tokenizer.decode(tokens({-1, 13, 1 << 30, 4})), "a");
  EXPECT_FALSE(tokenizer.is_end(TokenId{-1}));
  EXPECT_TRUE(tokenizer.is_end(TokenId{2}));
}

TEST(Tokenizer, AMegabyteOfOneCharacterCostsNoMoreThanItsLength) {
  // Rescanning all pairs for every merge would take hours here; the limit of the test program notices.
  Vocabulary spm = sentences();
  Vocabulary bpe = bytes_and({});
  std::string piece = "a";
  for (int doubling = 0; doubling < 8; ++doubling) {
    bpe.merges.push_back(piece + " " + piece);
    piece += piece;
    spm.pieces.push_back(piece);
    spm.types.push_back(TokenType::kNormal);
    spm.scores.push_back(static_cast<float>(-doubling));
    bpe.pieces.push_back(piece);
    bpe.types.push_back(TokenType::kNormal);
  }
  spm.add_space_prefix = false;
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(encode(make(spm), text, {.add_bos = false}).size(), text.size() / 256);
  EXPECT_EQ(encode(make(bpe), text).size(), text.size() / 256);
}

TEST(EndTokens, AreEosAndControlTokensKnownByName) {
  Vocabulary vocabulary = bytes_and({"<|im_end|>", "<|eot_id|>", "<eos>"});
  vocabulary.types[256] = TokenType::kControl;
  vocabulary.eos = TokenId{258};
  add_known_end_tokens(vocabulary);
  add_known_end_tokens(vocabulary);
  EXPECT_THAT(vocabulary.end_tokens, ElementsAre(TokenId{258}, TokenId{256})) << "text is no end token";
}

class Streaming : public ::testing::Test {
 protected:
  static std::vector<std::string> push_all(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                                           const StreamingDetokenizer::Options& options) {
    StreamingDetokenizer detokenizer(tokenizer, options);
    std::vector<std::string> parts;
    for (TokenId id : tokens(ids)) parts.push_back(detokenizer.push(id));
    parts.push_back(detokenizer.finish());
    return parts;
  }
};

TEST_F(Streaming, ACharacterComesWholeWhenItsLastByteDoes) {
  const Tokenizer tokenizer = make(bytes_and({}));
  EXPECT_THAT(push_all(tokenizer, {'a', 0xF0, 0x9F, 0x99, 0x82, 'b'}, {}),
              ElementsAre("a", "", "", "", "\U0001F642", "b", ""));
}

TEST_F(Streaming, AnIncompleteCharacterAtTheEndIsTheReplacementCharacter) {
  const Tokenizer tokenizer = make(bytes_and({}));
  EXPECT_THAT(push_all(tokenizer, {'a', 0xF0, 0x9F}, {}), ElementsAre("a", "", "", "\uFFFD"));
}

TEST_F(Streaming, BytesThatCannotBecomeACharacterDoNotHoldUpTheText) {
  const Tokenizer tokenizer = make(bytes_and({}));
  EXPECT_THAT(push_all(tokenizer, {0xFF, 'a', 0xE2, 0x82, 'b', 0x80}, {}), ElementsAre("\uFFFD", "a", "", "",
                                                                                       "\uFFFD"
                                                                                       "b",
                                                                                       "\uFFFD", ""));
}

TEST_F(Streaming, TheArtificialSpaceIsDroppedOnceAtTheStartOfATextOnly) {
  const Tokenizer tokenizer = make(sentences());
  EXPECT_THAT(push_all(tokenizer, {1, 9, 9}, {}), ElementsAre("", "a", " a", ""));
  EXPECT_THAT(push_all(tokenizer, {9, 9}, {.first_in_text = false, .control = Tokenizer::Control::kHidden}),
              ElementsAre(" a", " a", ""));
  EXPECT_THAT(push_all(tokenizer, {1, 9}, {.first_in_text = true, .control = Tokenizer::Control::kShown}),
              ElementsAre("<s>", " a", ""));
}

TEST(Unigram, ALongTextBeforeAWordDoesNotHideWhichWayIsBetter) {
  // Nine million below zero a float would no longer tell -10 from -9.99: sums start again before.
  Vocabulary vocabulary =
      vocabulary_of(TokenizerKind::kUnigram, {{"<unk>", 0, TokenType::kUnknown}, {"x"}, {"a"}, {"c"}, {"ab"}, {"bc"}});
  vocabulary.scores = {0, -9, -5, -5, -5, -4.99};
  vocabulary.unknown = TokenId{0};
  vocabulary.float_scores = true;
  const auto tokenizer = Tokenizer::create(vocabulary).value();
  const auto ids = tokenizer.encode(std::string(1000000, 'x') + "abc").value();
  ASSERT_EQ(ids.size(), 1000002u);
  EXPECT_EQ(ids[1000000], TokenId{2});
  EXPECT_EQ(ids[1000001], TokenId{5});
}

/// The best cover of `text` by `pieces`, looked at as a whole.
std::vector<TokenId> best_cover(const Vocabulary& vocabulary, const std::string& text) {
  struct Best {
    double score = -std::numeric_limits<double>::infinity();
    std::size_t begin = 0;
    int id = -1;
  };
  std::vector<Best> best(text.size() + 1);
  best[0].score = 0;
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    for (int id = 1; id < vocabulary.size(); ++id) {
      const std::string& piece = vocabulary.pieces[static_cast<std::size_t>(id)];
      const double score = best[begin].score + vocabulary.scores[static_cast<std::size_t>(id)];
      if (text.compare(begin, piece.size(), piece) != 0) continue;
      if (score > best[begin + piece.size()].score) best[begin + piece.size()] = {score, begin, id};
    }
  }
  std::vector<TokenId> ids;
  for (std::size_t end = text.size(); end > 0; end = best[end].begin) ids.emplace_back(best[end].id);
  std::ranges::reverse(ids);
  return ids;
}

TEST(Unigram, ALongWordHasTheCoverThatAWholeLookAtItFinds) {
  // Pieces overlap, so that ways stay open for long where words do not end: with "." they end, without it never.
  Vocabulary vocabulary = vocabulary_of(
      TokenizerKind::kUnigram,
      {{"<unk>", 0, TokenType::kUnknown}, {"a"}, {"b"}, {"."}, {"ab"}, {"ba"}, {"aab"}, {"bba"}, {"abab"}, {"baaabb"}});
  vocabulary.scores = {0, -3.5, -3.25, -2, -5, -4.75, -6.5, -7.125, -9, -11};
  vocabulary.unknown = TokenId{0};
  const auto tokenizer = Tokenizer::create(vocabulary).value();
  std::mt19937 random(3);
  for (const std::string letters : {"ab", "abababab."}) {
    for (const std::size_t size : {255u, 256u, 257u, 511u, 512u, 513u, 5000u}) {
      std::string text;
      while (text.size() < size) text.push_back(letters[random() % letters.size()]);
      EXPECT_EQ(tokenizer.encode(text).value(), best_cover(vocabulary, text)) << letters << " " << size;
    }
  }
}

TEST(Unigram, UnknownCharactersFuseWhereverALongWordIsLookedAt) {
  Vocabulary vocabulary = vocabulary_of(TokenizerKind::kUnigram, {{"<unk>", 0, TokenType::kUnknown}, {"a"}});
  vocabulary.scores = {0, -1};
  vocabulary.unknown = TokenId{0};
  vocabulary.fuse_unknown = true;
  const auto tokenizer = Tokenizer::create(vocabulary).value();
  const auto ids = tokenizer.encode(std::string(250, 'a') + std::string(1000, 'x') + "a").value();
  ASSERT_EQ(ids.size(), 252u);
  EXPECT_EQ(ids[250], TokenId{0});
}

}  // namespace
}  // namespace butterfly
