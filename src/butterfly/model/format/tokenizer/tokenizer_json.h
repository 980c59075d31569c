// Hugging Face's tokenizer.json (and tokenizer_config.json) as a Vocabulary. Plain function, thread-safe.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// Every model (BPE, WordPiece, Unigram, WordLevel) with every normalizer, pre-tokenizer, decoder and post-processor of
/// Hugging Face's `tokenizers`. `tokenizer_config_json` may be empty; it names bos, eos and the chat template.
/// Truncation and padding are not read: what a text is cut or filled to is the caller's business here. BPE that does
/// the same as kByteBpe or kSentencePiece becomes that kind; of all others `tokenizer_json` is kept. Errors: kBadData
/// for what is no JSON or contradicts itself, naming both values; kUnsupported for dropout and for components that are
/// not known, named.
Result<Vocabulary> read_tokenizer_json(const std::string& tokenizer_json, const std::string& tokenizer_config_json);

}  // namespace butterfly
