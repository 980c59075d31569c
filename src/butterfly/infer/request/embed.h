// Vectors of texts: every token's hidden row, pooled by the model's recipe. Works over any pipeline whose model gives
// hidden rows (ModelConfig::output). A text's vector depends on model, text and recipe alone.
#pragma once

#include "butterfly/infer/request/text_batches.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/embedding_recipe.h"

namespace butterfly {

struct EmbedText {
  std::vector<TokenId> tokens{};
  std::int32_t prompt_tokens = 0;  // at its start, which some recipes leave out of pooling
};

struct EmbedOptions {
  EmbeddingRecipe recipe{};
  bool normalize = true;       // to a length of 1
  int dim = 0;                 // elements that are kept, before the length is made 1; 0: all
  TextBatchOptions batches{};  // kind is set by embed()
};

/// A vector for each text, in their order. Errors: those of run_texts(); kInvalidArgument for a `dim` beyond the
/// vector, a dense layer of another width, or a model that gives logits.
Result<std::vector<std::vector<float>>> embed(Pipeline& pipeline, const ModelConfig& config,
                                              std::span<const EmbedText> texts, const EmbedOptions& options,
                                              std::stop_token stop = {});

}  // namespace butterfly
