#include "butterfly/train/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/text/bpe_trainer.h"
#include "butterfly/train/data/hash_of_pieces_test.h"
#include "butterfly/train/data/permutation.h"
#include "butterfly/train/data/token_file.h"
#include "butterfly/train/data/token_source.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string place(const std::string& name) {
  return ::testing::TempDir() + "dataset_" + name;
}

/// A packed file of the ids 0, 1, 2, ...
std::string counting(const std::string& name, int count, int vocab) {
  const std::string path = place(name + ".tokens");
  auto writer = TokenFileWriter::create(path, vocab, {});
  EXPECT_TRUE(writer);
  for (int id = 0; id < count; ++id) EXPECT_TRUE(writer->append(std::vector<TokenId>{TokenId(id % vocab)}));
  EXPECT_TRUE(writer->finish());
  return path;
}

std::string text_file(const std::string& name, const std::string& text) {
  std::ofstream(place(name), std::ios::binary) << text;
  return place(name);
}

/// All bytes, and nothing merged.
const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = [] {
    auto trainer = BpeTrainer::create({.vocab = 257});
    EXPECT_TRUE(trainer->add("a"));
    return std::move(*Tokenizer::create(*trainer->train()));
  }();
  return tokenizer;
}

std::unique_ptr<Dataset> must_open(const DataConfig& config, const DatasetOptions& options) {
  auto dataset = open_dataset(config, options);
  EXPECT_TRUE(dataset) << (dataset ? "" : dataset.error().message);
  return dataset ? std::move(*dataset) : nullptr;
}

std::string refusal(const DataConfig& config, const DatasetOptions& options) {
  const auto dataset = open_dataset(config, options);
  return dataset ? "accepted" : dataset.error().message;
}

struct Sequence {
  std::vector<TokenId> tokens, targets;
};
Sequence sequence(const Dataset& dataset, std::int64_t step, int index, int seq) {
  const auto size = static_cast<std::size_t>(seq);
  Sequence result{std::vector<TokenId>(size), std::vector<TokenId>(size)};
  dataset.sequence(step, index, result.tokens, result.targets);
  return result;
}

TEST(Permutation, VisitsEveryIndexOnce) {
  for (const std::uint64_t size : {1u, 2u, 3u, 7u, 64u, 1000u, 4097u}) {
    const Permutation shuffle(size, 5);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < size; ++i) seen.insert(shuffle(i));
    EXPECT_EQ(seen.size(), size);
    EXPECT_LT(*seen.rbegin(), size);
  }
}

TEST(Permutation, ShufflesDifferentlyForEachKeyAndFarFromTheOrder) {
  const Permutation one(1000, 1), two(1000, 2);
  int same = 0, neighbours = 0;
  for (std::uint64_t i = 0; i < 999; ++i) {
    same += one(i) == two(i) ? 1 : 0;
    neighbours += one(i) + 1 == one(i + 1) ? 1 : 0;
  }
  EXPECT_LT(same, 10);
  EXPECT_LT(neighbours, 10);
}

TEST(Dataset, AnEpochIsEveryWindowOnceAndTargetsFollowTheirTokens) {
  const int seq = 10, batch = 4;
  const auto data = must_open({.files = {counting("epoch", 1000, 1000)}, .validation_share = 0.0, .seed = 3},
                              {.seq = seq, .global_batch = batch});
  // 99 whole windows and the last target; one is given up.
  const int windows = 98;
  std::map<int, std::set<int>> begins;  // of each epoch
  for (int n = 0; n < 3 * windows; ++n) {
    const Sequence got = sequence(*data, n / batch, n % batch, seq);
    for (int i = 0; i < seq; ++i) {
      EXPECT_EQ(got.tokens[static_cast<std::size_t>(i)].value, got.tokens[0].value + i);
      EXPECT_EQ(got.targets[static_cast<std::size_t>(i)].value, got.tokens[0].value + i + 1);
    }
    begins[n / windows].insert(got.tokens[0].value);
  }
  std::set<int> shifts;
  for (const auto& [epoch, found] : begins) {
    EXPECT_EQ(found.size(), static_cast<std::size_t>(windows)) << epoch;
    EXPECT_EQ(*found.rbegin() - *found.begin(), (windows - 1) * seq) << epoch;
    shifts.insert(*found.begin());
  }
  EXPECT_GT(shifts.size(), 1u) << "every epoch begins at another place";
}

TEST(Dataset, ASequenceDependsOnSeedStepAndIndexAlone) {
  const std::string file = counting("alone", 5000, 5000);
  const DatasetOptions options{.seq = 16, .global_batch = 8};
  const auto one = must_open({.files = {file}}, options), again = must_open({.files = {file}}, options);
  const auto other = must_open({.files = {file}, .seed = 2}, options);
  const Sequence late = sequence(*one, 1000, 7, 16);
  EXPECT_EQ(late.tokens, sequence(*again, 1000, 7, 16).tokens);
  EXPECT_EQ(late.targets, sequence(*again, 1000, 7, 16).targets);
  EXPECT_NE(late.tokens, sequence(*other, 1000, 7, 16).tokens);
}

TEST(Dataset, TheValidationPartIsTheEndAndNeverTrainedOn) {
  const auto data =
      must_open({.files = {counting("share", 1000, 1000)}, .validation_share = 0.1}, {.seq = 16, .global_batch = 1});
  EXPECT_EQ(data->stats().train_tokens, 900);
  EXPECT_EQ(data->stats().validation_tokens, 100);
  for (int step = 0; step < 200; ++step) EXPECT_LT(sequence(*data, step, 0, 16).targets.back().value, 900);
  ASSERT_EQ(data->validation_windows(16), 7);
  std::vector<TokenId> tokens(16), targets(16);
  int expected = 901;
  for (std::int64_t window = 0; window < 7; ++window) {
    data->validation_window(window, tokens, targets);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (expected == 1000) {
        EXPECT_EQ(targets[i].value, -1);
        EXPECT_EQ(tokens[i].value, 0);
      } else {
        EXPECT_EQ(tokens[i].value, expected - 1);
        EXPECT_EQ(targets[i].value, expected++);
      }
    }
  }
  EXPECT_EQ(expected, 1000) << "each target once";
}

TEST(Dataset, AValidationFileTakesThePlaceOfTheShare) {
  const auto data = must_open({.files = {counting("train", 300, 1000)},
                               .validation_share = 0.5,
                               .validation_file = counting("valid", 40, 1000)},
                              {.seq = 8, .global_batch = 2});
  EXPECT_EQ(data->stats().train_tokens, 300);
  EXPECT_EQ(data->stats().validation_tokens, 40);
  EXPECT_EQ(data->validation_windows(8), 5);
}

TEST(Dataset, UnigramEntropyIsThatOfTheTrainingTokens) {
  const auto data =
      must_open({.files = {counting("entropy", 1000, 8)}, .validation_share = 0.0}, {.seq = 8, .global_batch = 2});
  EXPECT_NEAR(data->stats().unigram_entropy, std::log(8.0), 1e-12);
  EXPECT_LT(data->stats().known_entropy, 0.0);
}

TEST(Dataset, TextBecomesTokensFileAfterFile) {
  const std::string one = text_file("one.txt", "abc"), two = text_file("two.txt", "de");
  const auto& tokenizer = byte_tokenizer();
  std::uint64_t done = 0, total = 0;
  const DatasetOptions options{.tokenizer = &tokenizer, .seq = 6, .global_batch = 1, .progress = [&](auto d, auto t) {
                                 done = d;
                                 total = t;
                               }};
  const auto data = must_open({.files = {one, two}, .validation_share = 0.0}, options);
  EXPECT_EQ(data->vocab(), 257);
  EXPECT_EQ(done, 5u);
  EXPECT_EQ(total, 5u);
  // The token that starts texts stands before each; being the one that ends them, too, it is not there twice.
  ASSERT_EQ(data->stats().train_tokens, 7);
  const Sequence got = sequence(*data, 0, 0, 6);
  EXPECT_EQ(tokenizer.decode(got.tokens, Tokenizer::Control::kShown), "<|endoftext|>abc<|endoftext|>d");
  EXPECT_EQ(tokenizer.decode(got.targets), "abcde");
}

TEST(Dataset, TextInPiecesHasTheTokensOfTheWhole) {
  if (kThreadsWatched) GTEST_SKIP() << "minutes, and one thread";
  std::string text;
  for (int line = 0; text.size() < (5u << 19); ++line) {
    text += fmt::format("Line {} it's  here.{}\n{}", line, line % 3 == 0 ? " " : "", line % 7 == 0 ? "\n" : "");
  }
  auto trainer = BpeTrainer::create({.vocab = 400});
  ASSERT_TRUE(trainer && trainer->add(text));
  const Tokenizer tokenizer = std::move(*Tokenizer::create(*trainer->train()));
  std::vector<TokenId> together;
  int pieces = 0;
  const Status encoded = encode_document(tokenizer, text,
                                         [&](std::span<const TokenId> ids) -> Status {
                                           together.insert(together.end(), ids.begin(), ids.end());
                                           ++pieces;
                                           return {};
                                         },
                                         {});
  ASSERT_TRUE(encoded);
  EXPECT_EQ(pieces, 3);
  EXPECT_TRUE(together == *tokenizer.encode(text));
}

TEST(Dataset, WhatCannotBeTrainedOnIsRefusedWithBothNumbers) {
  const DatasetOptions options{.tokenizer = &byte_tokenizer(), .seq = 16, .global_batch = 4};
  EXPECT_THAT(refusal({}, options), HasSubstr("names 0 files"));
  EXPECT_THAT(refusal({.files = {text_file("empty.txt", "")}}, options), HasSubstr("is empty"));
  EXPECT_THAT(refusal({.files = {text_file("tiny.txt", "To be, or not to be")}}, options),
              AllOf(HasSubstr("tiny.txt: 18 tokens to train on, a step needs 81"), HasSubstr("4 sequences of 16")));
  EXPECT_THAT(refusal({.files = {place("absent.txt")}}, options), HasSubstr("cannot be opened"));
  EXPECT_THAT(refusal({.files = {text_file("latin1.txt", "caf\xE9")}}, options),
              AllOf(HasSubstr("latin1.txt"), HasSubstr("0xE9 at offset 3")));
  const std::string text = text_file("text.txt", std::string(1000, 'x'));
  EXPECT_THAT(refusal({.files = {text}}, {.vocab = 1000, .seq = 16}), HasSubstr("there is no tokenizer"));
  EXPECT_THAT(refusal({.files = {text}}, {.tokenizer = &byte_tokenizer(), .vocab = 256, .seq = 16}),
              HasSubstr("the tokenizer has 257 tokens, the model has 256"));
  EXPECT_THAT(refusal({.files = {counting("large", 1000, 300)}}, {.vocab = 256, .seq = 16}),
              HasSubstr("is of a vocabulary of 300 tokens, the model has 256"));
}

TEST(Dataset, ATokenOutsideItsOwnVocabularyIsFoundWhenTheFileIsOpened) {
  const std::string path = counting("liar", 1000, 50);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(64 + 2 * 700);
  file.put(50);
  file.close();
  EXPECT_THAT(refusal({.files = {path}}, {.seq = 16}), HasSubstr("token 700 of the corpus is 50"));
}

TEST(Dataset, APackedFileOfAnotherTokenizerIsRefused) {
  const std::string path = place("other.tokens");
  auto writer = TokenFileWriter::create(path, 257, hash_of_pieces({"x"}));
  ASSERT_TRUE(writer && writer->append(std::vector<TokenId>(1000, TokenId(1))) && writer->finish());
  EXPECT_THAT(refusal({.files = {path}}, {.tokenizer = &byte_tokenizer(), .seq = 16}),
              HasSubstr("was packed with another tokenizer (257 tokens, "));
}

TEST(Dataset, RandomTokensAreUniformAndNothingPredictsThem) {
  const auto data = must_open({.files = {"synthetic:random"}}, {.vocab = 16, .seq = 64, .global_batch = 4});
  std::map<std::pair<int, int>, int> pairs;
  for (int n = 0; n < 4000; ++n) {
    const Sequence got = sequence(*data, n / 4, n % 4, 64);
    for (std::size_t i = 0; i < 64; ++i) ++pairs[{got.tokens[i].value, got.targets[i].value}];
  }
  ASSERT_EQ(pairs.size(), 256u);
  for (const auto& [pair, count] : pairs) EXPECT_NEAR(count, 1000, 200);
  EXPECT_DOUBLE_EQ(data->stats().known_entropy, data->stats().unigram_entropy);
}

TEST(Dataset, TheMarkovChainHasTheEntropyThatItStates) {
  const int vocab = 32;
  const auto data = must_open({.files = {"synthetic:markov"}}, {.vocab = vocab, .seq = 64, .global_batch = 4});
  std::map<int, std::map<int, double>> next;
  std::map<int, double> seen;
  double total = 0;
  for (int n = 0; n < 8000; ++n) {
    const Sequence got = sequence(*data, n / 4, n % 4, 64);
    for (std::size_t i = 0; i < 64; ++i) {
      if (i > 0) {
        EXPECT_EQ(got.tokens[i], got.targets[i - 1]);
      }
      ++next[got.tokens[i].value][got.targets[i].value];
      ++seen[got.tokens[i].value];
      ++total;
    }
  }
  double entropy = 0, unigram = 0;
  for (const auto& [token, successors] : next) {
    EXPECT_EQ(successors.size(), 4u);
    for (const auto& [successor, count] : successors) entropy -= count / total * std::log(count / seen[token]);
    unigram -= seen[token] / total * std::log(seen[token] / total);
  }
  EXPECT_NEAR(data->stats().known_entropy, 1.75 * std::log(2.0), 1e-12);
  EXPECT_NEAR(entropy, data->stats().known_entropy, 2e-3);
  EXPECT_NEAR(unigram, data->stats().unigram_entropy, 2e-3);
}

TEST(Dataset, SyntheticCorporaHaveTokensToValidateOnUnlessNoneAreWanted) {
  for (const std::string name : {"synthetic:random", "synthetic:markov"}) {
    const auto some = must_open({.files = {name}}, {.vocab = 16, .seq = 64, .global_batch = 4});
    EXPECT_EQ(some->stats().validation_tokens, 4096);
    EXPECT_EQ(some->validation_windows(64), 64);
    const auto none =
        must_open({.files = {name}, .validation_share = 0.0}, {.vocab = 16, .seq = 64, .global_batch = 4});
    EXPECT_EQ(none->stats().validation_tokens, 0);
    EXPECT_EQ(none->validation_windows(64), 0);
  }
}

TEST(Dataset, SyntheticCorporaAreWhole) {
  const DatasetOptions options{.vocab = 10, .seq = 8};
  EXPECT_THAT(refusal({.files = {"synthetic:markov", "b.txt"}}, options), HasSubstr("names 1 more"));
  EXPECT_THAT(refusal({.files = {"synthetic:markov"}, .validation_file = "b.txt"}, options),
              HasSubstr("not those of 'b.txt'"));
  EXPECT_THAT(refusal({.files = {"synthetic:poems"}}, options), HasSubstr("is no synthetic corpus"));
  EXPECT_THAT(refusal({.files = {"synthetic:random"}}, {.vocab = 3, .seq = 8}), HasSubstr("has 3 tokens, at least 4"));
}

}  // namespace
}  // namespace butterfly
