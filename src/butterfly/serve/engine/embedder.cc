#include "butterfly/serve/engine/embedder.h"

#include <algorithm>

namespace butterfly {

int Embedder::tokens_max() const {
  const int context = checkpoint_.config.context;
  return options_.recipe.tokens_max > 0 ? std::min(options_.recipe.tokens_max, context) : context;
}

Result<std::vector<TokenId>> Embedder::encode(const EmbedInput& input, const std::string& prompt) const {
  std::vector<TokenId> tokens;
  if (const auto* text = std::get_if<std::string>(&input)) {
    BF_ASSIGN_OR_RETURN(tokens, tokenizer_.encode(prompt + *text, {.add_eos = true}));
  } else {
    tokens = std::get<std::vector<TokenId>>(input);
    for (const TokenId token : tokens) {
      if (token.value < tokenizer_.vocabulary().size()) continue;
      return make_error(ErrorCode::kInvalidArgument, "input has the token id {}, the vocabulary has {} tokens",
                        token.value, tokenizer_.vocabulary().size());
    }
  }
  if (tokens.empty()) return make_error(ErrorCode::kInvalidArgument, "a text of input is empty");
  if (static_cast<std::int64_t>(tokens.size()) > tokens_max()) {
    return make_error(ErrorCode::kInvalidArgument, "a text of input has {} tokens, the model reads at most {}",
                      tokens.size(), tokens_max());
  }
  return tokens;
}

Status Embedder::submit(const std::vector<EmbedInput>& inputs, int dim, std::function<void(Result<EmbedResult>)> done) {
  Task task{.texts = {}, .dim = dim, .done = std::move(done)};
  std::string prompt;
  std::int32_t prompt_tokens = 0;
  const auto found = options_.recipe.prompts.find(options_.recipe.default_prompt);
  if (!options_.recipe.default_prompt.empty() && found != options_.recipe.prompts.end()) {
    prompt = found->second;
    BF_ASSIGN_OR_RETURN(const auto ids, tokenizer_.encode(prompt));
    prompt_tokens = static_cast<std::int32_t>(ids.size());
  }
  for (const EmbedInput& input : inputs) {
    BF_ASSIGN_OR_RETURN(auto tokens, encode(input, prompt));
    const bool is_text = std::holds_alternative<std::string>(input);
    task.texts.push_back({std::move(tokens), is_text ? prompt_tokens : 0});
  }
  const std::lock_guard lock(mutex_);
  if (tasks_.size() >= options_.waiting_max) {
    return make_error(ErrorCode::kUnavailable, "{} requests wait already, no more than {} may", tasks_.size(),
                      options_.waiting_max);
  }
  tasks_.push_back(std::move(task));
  changed_.notify_one();
  return {};
}

Status Embedder::run(const std::stop_token& stop) {
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !tasks_.empty(); })) return {};
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    EmbedOptions options{.recipe = options_.recipe, .dim = task.dim, .batches = {.rows_max = options_.rows_max}};
    EmbedResult result;
    for (const EmbedText& text : task.texts) result.tokens += text.tokens.size();
    auto vectors = embed(deployment_.pipeline(), checkpoint_.config, task.texts, options, stop);
    if (!vectors) {
      task.done(tl::unexpected(vectors.error()));
      continue;
    }
    result.vectors = std::move(*vectors);
    task.done(std::move(result));
  }
}

}  // namespace butterfly
