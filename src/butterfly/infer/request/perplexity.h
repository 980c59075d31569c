// How well a model predicts a text: exp of the mean negative log-likelihood per token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>

#include "butterfly/base/result.h"
#include "butterfly/infer/deployment/pipeline.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

struct PerplexityOptions {
  int window = 512;                                                       // tokens per window, its first one included
  TokenId bos{-1};                                                        // put in front of each window where >= 0
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // tokens
};

struct PerplexityResult {
  double perplexity = 0;
  double mean_nll = 0;          // nats per predicted token
  double standard_error = 0;    // of mean_nll
  std::uint64_t predicted = 0;  // tokens
};

/// Cuts `tokens` into consecutive windows; the first token of each is given, all others are predicted.
/// Errors: kInvalidArgument (fewer than 2 tokens), those of the pipeline, kCancelled.
Result<PerplexityResult> perplexity(Pipeline& pipeline, std::span<const TokenId> tokens,
                                    const PerplexityOptions& options, std::stop_token stop = {});

/// What a model loses by another storage of its weights: Kullback-Leibler divergence of its predictions.
struct DivergenceResult {
  double mean = 0;              // nats per predicted token
  double largest = 0;           // of one token
  double same_choice = 0;       // share of tokens for which both find the same token likeliest
  std::uint64_t predicted = 0;  // tokens
};

/// Windows as perplexity() has them; the distributions are those after each token but the last of a window. Both
/// models have the same vocabulary. Errors: as above; kInvalidArgument naming both sizes of vocabulary.
Result<DivergenceResult> divergence(Pipeline& judged, Pipeline& against, std::span<const TokenId> tokens,
                                    const PerplexityOptions& options, std::stop_token stop = {});

}  // namespace butterfly
