// Tokens of one text on their way to a reader: whole characters only, and nothing of a stop string.
// One per text; not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

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
  std::string release();

  StreamingDetokenizer detokenizer_;
  const Tokenizer* tokenizer_;
  std::vector<std::string> stops_;
  std::vector<TokenId> shown_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace butterfly
