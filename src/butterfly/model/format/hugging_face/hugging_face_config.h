// config.json and generation_config.json of a Hugging Face directory as a ModelConfig and the tokens that end a text.
// Plain functions over texts, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"

namespace butterfly {

struct HuggingFaceConfig {
  ModelConfig model;  // weight_type is left to the weights
  std::vector<TokenId> end_tokens;
  TokenId bos{-1};
};

/// model_type llama, mistral, qwen2, gpt2. `source` names the directory in messages; an empty generation text counts as
/// absent. Errors: kBadData for missing, mistyped and contradicting keys; kUnsupported for other types and for variants
/// that change the arithmetic (sliding windows, partial or other rope scaling, quantisation, exact GELU).
Result<HuggingFaceConfig> read_hugging_face_config(const std::string& config_json, const std::string& generation_json,
                                                   const std::string& source);

}  // namespace butterfly
