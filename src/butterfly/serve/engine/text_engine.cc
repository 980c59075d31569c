#include "butterfly/serve/engine/text_engine.h"

#include <algorithm>

#include "butterfly/base/json.h"
#include "butterfly/base/text/one_line.h"

namespace butterfly {
namespace {

Constraint to_constraint(const TextConstraint& wish) {
  switch (wish.kind) {
    case TextConstraint::Kind::kJsonObject:
      return {.kind = Constraint::Kind::kJsonObject};
    case TextConstraint::Kind::kJsonSchema:
      return {.kind = Constraint::Kind::kJsonSchema, .source = dump_json(wish.schema)};
    case TextConstraint::Kind::kRegex:
      return {.kind = Constraint::Kind::kRegex, .source = wish.text};
    case TextConstraint::Kind::kGrammar:
      return {.kind = Constraint::Kind::kGbnf, .source = wish.text};
    case TextConstraint::Kind::kNone:
      break;
  }
  return {};
}

/// References within a schema that becomes part of another one, at `place`.
void move_references(ApiJson& schema, const std::string& place) {
  if (schema.is_array()) {
    for (ApiJson& each : schema) move_references(each, place);
  }
  if (!schema.is_object()) return;
  for (auto& [name, value] : schema.items()) {
    if (name == "$ref" && value.is_string() && value.get_ref<const std::string&>().starts_with("#")) {
      value = "#" + place + value.get_ref<const std::string&>().substr(1);
    } else {
      move_references(value, place);
    }
  }
}

/// What an answer is that has to be a call: the arguments of the function that is named, or a list of objects with
/// names and arguments.
Constraint call_constraint(const GenerationBody& body) {
  ApiJson any = ApiJson::array();
  for (std::size_t i = 0; i < body.tools.size(); ++i) {
    const ApiJson& function = body.tools[i]["function"];
    if (function["name"] == body.tool_choice.name) {
      return {.kind = Constraint::Kind::kJsonSchema, .source = dump_json(function["parameters"])};
    }
    ApiJson parameters = function["parameters"];
    move_references(parameters, fmt::format("/items/anyOf/{}/properties/arguments", i));
    any.push_back({{"type", "object"},
                   {"properties", {{"name", {{"const", function["name"]}}}, {"arguments", std::move(parameters)}}},
                   {"required", ApiJson::array({"name", "arguments"})},
                   {"additionalProperties", false}});
  }
  constexpr int kCallsMax = 16;
  const ApiJson list = {{"type", "array"},
                        {"items", {{"anyOf", std::move(any)}}},
                        {"minItems", 1},
                        {"maxItems", body.parallel_tool_calls ? kCallsMax : 1}};
  return {.kind = Constraint::Kind::kJsonSchema, .source = dump_json(list)};
}

std::vector<ModelReplica> replicas_of(const std::vector<Deployment*>& deployments, const TextEngineOptions& options) {
  std::vector<ModelReplica> replicas;
  for (Deployment* deployment : deployments) {
    ModelReplica replica{.pipeline = &deployment->pipeline(), .options = options.scheduler};
    if (!options.drafters.empty()) replica.options.drafter = options.drafters[replicas.size()];
    replicas.push_back(std::move(replica));
  }
  return replicas;
}

}  // namespace

TextEngine::TextEngine(const Checkpoint& checkpoint, std::vector<Deployment*> deployments, const Tokenizer& tokenizer,
                       TextEngineOptions options)
    : checkpoint_(checkpoint),
      deployments_(std::move(deployments)),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      constraints_(TokenTrie::create(tokenizer)),
      noted_(deployments_.size()),
      scheduler_(replicas_of(deployments_, options_), tokenizer,
                 [this](std::size_t replica) { note_cluster(replica); }) {
  for (std::size_t i = 0; i < deployments_.size(); ++i) note_cluster(i);
}

ApiJson TextEngine::cluster() const {
  const std::lock_guard lock(cluster_mutex_);
  ApiJson json = {{"split", noted_[0].split},
                  {"replicas", ApiJson::array()},
                  {"nodes", ApiJson::array()},
                  {"epochs", ApiJson::array()}};
  for (std::size_t i = 0; i < noted_.size(); ++i) {
    json["replicas"].push_back({{"replica", i}, {"up", scheduler_.is_up(i)}});
    for (const ApiJson& node : noted_[i].nodes) json["nodes"].push_back(node);
    for (const ApiJson& epoch : noted_[i].epochs) json["epochs"].push_back(epoch);
  }
  return json;
}

void TextEngine::note_cluster(std::size_t replica) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(cluster_mutex_);
  Noted& noted = noted_[replica];
  const Deployment& deployment = *deployments_[replica];
  const std::vector<EpochReport> epochs = deployment.epochs();
  const bool same = !noted.split.empty() && noted.epochs.size() == epochs.size();
  if (same && now - noted.since < std::chrono::seconds(1)) return;
  noted = {.split = deployment.plan().strategy, .since = now};
  for (const NodeReport& node : deployment.nodes()) {
    noted.nodes.push_back({{"name", node.name},
                           {"replica", replica},
                           {"first_layer", node.assignment.first_layer},
                           {"last_layer", node.assignment.last_layer - 1},
                           {"embedding", node.assignment.embedding},
                           {"head", node.assignment.head},
                           {"first_slice", node.assignment.slices.first},
                           {"last_slice", node.assignment.slices.last - 1},
                           {"memory_bytes", node.memory_bytes},
                           {"busy_s", node.busy_s}});
  }
  for (const EpochReport& epoch : epochs) {
    noted.epochs.push_back({{"epoch", epoch.epoch},
                            {"replica", replica},
                            {"workers", epoch.workers},
                            {"cause", one_line(epoch.cause)},
                            {"ready_s", epoch.ready_s},
                            {"weight_bytes", epoch.weight_bytes}});
  }
}

bool TextEngine::set_up(std::size_t replica, bool up) {
  scheduler_.set_up(replica, up);
  return scheduler_.any_up();
}

int TextEngine::context() const {
  const std::int64_t cache = options_.scheduler.cache_tokens;
  const int context = options_.scheduler.context;
  return cache > 0 ? static_cast<int>(std::min<std::int64_t>(cache, context)) : context;
}

Request TextEngine::standard_request(const GenerationBody& body, std::uint64_t seed) const {
  Request request = options_.standard;
  SamplingOptions& sampling = request.sampling;
  const SamplingWishes& wishes = body.sampling;
  sampling.temperature = wishes.temperature.value_or(sampling.temperature);
  sampling.top_p = wishes.top_p.value_or(sampling.top_p);
  sampling.min_p = wishes.min_p.value_or(sampling.min_p);
  sampling.top_k = wishes.top_k.value_or(sampling.top_k);
  sampling.repeat_penalty = wishes.repeat_penalty.value_or(sampling.repeat_penalty);
  sampling.presence_penalty = wishes.presence_penalty.value_or(sampling.presence_penalty);
  sampling.frequency_penalty = wishes.frequency_penalty.value_or(sampling.frequency_penalty);
  for (const auto& [token, value] : wishes.logit_bias) sampling.logit_bias.push_back({token, value});
  sampling.logprobs = wishes.logprobs;
  sampling.seed = seed;
  if (body.echo && (wishes.logprobs >= 0 || body.tokens_max == 0)) {
    request.prompt_logprobs = std::max(0, wishes.logprobs);
  }
  request.stops = body.stops;
  request.stop_tokens = body.stop_tokens;
  request.ignore_end = body.ignore_end;
  return request;
}

std::optional<ApiError> TextEngine::prepare_chat(const GenerationBody& body, std::int64_t now,
                                                 PreparedText& prepared) const {
  if (!options_.chat) return ApiError{.message = options_.no_chat, .param = "messages", .code = "no_chat_template"};
  ChatInput input;
  input.messages = body.messages;
  const bool knows_developers = options_.chat->template_text().find("developer") != std::string::npos;
  for (ApiJson& message : input.messages) {
    if (message["role"] == "developer" && !knows_developers) message["role"] = "system";
  }
  if (body.tool_choice.kind != ToolChoice::Kind::kNone) input.tools = body.tools;
  input.documents = body.documents;
  if (body.template_variables.is_object()) input.variables = body.template_variables;
  input.now = static_cast<std::time_t>(now);
  auto prompt = options_.chat->prompt(tokenizer_, std::move(input));
  if (!prompt) {
    ApiError error = to_api_error(prompt.error());
    error.param = "messages";
    return error;
  }
  prepared.answer = prompt->answer;
  Request request;
  request.prompt = std::move(prompt->tokens);
  request.shown = std::move(prompt->shown);
  prepared.prompts.push_back(std::move(request));
  prepared.texts.emplace_back();
  return std::nullopt;
}

std::optional<ApiError> TextEngine::prepare_prompts(const GenerationBody& body, PreparedText& prepared) const {
  const int vocabulary = tokenizer_.vocabulary().size();
  for (const auto& prompt : body.prompts) {
    Request request;
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      const Status status = set_prompt(tokenizer_, checkpoint_.config, *text, request);
      if (!status) {
        ApiError error = to_api_error(status.error());
        error.param = "prompt";
        return error;
      }
      prepared.texts.push_back(*text);
    } else {
      request.prompt = std::get<std::vector<TokenId>>(prompt);
      for (const TokenId token : request.prompt) {
        if (token.value < vocabulary) continue;
        return ApiError{.message = fmt::format("prompt has the token id {}, the model's vocabulary has {} tokens",
                                               token.value, vocabulary),
                        .param = "prompt",
                        .code = "invalid_value"};
      }
      prepared.texts.push_back(tokenizer_.decode(request.prompt));
    }
    prepared.prompts.push_back(std::move(request));
  }
  return std::nullopt;
}

std::optional<ApiError> TextEngine::constrain(const GenerationBody& body, Request& request,
                                              AnswerOptions& answer) const {
  const bool forced = body.tool_choice.is_forced();
  const Constraint constraint = forced ? call_constraint(body) : to_constraint(body.constraint);
  if (constraint.none()) return std::nullopt;
  auto automaton = constraints_.find(constraint);
  if (!automaton) {
    ApiError error = to_api_error(automaton.error());
    error.param = forced ? "tools" : body.constraint.param;
    error.code = "invalid_value";
    return error;
  }
  request.grammar = std::move(*automaton);
  // Reasoning that the prompt opened goes first. What follows has this form: nothing in it is a call by the model's
  // tags.
  if (answer.reasoning != nullptr) request.grammar_after = answer.reasoning->close;
  answer.tools = false;
  return std::nullopt;
}

std::optional<ApiError> TextEngine::prepare(const GenerationBody& body, std::uint64_t seed, std::int64_t now,
                                            PreparedText& prepared) const {
  std::optional<ApiError> error =
      body.endpoint == Endpoint::kCompletion ? prepare_prompts(body, prepared) : prepare_chat(body, now, prepared);
  if (error) return error;
  Request standard = standard_request(body, seed);
  error = constrain(body, standard, prepared.answer);
  if (error) return error;
  for (Request& prompt : prepared.prompts) {
    Request request = standard;
    request.prompt = std::move(prompt.prompt);
    request.encoded = std::move(prompt.encoded);
    request.shown = std::move(prompt.shown);
    const auto length = static_cast<std::int64_t>(request.prompt.size());
    const std::int64_t room = context() - length;
    if (room < 1 || static_cast<std::int64_t>(request.encoded.size()) > context()) {
      return ApiError{.message = fmt::format("the prompt has {} tokens, the context of {} has room for 1 to {}",
                                             std::max<std::size_t>(request.prompt.size(), request.encoded.size()),
                                             context(), context() - 1),
                      .param = body.endpoint == Endpoint::kCompletion ? "prompt" : "messages",
                      .code = "context_length_exceeded"};
    }
    request.tokens_max = static_cast<int>(std::min<std::int64_t>(body.tokens_max.value_or(context()), room));
    prompt = std::move(request);
  }
  return std::nullopt;
}

Result<ReplicatedScheduler::Id> TextEngine::submit(Submission submission, RequestObserver observer) {
  return scheduler_.submit(std::move(submission), std::move(observer));
}

}  // namespace butterfly
