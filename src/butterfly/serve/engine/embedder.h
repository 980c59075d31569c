// Vectors of texts for clients: requests from any thread, computed one after the other by the thread that calls run().
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/request/embed.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

struct EmbedderOptions {
  std::string name{};
  EmbeddingRecipe recipe{};
  int rows_max = 2048;  // tokens of a step
  std::size_t waiting_max = 64;
};

using EmbedInput = std::variant<std::string, std::vector<TokenId>>;

struct EmbedResult {
  std::vector<std::vector<float>> vectors{};
  std::size_t tokens = 0;
};

class Embedder {
 public:
  /// All outlive the embedder.
  Embedder(const Checkpoint& checkpoint, Deployment& deployment, const Tokenizer& tokenizer, EmbedderOptions options)
      : checkpoint_(checkpoint), deployment_(deployment), tokenizer_(tokenizer), options_(std::move(options)) {}

  const std::string& name() const { return options_.name; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  int tokens_max() const;

  /// `dim`: elements that are kept; 0: all. `done` is called once, by the thread that computes, unless this returns an
  /// error: kInvalidArgument for texts that are too long or empty, kUnavailable where too many requests wait.
  Status submit(const std::vector<EmbedInput>& inputs, int dim, std::function<void(Result<EmbedResult>)> done);

  /// Computes until `stop`.
  Status run(const std::stop_token& stop);

 private:
  struct Task {
    std::vector<EmbedText> texts;
    int dim = 0;
    std::function<void(Result<EmbedResult>)> done;
  };
  Result<std::vector<TokenId>> encode(const EmbedInput& input, const std::string& prompt) const;

  const Checkpoint& checkpoint_;
  Deployment& deployment_;
  const Tokenizer& tokenizer_;
  const EmbedderOptions options_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Task> tasks_;
};

}  // namespace butterfly
