#include "butterfly/serve/protocol/generation_body.h"

#include <charconv>

#include "butterfly/base/json.h"
#include "butterfly/base/text/one_line.h"

namespace butterfly {
namespace {

constexpr double kTokensMax = 1 << 24;
constexpr std::size_t kStopsMax = 16;
constexpr std::size_t kStopBytesMax = 1024;
constexpr std::size_t kBiasesMax = 10'000;

std::optional<TokenId> token_of(std::string_view text) {
  std::int32_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc{} || end != text.data() + text.size() || id < 0) return std::nullopt;
  return TokenId(id);
}

std::optional<TokenId> token_of(const ApiJson& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const double number = value.get<double>();
  if (number < 0 || number > std::numeric_limits<std::int32_t>::max()) return std::nullopt;
  return TokenId(value.get<std::int32_t>());
}

void read_bias(JsonFields& fields, SamplingWishes& sampling) {
  const ApiJson* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > kBiasesMax) {
    return fields.fail("logit_bias",
                       fmt::format("logit_bias has {} tokens, at most {} are taken", bias->size(), kBiasesMax));
  }
  for (const auto& [name, value] : bias->items()) {
    const auto token = token_of(std::string_view(name));
    const double number = value.is_number() ? value.get<double>() : 1e9;
    if (!token || number < -100 || number > 100) {
      return fields.fail("logit_bias",
                         fmt::format("logit_bias has \"{}\": {}, expected a token's id and a number from "
                                     "-100 to 100",
                                     one_line(name.substr(0, 40)), one_line(dump_json(value).substr(0, 40))));
    }
    sampling.logit_bias.emplace_back(*token, static_cast<float>(number));
  }
}

template <typename T>
void read_wish(JsonFields& fields, const char* name, std::optional<T>& wish, const NumberRange& range) {
  if constexpr (std::is_same_v<T, float>) {
    float value = 0;
    if (fields.read(name, value, range)) wish = value;
  } else {
    std::int64_t value = 0;
    if (fields.read(name, value, range)) wish = static_cast<T>(value);
  }
}

void read_constraint(JsonFields& fields, GenerationBody& body) {
  TextConstraint& constraint = body.constraint;
  for (const auto& [name, kind] :
       {std::pair("guided_regex", TextConstraint::Kind::kRegex), std::pair("grammar", TextConstraint::Kind::kGrammar),
        std::pair("guided_grammar", TextConstraint::Kind::kGrammar)}) {
    std::string text;
    if (!fields.read(name, text) || text.empty()) continue;
    if (constraint.kind != TextConstraint::Kind::kNone) {
      return fields.fail(name, fmt::format("{} and {} both say what the text must be", constraint.param, name));
    }
    constraint = {.kind = kind, .text = std::move(text), .param = name};
  }
  const ApiJson* guided = fields.find("guided_json");
  if (guided != nullptr) {
    const std::string text = guided->is_string() ? guided->get<std::string>() : "";
    const bool as_text = !text.empty() && is_nested_within(text, kJsonDepthMax);
    constraint = {.kind = TextConstraint::Kind::kJsonSchema,
                  .schema = as_text ? parse_ordered_json(text) : *guided,
                  .param = "guided_json"};
    if (constraint.schema.is_discarded()) return fields.fail("guided_json", "guided_json is a text that is no JSON");
  }
  const ApiJson* format = fields.object("response_format");
  if (format == nullptr) return;
  std::optional<ApiError> error;
  JsonFields inner(*format, "response_format", error);
  const std::string type = inner.required("type");
  if (type == "json_object") {
    constraint = {.kind = TextConstraint::Kind::kJsonObject};
    inner.ignore({"schema"});
  } else if (type == "json_schema") {
    const ApiJson* about = inner.object("json_schema");
    const ApiJson* schema = about != nullptr && about->contains("schema") ? &(*about)["schema"] : nullptr;
    if (inner.ok() && (schema == nullptr || !(schema->is_object() || schema->is_boolean()))) {
      inner.fail("json_schema", "response_format.json_schema has no schema that is an object",
                 "missing_required_parameter");
    }
    if (inner.ok()) constraint = {.kind = TextConstraint::Kind::kJsonSchema, .schema = *schema};
  } else if (inner.ok() && type != "text") {
    inner.fail("type", fmt::format("response_format.type is \"{}\", expected text, json_object or json_schema",
                                   one_line(type.substr(0, 40))));
  }
  constraint.param = "response_format";
  inner.finish();
  if (error) fields.fail("response_format", error->message, error->code.c_str());
}

void read_prompts(JsonFields& fields, GenerationBody& body) {
  const ApiJson* prompt = fields.find("prompt");
  if (prompt == nullptr) return fields.fail("prompt", "prompt is missing", "missing_required_parameter");
  const auto tokens_of = [](const ApiJson& list) -> std::optional<std::vector<TokenId>> {
    std::vector<TokenId> tokens;
    for (const ApiJson& each : list) {
      const auto token = token_of(each);
      if (!token) return std::nullopt;
      tokens.push_back(*token);
    }
    return tokens;
  };
  const char* const wanted =
      "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids";
  if (prompt->is_string()) {
    body.prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array()) return fields.fail("prompt", wanted, "invalid_type");
  if (prompt->empty()) return fields.fail("prompt", "prompt is an empty list, at least one prompt is needed");
  if (prompt->front().is_number()) {
    auto tokens = tokens_of(*prompt);
    if (!tokens) return fields.fail("prompt", wanted, "invalid_type");
    body.prompts.emplace_back(std::move(*tokens));
    return;
  }
  if (prompt->size() > static_cast<std::size_t>(kSamplesMax)) {
    return fields.fail("prompt", fmt::format("prompt has {} texts, at most {} are taken", prompt->size(), kSamplesMax));
  }
  for (const ApiJson& each : *prompt) {
    if (each.is_string()) {
      body.prompts.emplace_back(each.get<std::string>());
      continue;
    }
    auto tokens = each.is_array() ? tokens_of(each) : std::nullopt;
    if (!tokens || tokens->empty()) return fields.fail("prompt", wanted, "invalid_type");
    body.prompts.emplace_back(std::move(*tokens));
  }
}

/// Known, and without a meaning here.
void ignore_harmless(JsonFields& fields) {
  fields.ignore({"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
                 "prompt_cache_retention", "verbosity", "cache_prompt", "add_special_tokens", "skip_special_tokens",
                 "return_token_ids", "prediction", "stream_options"});
}

}  // namespace

void read_sampling(JsonFields& fields, GenerationBody& body) {
  SamplingWishes& sampling = body.sampling;
  fields.read("model", body.model);
  fields.read("stream", body.stream);
  read_wish(fields, "temperature", sampling.temperature, {0, 2});
  read_wish(fields, "top_p", sampling.top_p, {0, 1});
  read_wish(fields, "min_p", sampling.min_p, {0, 1});
  read_wish(fields, "top_k", sampling.top_k, {-1, kTokensMax});
  if (sampling.top_k && *sampling.top_k < 0) sampling.top_k = 0;
  read_wish(fields, "presence_penalty", sampling.presence_penalty, {-2, 2});
  read_wish(fields, "frequency_penalty", sampling.frequency_penalty, {-2, 2});
  read_wish(fields, "repetition_penalty", sampling.repeat_penalty, {0.01, 100});
  read_wish(fields, "repeat_penalty", sampling.repeat_penalty, {0.01, 100});
  read_wish(fields, "seed", sampling.seed, {-9.2e18, 9.2e18});
  read_bias(fields, sampling);
  read_wish(fields, "max_tokens", body.tokens_max, {0, kTokensMax});
  std::int64_t samples = 1;
  if (fields.read("n", samples, {1, kSamplesMax})) body.samples = static_cast<int>(samples);
  fields.read("stop", body.stops, kStopsMax);
  for (const std::string& stop : body.stops) {
    if (stop.empty() || stop.size() > kStopBytesMax) {
      fields.fail("stop", fmt::format("stop has a string of {} bytes, expected 1 to {}", stop.size(), kStopBytesMax));
    }
  }
  if (const ApiJson* tokens = fields.list("stop_token_ids")) {
    for (const ApiJson& each : *tokens) {
      const auto token = token_of(each);
      if (!token || body.stop_tokens.size() >= kBiasesMax) {
        return fields.fail("stop_token_ids", "stop_token_ids must be a list of token ids", "invalid_type");
      }
      body.stop_tokens.push_back(*token);
    }
  }
  fields.read("ignore_eos", body.ignore_end);
  std::int64_t priority = 0;
  if (fields.read("priority", priority, {-kPriorityMax, kPriorityMax})) body.priority = static_cast<int>(priority);
  if (const ApiJson* options = fields.object("stream_options")) {
    std::optional<ApiError> error;
    JsonFields inner(*options, "stream_options", error);
    inner.read("include_usage", body.include_usage);
    inner.ignore({"include_obfuscation", "continuous_usage_stats"});
    inner.finish();
    if (error) fields.fail("stream_options", error->message, error->code.c_str());
  }
  read_constraint(fields, body);
  ignore_harmless(fields);
}

std::optional<ApiError> read_completion_body(const ApiJson& json, GenerationBody& body) {
  std::optional<ApiError> error;
  JsonFields fields(json, "", error);
  body.endpoint = Endpoint::kCompletion;
  body.tokens_max = 16;  // as the API says
  read_sampling(fields, body);
  read_prompts(fields, body);
  fields.read("echo", body.echo);
  std::int64_t logprobs = -1;
  if (fields.read("logprobs", logprobs, {0, 20})) body.sampling.logprobs = static_cast<int>(logprobs);
  fields.refuse("suffix", "", "the model continues texts, it does not fill in");
  fields.refuse("best_of", body.samples, "ask for n texts and choose");
  fields.finish();
  if (!error && static_cast<int>(body.prompts.size()) * body.samples > kSamplesMax) {
    fields.fail("n", fmt::format("n is {} and there are {} prompts, at most {} texts are made of one request",
                                 body.samples, body.prompts.size(), kSamplesMax));
  }
  if (!error && body.tokens_max == 0 && !body.echo) {
    fields.fail("max_tokens", "max_tokens is 0, which only makes sense with echo");
  }
  return error;
}

std::optional<ApiError> read_chat_body(const ApiJson& json, GenerationBody& body) {
  std::optional<ApiError> error;
  JsonFields fields(json, "", error);
  body.endpoint = Endpoint::kChat;
  read_sampling(fields, body);
  read_wish(fields, "max_completion_tokens", body.tokens_max, {1, kTokensMax});
  if (body.tokens_max == 0) fields.fail("max_tokens", "max_tokens is 0, expected at least 1");
  bool logprobs = false;
  std::int64_t top = 0;
  fields.read("logprobs", logprobs);
  if (fields.read("top_logprobs", top, {0, 20}) && !logprobs && top > 0) {
    fields.fail("top_logprobs", fmt::format("top_logprobs is {} but logprobs is not true", top));
  }
  if (logprobs) body.sampling.logprobs = static_cast<int>(top);
  const ApiJson* messages = fields.list("messages");
  if (messages != nullptr) {
    read_messages(*messages, "messages", error, body.messages);
  } else {
    fields.fail("messages", "messages is missing", "missing_required_parameter");
  }
  read_tools(fields, body);
  body.template_variables = ApiJson::object();
  if (const ApiJson* variables = fields.object("chat_template_kwargs")) body.template_variables = *variables;
  std::string effort;
  if (fields.read("reasoning_effort", effort)) {
    body.template_variables["reasoning_effort"] = effort;
    if (effort == "none") body.template_variables["enable_thinking"] = false;
  }
  if (const ApiJson* documents = fields.list("documents")) body.documents = *documents;
  fields.refuse("audio", nullptr, "the model gives text");
  fields.refuse("modalities", ApiJson::array({"text"}), "the model gives text");
  fields.refuse("web_search_options", nullptr, "nothing is searched for");
  fields.refuse("functions", ApiJson::array(), "use tools");
  fields.refuse("function_call", "none", "use tool_choice");
  fields.finish();
  return error;
}

std::optional<ApiError> read_generation_body(Endpoint endpoint, const ApiJson& json, GenerationBody& body) {
  switch (endpoint) {
    case Endpoint::kCompletion:
      return read_completion_body(json, body);
    case Endpoint::kResponse:
      return read_response_body(json, body);
    case Endpoint::kChat:
      break;
  }
  return read_chat_body(json, body);
}

}  // namespace butterfly
