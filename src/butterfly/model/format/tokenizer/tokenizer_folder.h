// The tokenizer of a directory, or of one file, whatever form it has. Plain functions, thread-safe.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// Of tokenizer.json, tokenizer.model (SentencePiece or tiktoken), *.tiktoken, vocab.json with merges.txt, and
/// vocab.txt the first that is there, with the tokenizer_config.json beside it; no tokenizer where none is. Errors:
/// those of the readers, with the file's name; kIo and kUnsupported for one that cannot be read or is beyond 256 MiB.
Result<Vocabulary> read_tokenizer_folder(const std::string& directory);

/// Whether the directory has any of them.
bool has_tokenizer(const std::string& directory);

/// One of these files by its path; what it is says its content.
Result<Vocabulary> read_tokenizer_file(const std::string& path);

}  // namespace butterfly
