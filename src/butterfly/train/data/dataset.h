// Tokens to train on, and which of them a step uses: a function of (seed, step, sequence) alone, so that a resumed run
// and any number of ranks see the same. Memory-mapped; immutable after open; thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/text/tokenizer.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/data/token_file.h"

namespace butterfly {

struct DatasetStats {
  std::int64_t train_tokens = 0;
  std::int64_t validation_tokens = 0;
  /// Nats per token of the training tokens' frequencies: what a model reaches that looks at no context. A run that ends
  /// above it has learned nothing.
  double unigram_entropy = 0.0;
  /// Nats per token that no model can go below, where the data is made by a known process; negative: not known. Equal
  /// to the unigram entropy where there is nothing to learn.
  double known_entropy = -1.0;
};

/// One file's tokens as they are in memory, with what a token file says of them.
struct TokenPart {
  std::string file{};
  TokenView tokens{};  // the dataset's
  int vocab = 0;
  VocabularyHash hash{};
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual DatasetStats stats() const = 0;
  virtual int vocab() const = 0;

  /// SHA-256 over the tokens to train on, in order, whichever files hold them; of a corpus that is made up, over what
  /// makes it. Empty: not known. Reads all of them. Errors: kUnsupported (no SHA-256).
  virtual Result<std::string> digest() const { return std::string(); }

  /// Errors: kBadData where a file that is read while the run goes on has been written to since it was opened.
  virtual Status unchanged() const { return {}; }

  /// Sequence `index` (of global_batch) of step `step`: tokens[seq] and targets[seq], the tokens that follow. Epochs
  /// are permutations of non-overlapping windows, shifted by a seeded offset in each.
  virtual void sequence(std::int64_t step, int index, std::span<TokenId> tokens, std::span<TokenId> targets) const = 0;

  /// Windows of the validation part, in order, each target once; the last may be padded with targets of -1.
  virtual std::int64_t validation_windows(int seq) const = 0;
  virtual void validation_window(std::int64_t window, std::span<TokenId> tokens, std::span<TokenId> targets) const = 0;

  /// What it was made of, for a rank without the files; empty for data without files. Of each file its part, the
  /// one that is for validation alone last.
  virtual std::vector<TokenPart> parts() const { return {}; }
};

struct DatasetOptions {
  const Tokenizer* tokenizer = nullptr;  // needed for text; token files are compared with it. Borrowed while opening
  int vocab = 0;                         // of the model; 0: the tokenizer's, or the token file's
  int seq = 0;                           // tokens
  int global_batch = 1;                  // sequences of a step
  /// Files that are open already, by the names that the configuration has for them. Borrowed while opening; their bytes
  /// outlive the dataset.
  const std::map<std::string, TokenFile>* opened = nullptr;
  /// Bytes of text that have become tokens, of all.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
};

/// Opens config.files: text (UTF-8), which becomes tokens in memory, files one after another with the token that ends a
/// text between them; or packed tokens (docs/formats/tokens.md), mapped. Or one of
///   synthetic:random  tokens that nothing predicts: what is learned from it is an error of the program
///   synthetic:markov  a chain in which every token has four successors with chances 1/2, 1/4, 1/8, 1/8
/// with 4,096 tokens of their own to validate on, whatever share is asked for; none where that is 0.
/// Errors: kInvalidArgument (no files, seq below 1, a corpus that is shorter than one step, text without a tokenizer, a
/// vocabulary that is not the model's; each names both numbers), those of MappedFile, Tokenizer::encode and TokenFile.
Result<std::unique_ptr<Dataset>> open_dataset(const DataConfig& config, const DatasetOptions& options);

}  // namespace butterfly
