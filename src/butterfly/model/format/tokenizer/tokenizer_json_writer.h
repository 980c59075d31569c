// A Vocabulary as Hugging Face's tokenizer.json, for `tokenizers` and for read_tokenizer_json(). Plain function,
// thread-safe.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// Byte-level BPE with one of the published patterns or its own. Errors: kUnsupported for another kind of vocabulary
/// and for what tokenizer.json would say in another way (a space prefix with patterns of its own).
Result<std::string> write_tokenizer_json(const Vocabulary& vocabulary);

}  // namespace butterfly
