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

/// The model_types of hugging_face_families.cc. `source` names the directory in messages; the generation text may be
/// empty.
/// Errors: kBadData for missing, mistyped and contradicting keys; kUnsupported for other types and for variants that
/// change the arithmetic (other rope scalings and activations, quantisation, experts).
Result<HuggingFaceConfig> read_hugging_face_config(const std::string& config_json, const std::string& generation_json,
                                                   const std::string& source);

}  // namespace butterfly
