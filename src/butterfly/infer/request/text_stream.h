// Tokens of one text on their way to a reader: whole characters only, and nothing of a stop string.
// One per text; not thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

/// Where the first of several strings ends in a text, whose bytes come one by one. Takes time for each byte and string
/// alone, however long the strings are (Knuth, Morris and Pratt).
class StopStrings {
 public:
  /// Empty ones never end.
  explicit StopStrings(std::vector<std::string> stops);

  /// Bytes of the longest string that ends with this byte; 0: none does.
  std::size_t push(char byte);

  /// Bytes at the end of the text that may be the beginning of a string.
  std::size_t begun() const;

 private:
  struct Stop {
    std::string text{};
    std::vector<std::size_t> borders{};  // of each beginning: its longest proper end that is a beginning, too
    std::size_t matched = 0;
  };
  std::vector<Stop> stops_;
};

class TextStream {
 public:
  /// `shown`: control tokens whose names are part of the text.
  TextStream(const Tokenizer& tokenizer, const StreamingDetokenizer::Options& options, std::vector<std::string> stops,
             std::vector<TokenId> shown = {});

  /// Text that is ready after `token`. Once a stop string has appeared, stopped() and nothing more comes.
  std::string push(TokenId token);

  /// What was held back, at the end of a text that did not stop.
  std::string finish();

  bool stopped() const { return stopped_; }

 private:
  std::string release(std::string_view text);

  StreamingDetokenizer detokenizer_;
  const Tokenizer* tokenizer_;
  StopStrings stops_;
  std::vector<TokenId> shown_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace butterfly
