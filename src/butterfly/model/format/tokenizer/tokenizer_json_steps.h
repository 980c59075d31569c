// The steps of a tokenizer.json: what happens to a text before and after its model. Plain functions, thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/text/steps/step_options.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// Each takes the value of the root's member of that name, null too. Sequences become their steps. Errors: kUnsupported
/// naming a component that is not known, kBadData for one whose members contradict each other.
Result<std::vector<NormalizerStep>> read_normalizers(const nlohmann::json& normalizer);
Result<std::vector<PreTokenizerStep>> read_pre_tokenizers(const nlohmann::json& pre_tokenizer);
Result<std::vector<DecoderStep>> read_decoders(const nlohmann::json& decoder);

/// Gives a BPE vocabulary with its steps the plainer kind that does the same, where there is one: kByteBpe or
/// kSentencePiece, which other formats know, too.
void simplify_kind(Vocabulary& vocabulary);

/// `text` as an object. Errors: kBadData for anything else, and for nesting that would exhaust a stack; `source` names
/// it.
Result<nlohmann::json> parse_tokenizer_object(const std::string& text, const char* source);

/// The member `key` of an object, or null where `object` is not an object or has no such member.
const nlohmann::json& json_member(const nlohmann::json& object, const char* key);

/// The string under `key`; empty where there is none.
std::string json_string(const nlohmann::json& object, const char* key);

/// Whether `key` is there and true.
bool json_bool(const nlohmann::json& object, const char* key);

/// `fallback` where `key` is not there or no boolean.
bool json_bool_or(const nlohmann::json& object, const char* key, bool fallback);

/// The whole number under `key`, from 0 to `most`; `fallback` where there is none. Errors: kBadData for another.
Result<std::size_t> json_count(const nlohmann::json& object, const char* key, std::size_t fallback, std::size_t most);

}  // namespace butterfly
