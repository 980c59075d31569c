// What happens to a text before its tokens are looked up, out of a tokenizer.json: normalizer and pre-tokenizer.
// Plain functions, thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// Sets kind, pre-tokenizer and space prefix of `vocabulary`. Errors: kUnsupported naming the step.
Status read_tokenizer_pipeline(const nlohmann::json& root, Vocabulary& vocabulary);

/// The member `key` of an object, or null where `object` is not an object or has no such member.
const nlohmann::json& json_member(const nlohmann::json& object, const char* key);

/// The string under `key`; empty where there is none.
std::string json_string(const nlohmann::json& object, const char* key);

/// Whether `key` is there and true.
bool json_bool(const nlohmann::json& object, const char* key);

}  // namespace butterfly
