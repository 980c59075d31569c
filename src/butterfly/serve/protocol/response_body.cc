// The body of /v1/responses: another spelling of a conversation.
#include "butterfly/base/json.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/serve/protocol/generation_body.h"

namespace butterfly {
namespace {

/// {"format": {"type": ...}} as response_format has it.
void read_text_format(JsonFields& fields, GenerationBody& body) {
  const ApiJson* text = fields.object("text");
  if (text == nullptr || !text->contains("format") || !(*text)["format"].is_object()) return;
  const ApiJson& format = (*text)["format"];
  const std::string type = format.contains("type") && format["type"].is_string() ? format["type"] : "";
  if (type == "text") return;
  if (type == "json_object") {
    body.constraint = {.kind = TextConstraint::Kind::kJsonObject, .param = "text"};
  } else if (type == "json_schema" && format.contains("schema") && format["schema"].is_object()) {
    body.constraint = {.kind = TextConstraint::Kind::kJsonSchema, .schema = format["schema"], .param = "text"};
  } else {
    fields.fail("text",
                fmt::format("text.format.type is \"{}\", expected text, json_object, or json_schema with a schema",
                            one_line(type.substr(0, 40))));
  }
}

/// Items of `input` as messages of a conversation.
void read_input(const ApiJson& input, GenerationBody& body, std::optional<ApiError>& error) {
  ApiJson list = ApiJson::array();
  const auto fail = [&error](const std::string& message) {
    if (!error) error = ApiError{.message = message, .param = "input", .code = "invalid_value"};
  };
  for (const ApiJson& item : input) {
    if (!item.is_object()) return fail("input must be a string or a list of objects");
    const std::string type = item.contains("type") && item["type"].is_string() ? item["type"] : "message";
    if (type == "message") {
      ApiJson message = item;
      for (const char* name : {"type", "id", "status", "phase"}) message.erase(name);
      list.push_back(std::move(message));
    } else if (type == "function_call") {
      ApiJson call = {{"id", item.value("call_id", "")},
                      {"type", "function"},
                      {"function", {{"name", item.value("name", "")}, {"arguments", item.value("arguments", "{}")}}}};
      const bool continues =
          !list.empty() && list.back().contains("tool_calls") && list.back()["tool_calls"].is_array();
      if (!continues) list.push_back({{"role", "assistant"}, {"content", ""}});
      list.back()["tool_calls"].push_back(std::move(call));
    } else if (type == "function_call_output") {
      const ApiJson output = item.contains("output") ? item["output"] : ApiJson("");
      list.push_back({{"role", "tool"},
                      {"tool_call_id", item.value("call_id", "")},
                      {"content", output.is_string() || output.is_array() ? output : ApiJson(dump_json(output))}});
    } else if (type != "reasoning") {
      return fail(
          fmt::format("input has an item of the type \"{}\", expected message, function_call or "
                      "function_call_output",
                      one_line(type.substr(0, 40))));
    }
  }
  read_messages(list, "input", error, body.messages);
}

}  // namespace

std::optional<ApiError> read_response_body(const ApiJson& json, GenerationBody& body) {
  std::optional<ApiError> error;
  JsonFields fields(json, "", error);
  body.endpoint = Endpoint::kResponse;
  read_sampling(fields, body);
  std::int64_t most = 0;
  if (fields.read("max_output_tokens", most, {1, 1 << 24})) body.tokens_max = static_cast<int>(most);
  std::int64_t top = 0;
  if (fields.read("top_logprobs", top, {0, 20}) && top > 0) body.sampling.logprobs = static_cast<int>(top);
  read_tools(fields, body);
  read_text_format(fields, body);
  std::string instructions;
  fields.read("instructions", instructions);
  const ApiJson* input = fields.find("input");
  if (input == nullptr) {
    fields.fail("input", "input is missing", "missing_required_parameter");
  } else if (input->is_string()) {
    body.messages = ApiJson::array({{{"role", "user"}, {"content", *input}}});
  } else if (input->is_array()) {
    // item.value() throws where a member has another type than its default.
    bool plain = true;
    for (const ApiJson& item : *input) {
      for (const char* name : {"call_id", "name", "arguments"}) {
        plain &= !item.is_object() || !item.contains(name) || item[name].is_string();
      }
    }
    if (plain) {
      read_input(*input, body, error);
    } else {
      fields.fail("input", "input has an item whose call_id, name or arguments is no string", "invalid_type");
    }
  } else {
    fields.fail("input", "input must be a string or a list of objects", "invalid_type");
  }
  if (!error && !instructions.empty()) {
    body.messages.insert(body.messages.begin(), ApiJson{{"role", "system"}, {"content", instructions}});
  }
  body.template_variables = ApiJson::object();
  if (const ApiJson* reasoning = fields.object("reasoning")) {
    const auto effort = reasoning->find("effort");
    if (effort != reasoning->end() && effort->is_string()) body.template_variables["reasoning_effort"] = *effort;
  }
  fields.refuse("previous_response_id", nullptr, "nothing is stored: send the conversation");
  fields.refuse("conversation", nullptr, "nothing is stored: send the conversation");
  fields.refuse("background", false, "ask for a stream and come back to it with GET /v1/streams/ID");
  fields.refuse("prompt", nullptr, "nothing is stored");
  fields.ignore({"include", "truncation", "max_tool_calls", "text"});
  fields.finish();
  body.shown = {{"instructions", instructions.empty() ? ApiJson(nullptr) : ApiJson(instructions)},
                {"max_output_tokens", body.tokens_max ? ApiJson(*body.tokens_max) : ApiJson(nullptr)},
                {"parallel_tool_calls", body.parallel_tool_calls},
                {"tools", json.contains("tools") ? json["tools"] : ApiJson::array()},
                {"tool_choice", json.contains("tool_choice") ? json["tool_choice"] : ApiJson("auto")}};
  for (const char* name : {"metadata", "temperature", "top_p"}) {
    body.shown[name] = json.contains(name) ? json[name] : ApiJson(nullptr);
  }
  return error;
}

}  // namespace butterfly
