#include "butterfly/generator.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>

#include "butterfly/base/units.h"
#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/request/generate.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

struct Generator::State {
  Checkpoint checkpoint;  // before what reads from it
  Tokenizer tokenizer;
  std::unique_ptr<Deployment> deployment;
  std::mutex mutex;  // a pipeline has one user at a time
};

Generator::Generator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;
Generator::~Generator() = default;

Result<Generator> Generator::load(const std::string& model, const GeneratorOptions& options) {
  if (options.threads < 0 || options.nodes < 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} threads on each of {} nodes", options.threads, options.nodes);
  }
  DeploymentOptions deployment;
  deployment.threads = options.threads;
  if (options.threads == 0) {
    BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
    deployment.threads = std::max(1, topology.usable_threads / options.nodes);
  }
  deployment.nodes = options.nodes;
  deployment.workers = options.workers;
  deployment.split = options.split;
  deployment.progress = options.progress;
  BF_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(model));
  BF_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::create(checkpoint.vocabulary));
  auto state = std::unique_ptr<State>(new State{std::move(checkpoint), std::move(tokenizer), nullptr, {}});
  BF_ASSIGN_OR_RETURN(state->deployment, Deployment::create(state->checkpoint, deployment));
  return Generator(std::move(state));
}

Result<GeneratedText> Generator::generate(std::string_view prompt, const TextOptions& options,
                                          const std::function<void(std::string_view)>& on_text, std::stop_token stop) {
  Request request;
  BF_ASSIGN_OR_RETURN(request.prompt, encode_prompt(state_->tokenizer, prompt));
  request.tokens_max = options.tokens_max;
  request.sampling = {.temperature = options.temperature,
                      .top_k = options.top_k,
                      .top_p = options.top_p,
                      .min_p = options.min_p,
                      .repeat_penalty = options.repeat_penalty,
                      .seed = options.seed};
  request.stops = options.stops;
  request.ignore_end = options.ignore_end;
  const TextSink sink = [&](std::size_t, std::string_view text) {
    if (on_text) on_text(text);
  };
  const std::lock_guard lock(state_->mutex);
  const std::uint64_t wire_before = state_->deployment->wire_bytes();
  BF_ASSIGN_OR_RETURN(std::vector<Generation> generations,
                      butterfly::generate(state_->deployment->pipeline(), state_->tokenizer, std::span(&request, 1),
                                          {.context = state_->checkpoint.config.context}, sink, std::move(stop)));
  Generation& generation = generations[0];
  GeneratedText result{.text = std::move(generation.text),
                       .tokens = {},
                       .finish = to_string(generation.reason),
                       .first_token_s = generation.first_token_s,
                       .total_s = generation.total_s,
                       .wire_bytes = state_->deployment->wire_bytes() - wire_before};
  for (TokenId token : generation.tokens) result.tokens.push_back(token.value);
  return result;
}

Result<std::vector<int>> Generator::tokenize(std::string_view text) const {
  BF_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, encode_prompt(state_->tokenizer, text));
  std::vector<int> ids;
  for (TokenId token : tokens) ids.push_back(token.value);
  return ids;
}

std::string Generator::describe() const {
  std::string text;
  for (const NodeReport& node : state_->deployment->nodes()) {
    text += fmt::format("{}: layers {}-{}{}{}, {}\n", node.name, node.assignment.first_layer,
                        node.assignment.last_layer - 1, node.assignment.embedding ? " + embedding" : "",
                        node.assignment.head ? " + head" : "", format_bytes(node.memory_bytes));
  }
  return text;
}

}  // namespace butterfly
