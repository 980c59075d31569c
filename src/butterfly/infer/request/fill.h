// The likeliest tokens in the place of mask tokens, by an encoder with a masked-LM head.
#pragma once

#include "butterfly/infer/request/text_batches.h"
#include "butterfly/model/core/config.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

struct FillChoice {
  TokenId token;
  float probability = 0;
};

/// A mask token of a text.
struct FilledMask {
  std::size_t position = 0;           // in the text's tokens
  std::vector<FillChoice> choices{};  // likeliest first; of equals the lowest id
};

/// The token that stands for a hidden one: [MASK] or <mask>. Errors: kUnsupported where the vocabulary has neither.
Result<TokenId> mask_token(const Vocabulary& vocabulary);

struct FillOptions {
  TokenId mask{-1};
  int choices = 5;  // for each mask
  TextBatchOptions batches{};
};

/// The masks of each text. Errors: those of run_texts(); kInvalidArgument for a text without a mask, or a model that is
/// no encoder with such a head.
Result<std::vector<std::vector<FilledMask>>> fill(Pipeline& pipeline, const ModelConfig& config,
                                                  std::span<const std::vector<TokenId>> texts,
                                                  const FillOptions& options, std::stop_token stop = {});

}  // namespace butterfly
