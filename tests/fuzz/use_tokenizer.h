// What every fuzzer of tokenizers does with a vocabulary that was read: texts become ids of the vocabulary, ids become
// UTF-8.
#pragma once

#include <string>
#include <utility>

#include "butterfly/text/tokenizer.h"
#include "butterfly/text/utf8.h"

namespace butterfly::fuzz {

inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

inline void use_tokenizer(Result<Vocabulary> vocabulary) {
  if (!vocabulary) {
    require(!vocabulary.error().message.empty());
    return;
  }
  const int vocab = vocabulary->size();
  const auto tokenizer = Tokenizer::create(std::move(*vocabulary));
  if (!tokenizer) return;
  for (const char* text : {"", " ", "aab ab<tool> b\n\n 12345 <|end|><unk>", "\u00e9c\u4f60 \U0001F642ccc",
                           "e\u0301 A\u030a\ufb01\u2581\u3000 don't ##b 1,234.5 \u0130"}) {
    const auto ids = tokenizer->encode(text, {.add_eos = true});
    if (!ids) continue;
    for (TokenId id : *ids) require(id.value >= 0 && id.value < vocab);
    (void)tokenizer->decode(*ids);
    StreamingDetokenizer detokenizer(*tokenizer);
    std::string streamed;
    for (TokenId id : *ids) streamed += detokenizer.push(id);
    streamed += detokenizer.finish();
    require(!find_invalid_utf8(streamed));
  }
}

}  // namespace butterfly::fuzz
