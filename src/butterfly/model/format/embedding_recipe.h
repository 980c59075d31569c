// How a model's hidden rows become one vector for a text: pooling, dense layers, prompts, as sentence-transformers
// directories (https://sbert.net) and GGUF files say it. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"

namespace butterfly {

/// Of a text's rows: their mean, that of the first, that of the last, the largest of each element, their sum over the
/// root of their number, and the mean weighted by the place in the text, from 1.
enum class Pooling : std::uint8_t { kMean, kCls, kLast, kMax, kMeanSqrt, kWeightedMean };
/// "mean", "cls", "last", "max", "mean_sqrt", "weightedmean", or a name of sentence-transformers.
/// Errors: kInvalidArgument listing the names.
Result<Pooling> parse_pooling(std::string_view name);
std::string_view to_string(Pooling pooling);

/// y = activation(weight * x + bias), after pooling.
struct EmbeddingDense {
  enum class Activation : std::uint8_t { kIdentity, kTanh };
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  std::vector<float> weight{};  // [outputs, inputs]
  std::vector<float> bias{};    // empty: none
  Activation activation = Activation::kIdentity;
};

struct EmbeddingRecipe {
  std::vector<Pooling> poolings{};  // their vectors are joined; not empty
  bool pool_prompt = true;          // the prompt's tokens count
  std::vector<EmbeddingDense> dense{};
  int tokens_max = 0;                            // longer texts are cut; 0: the model's context
  std::map<std::string, std::string> prompts{};  // by name, put in front of texts
  std::string default_prompt{};                  // a name; empty: none
};

/// What the files beside the model say; where they say nothing, the mean for encoders and the last row for others.
/// Errors: kBadData, kUnsupported naming the module or key.
Result<EmbeddingRecipe> read_embedding_recipe(const Checkpoint& checkpoint);

}  // namespace butterfly
