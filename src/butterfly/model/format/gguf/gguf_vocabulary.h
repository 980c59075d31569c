// The tokenizer.ggml.* metadata of a GGUF file as a Vocabulary. Plain functions, thread-safe.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/format/gguf/gguf.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// A file without tokenizer gives TokenizerKind::kNone. Errors: kBadData for lists of different lengths, mistyped keys
/// and ids outside the vocabulary; kUnsupported for other tokenizers and pre-tokenizers, named.
Result<Vocabulary> read_gguf_vocabulary(const GgufFile& file);

/// The name under which llama.cpp knows a pre-tokenizer; "default" for patterns it has no name for.
std::string gguf_pre_tokenizer_name(const Vocabulary& vocabulary);

}  // namespace butterfly
