// The two parts of `butterfly tokenize` that work on whole corpora.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly::app {

/// --train: learns `vocab` tokens from the files and writes a tokenizer.json.
struct TrainTokenizerCommand {
  std::vector<std::string> files;
  int vocab = 4096;
  std::string out;
};
Status train_tokenizer(const TrainTokenizerCommand& command);

/// --pack: the tokens of the files, one after the other, as a file that training maps.
Status pack_tokens(const std::vector<std::string>& files, const Tokenizer& tokenizer, const std::string& out);

}  // namespace butterfly::app
