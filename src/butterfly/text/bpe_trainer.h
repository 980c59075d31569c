// Learns a byte-level BPE vocabulary from texts: the merges that Hugging Face's `tokenizers` finds (BpeTrainer with
// ByteLevel), ties included. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "butterfly/base/result.h"
#include "butterfly/text/steps/pattern.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

struct BpeTrainerOptions {
  int vocab = 4096;                           // tokens, the special one and the 256 bytes among them
  std::uint64_t min_count = 1;                // a pair that is rarer is not merged
  std::string end_of_text = "<|endoftext|>";  // id 0: starts and ends texts; not looked for in these
};

class BpeTrainer {
 public:
  /// Errors: kInvalidArgument for a vocabulary that cannot hold the bytes and the special token.
  static Result<BpeTrainer> create(const BpeTrainerOptions& options);

  /// Counts the pre-tokens (GPT-2's pattern) of a text; none goes from one text into the next. Errors: kInvalidArgument
  /// for invalid UTF-8, naming the byte offset.
  Status add(std::string_view text);

  /// Most frequent pair first, of equally frequent ones that of the lowest ids, until the vocabulary is full or nothing
  /// is frequent enough: then it is smaller than asked for. Errors: kInvalidArgument where no text was added.
  Result<Vocabulary> train() const;

 private:
  BpeTrainer(BpeTrainerOptions options, Pattern pattern) : options_(std::move(options)), pattern_(std::move(pattern)) {}

  BpeTrainerOptions options_;
  Pattern pattern_;
  std::unordered_map<std::string, std::uint64_t> counts_;  // of pre-tokens
};

}  // namespace butterfly
