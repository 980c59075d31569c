// SentencePiece's tokenizer.model as a Vocabulary. Plain functions, thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// Whether `bytes` may be a SentencePiece model: it begins with a first piece. Files of tiktoken have the same name.
bool looks_like_sentencepiece(std::string_view bytes);

/// BPE, Unigram, characters and words. `tokenizer_config_json` may be empty; it says whether texts start with bos, and
/// has the chat template. Errors: kBadData for what is no such file or contradicts itself, naming both values.
Result<Vocabulary> read_sentencepiece_model(std::string_view bytes, const std::string& tokenizer_config_json);

/// What a tokenizer_config.json adds to a vocabulary whose own file does not know it: added tokens, bos, eos, the chat
/// template. Errors: kBadData for what is no JSON object, and for ids that contradict the vocabulary.
Status apply_tokenizer_config(const std::string& tokenizer_config_json, Vocabulary& vocabulary);

}  // namespace butterfly
