// Messages and tools of conversations, in the form in which chat templates want them.
#include "butterfly/base/json.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/serve/protocol/generation_body.h"
#include "butterfly/text/answer/tool_calls.h"

namespace butterfly {
namespace {

constexpr std::size_t kToolsMax = 256;

/// A string, or parts whose texts are joined by line ends.
std::optional<std::string> text_of(const ApiJson& content, JsonFields& fields) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    fields.fail(
        "content",
        fmt::format("{} is {}, expected a string or a list of parts", fields.path_of("content"), content.type_name()),
        "invalid_type");
    return std::nullopt;
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const ApiJson& part = content[i];
    const bool typed = part.is_object() && part.contains("type") && part["type"].is_string();
    const std::string type = typed ? part["type"].get<std::string>() : "";
    const char* member = type == "refusal" ? "refusal" : "text";
    const bool is_text = type == "text" || type == "input_text" || type == "output_text" || type == "refusal";
    if (!is_text || !part.contains(member) || !part[member].is_string()) {
      fields.fail(fmt::format("content[{}]", i),
                  fmt::format("{} has the type \"{}\", only text can be read",
                              fields.path_of(fmt::format("content[{}]", i)), one_line(type.substr(0, 40))),
                  "unsupported_content");
      return std::nullopt;
    }
    if (i > 0) text += '\n';
    text += part[member].get_ref<const std::string&>();
  }
  return text;
}

/// Arguments are text in the API and an object in templates.
ApiJson call_for_template(const ApiJson& call, JsonFields& fields, const std::string& name) {
  const ApiJson* function = call.is_object() && call.contains("function") ? &call["function"] : nullptr;
  const bool fits =
      function != nullptr && function->is_object() && function->contains("name") && (*function)["name"].is_string();
  if (!fits) {
    fields.fail(name, fmt::format("{} is no call of a function with a name", fields.path_of(name)), "invalid_type");
    return {};
  }
  ApiJson arguments = function->contains("arguments") ? (*function)["arguments"] : ApiJson::object();
  if (arguments.is_string()) {
    const std::string text = arguments.get<std::string>();
    const bool flat = is_nested_within(text, kJsonDepthMax);
    ApiJson parsed = parse_ordered_json(text.empty() || !flat ? "{}" : text);
    if (flat && !parsed.is_discarded()) arguments = std::move(parsed);
  }
  ApiJson made = {{"type", "function"},
                  {"function", {{"name", (*function)["name"]}, {"arguments", std::move(arguments)}}}};
  if (call.contains("id") && call["id"].is_string()) made["id"] = call["id"];
  return made;
}

ApiJson read_message(const ApiJson& message, const std::string& path, std::optional<ApiError>& error) {
  JsonFields fields(message, path, error);
  const std::string role = fields.required("role");
  if (error) return {};
  const bool known = role == "system" || role == "developer" || role == "user" || role == "assistant" ||
                     role == "tool" || role == "function";
  if (!known) {
    fields.fail("role", fmt::format("{}.role is \"{}\", expected system, developer, user, assistant or tool", path,
                                    one_line(role.substr(0, 40))));
    return {};
  }
  ApiJson made = {{"role", role}};
  const ApiJson* calls = fields.list("tool_calls");
  const ApiJson* content = fields.find("content");
  if (content != nullptr) {
    const auto text = text_of(*content, fields);
    if (text) made["content"] = *text;
  } else if (calls != nullptr || role == "assistant") {
    made["content"] = "";
  } else {
    fields.fail("content", fmt::format("{}.content is missing", path), "missing_required_parameter");
  }
  for (std::size_t i = 0; calls != nullptr && i < calls->size(); ++i) {
    made["tool_calls"].push_back(call_for_template((*calls)[i], fields, fmt::format("tool_calls[{}]", i)));
  }
  std::string text;
  if (fields.read("reasoning_content", text) || fields.read("reasoning", text)) made["reasoning_content"] = text;
  if (fields.read("tool_call_id", text)) made["tool_call_id"] = text;
  if (fields.read("name", text)) made["name"] = text;
  fields.refuse("function_call", nullptr, "use tool_calls");
  fields.ignore({"refusal", "annotations", "audio", "reasoning", "reasoning_details", "prefix"});
  fields.finish();
  return made;
}

/// Results of tools say which function gave them: templates ask for it, clients often leave it out.
void name_tool_results(ApiJson& messages) {
  std::vector<std::pair<std::string, std::string>> calls;
  for (ApiJson& message : messages) {
    if (message.contains("tool_calls")) {
      for (const ApiJson& call : message["tool_calls"]) {
        if (call.contains("id")) calls.emplace_back(call["id"], call["function"]["name"]);
      }
    }
    if (message["role"] != "tool" || message.contains("name") || !message.contains("tool_call_id")) continue;
    for (const auto& [id, name] : calls) {
      if (message["tool_call_id"] == id) message["name"] = name;
    }
  }
}

void read_tool(const ApiJson& tool, const std::string& path, std::optional<ApiError>& error, ApiJson& tools) {
  JsonFields fields(tool, path, error);
  const std::string type = fields.required("type");
  if (!error && type != "function") {
    fields.fail("type",
                fmt::format("{}.type is \"{}\", only \"function\" is known", path, one_line(type.substr(0, 40))),
                "unsupported_parameter");
  }
  // /v1/responses has the function's members beside the type.
  const ApiJson* inner = fields.object("function");
  const ApiJson& function = inner != nullptr ? *inner : tool;
  JsonFields members(function, inner != nullptr ? path + ".function" : path, error);
  const std::string name = members.required("name");
  if (!error && (name.size() > 64 || !is_function_name(name))) {
    members.fail("name", fmt::format("{} is \"{}\", expected up to 64 letters, digits, _ and -",
                                     members.path_of("name"), one_line(name.substr(0, 80))));
  }
  const ApiJson* parameters = members.object("parameters");
  if (error) return;
  ApiJson made = {{"name", name}};
  if (function.contains("description") && function["description"].is_string()) {
    made["description"] = function["description"];
  }
  made["parameters"] =
      parameters != nullptr ? *parameters : ApiJson{{"type", "object"}, {"properties", ApiJson::object()}};
  tools.push_back({{"type", "function"}, {"function", std::move(made)}});
}

}  // namespace

void read_messages(const ApiJson& list, const std::string& path, std::optional<ApiError>& error, ApiJson& messages) {
  messages = ApiJson::array();
  if (list.empty() && !error) {
    error = ApiError{
        .message = path + " is an empty list, at least one message is needed", .param = path, .code = "invalid_value"};
  }
  for (std::size_t i = 0; i < list.size() && !error; ++i) {
    const std::string place = fmt::format("{}[{}]", path, i);
    if (!list[i].is_object()) {
      error = ApiError{.message = fmt::format("{} is {}, expected an object", place, list[i].type_name()),
                       .param = place,
                       .code = "invalid_type"};
      return;
    }
    ApiJson message = read_message(list[i], place, error);
    if (!error) messages.push_back(std::move(message));
  }
  if (!error) name_tool_results(messages);
}

void read_tools(JsonFields& fields, GenerationBody& body) {
  fields.read("parallel_tool_calls", body.parallel_tool_calls);
  std::optional<ApiError> error;
  if (const ApiJson* tools = fields.list("tools"); tools != nullptr && !tools->empty()) {
    if (tools->size() > kToolsMax) {
      return fields.fail("tools",
                         fmt::format("tools has {} functions, at most {} are taken", tools->size(), kToolsMax));
    }
    body.tools = ApiJson::array();
    for (std::size_t i = 0; i < tools->size() && !error; ++i) {
      const std::string place = fmt::format("tools[{}]", i);
      if (!(*tools)[i].is_object()) return fields.fail(place, place + " is no object", "invalid_type");
      read_tool((*tools)[i], place, error, body.tools);
    }
    if (error) return fields.fail(error->param, error->message, error->code.c_str());
  }
  const ApiJson* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  const std::string word = choice->is_string() ? choice->get<std::string>() : "";
  if (choice->is_object()) {
    const ApiJson& function = choice->contains("function") ? (*choice)["function"] : *choice;
    if (function.is_object() && function.contains("name") && function["name"].is_string()) {
      body.tool_choice = {.kind = ToolChoice::Kind::kNamed, .name = function["name"]};
    }
  }
  if (word == "none") body.tool_choice.kind = ToolChoice::Kind::kNone;
  if (word == "required") body.tool_choice.kind = ToolChoice::Kind::kRequired;
  if (body.tool_choice.kind == ToolChoice::Kind::kAuto && word != "auto") {
    return fields.fail("tool_choice", "tool_choice must be none, auto, required or an object that names a function");
  }
  if (body.tools.is_null() && word != "none" && word != "auto") {
    return fields.fail("tool_choice", "tool_choice asks for a call, but there are no tools");
  }
  if (body.tool_choice.kind != ToolChoice::Kind::kNamed) return;
  for (const ApiJson& tool : body.tools) {
    if (tool["function"]["name"] == body.tool_choice.name) return;
  }
  fields.fail("tool_choice", fmt::format("tool_choice names \"{}\", which is none of the tools",
                                         one_line(body.tool_choice.name.substr(0, 80))));
}

}  // namespace butterfly
