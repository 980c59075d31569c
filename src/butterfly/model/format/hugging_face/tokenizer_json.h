// Hugging Face's tokenizer.json (and tokenizer_config.json) as a Vocabulary. Plain function, thread-safe.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// Reads byte-level BPE (ByteLevel, alone or after Split and Digits) and sentencepiece-like BPE (Prepend and Replace
/// normalizers or Metaspace). `tokenizer_config_json` may be empty; it names bos, eos and the chat template.
/// Unicode normalization (NFC) is not applied: texts are expected to be in that form already.
/// Errors: kBadData for what is no JSON or contradicts itself, naming both values; kUnsupported for other models
/// (Unigram, WordPiece, WordLevel), normalizers and pre-tokenizers, named.
Result<Vocabulary> read_tokenizer_json(const std::string& tokenizer_json, const std::string& tokenizer_config_json);

}  // namespace butterfly
