// The vocabulary that a path names, whatever kind of file it is. Plain function, thread-safe.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// A file of a tokenizer (tokenizer.json, SentencePiece's or tiktoken's tokenizer.model, vocab.json beside merges.txt,
/// BERT's vocab.txt; with the tokenizer_config.json beside it, where there is one), a directory with one, a Hugging
/// Face directory or a GGUF file. Errors: those of read_tokenizer_file() and open_checkpoint().
Result<Vocabulary> open_vocabulary(const std::string& path);

}  // namespace butterfly
