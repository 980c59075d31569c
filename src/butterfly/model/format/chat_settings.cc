#include "butterfly/model/format/chat_settings.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/format/gguf/gguf.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kJsonBytes = std::size_t{64} << 20;
constexpr std::size_t kTemplateBytes = std::size_t{1} << 20;
constexpr std::size_t kNamesMax = 64;
constexpr const char* kDefault = "default";

/// Templates that are found first count.
void add_template(ChatSettings& settings, const std::string& name, std::string source, std::string origin) {
  const auto known = [&](const ChatSettings::Named& other) { return other.name == name; };
  if (std::ranges::any_of(settings.templates, known) || settings.templates.size() == kNamesMax) return;
  settings.templates.push_back({name, std::move(source), std::move(origin)});
}

/// Errors: kBadData where a value is no number that sampling could use.
Status take(std::optional<float>& target, double value, const std::string& origin, const char* key) {
  if (!std::isfinite(value) || std::abs(value) > 1e6) {
    return make_error(ErrorCode::kBadData, "{}: {} is {}, expected a number", origin, key, value);
  }
  target = static_cast<float>(value);
  return {};
}

Status read_gguf_sampling(const GgufFile& file, ChatSettings& settings) {
  const auto number = [&](const char* key, std::optional<float>& target) -> Status {
    if (!file.has(key)) return {};
    BF_ASSIGN_OR_RETURN(const auto value, file.get_float(key));
    settings.sampling_origin = "general.sampling";
    return take(target, *value, file.source(), key);
  };
  BF_TRY(number("general.sampling.temp", settings.temperature));
  BF_TRY(number("general.sampling.top_p", settings.top_p));
  BF_TRY(number("general.sampling.min_p", settings.min_p));
  BF_TRY(number("general.sampling.penalty_repeat", settings.repeat_penalty));
  BF_ASSIGN_OR_RETURN(const auto top_k, file.get_int("general.sampling.top_k"));
  if (top_k) settings.top_k = static_cast<int>(std::clamp<std::int64_t>(*top_k, 0, 1 << 30));
  if (top_k) settings.sampling_origin = "general.sampling";
  return {};
}

Result<ChatSettings> read_gguf_settings(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const auto mapped, MappedFile::open(path));
  BF_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::parse(mapped->bytes(), path));
  ChatSettings settings;
  const std::string key = "tokenizer.chat_template";
  BF_ASSIGN_OR_RETURN(const auto plain, file.get_string(key));
  if (plain && !plain->empty()) add_template(settings, kDefault, std::string(*plain), key);
  for (const std::string_view each : file.keys()) {
    if (!each.starts_with(key + ".")) continue;
    BF_ASSIGN_OR_RETURN(const auto source, file.get_string(each));
    add_template(settings, std::string(each.substr(key.size() + 1)), std::string(*source), std::string(each));
  }
  constexpr std::pair<const char*, const char*> kTokens[] = {
      {"bos_token", "tokenizer.ggml.bos_token_id"},     {"eos_token", "tokenizer.ggml.eos_token_id"},
      {"unk_token", "tokenizer.ggml.unknown_token_id"}, {"sep_token", "tokenizer.ggml.seperator_token_id"},
      {"pad_token", "tokenizer.ggml.padding_token_id"}, {"cls_token", "tokenizer.ggml.cls_token_id"},
      {"mask_token", "tokenizer.ggml.mask_token_id"}};
  BF_ASSIGN_OR_RETURN(const auto pieces, file.get_strings("tokenizer.ggml.tokens"));
  for (const auto& [name, id_key] : kTokens) {
    BF_ASSIGN_OR_RETURN(const auto id, file.get_int(id_key));
    if (!id || *id < 0 || static_cast<std::uint64_t>(*id) >= pieces.size()) continue;
    settings.special_tokens.emplace_back(name, std::string(pieces[static_cast<std::size_t>(*id)]));
  }
  BF_TRY(read_gguf_sampling(file, settings));
  return settings;
}

/// The object in a file; null where there is no such file.
Result<Json> read_object(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return Json(nullptr);
  BF_ASSIGN_OR_RETURN(const std::string text, read_file(path.string(), kJsonBytes));
  Json parsed = parse_ordered_json(text);
  if (!parsed.is_object()) return make_error(ErrorCode::kBadData, "{}: is not a JSON object", path.string());
  return parsed;
}

/// "tok", or {"content": "tok"}.
std::optional<std::string> text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() || !value.contains("content") || !value["content"].is_string()) return {};
  return value["content"].get<std::string>();
}

void read_special_tokens(const Json& config, ChatSettings& settings) {
  const auto add = [&](const std::string& name, const Json& value) {
    const auto known = [&](const auto& token) { return token.first == name; };
    const std::optional<std::string> text = text_of(value);
    if (text && !std::ranges::any_of(settings.special_tokens, known)) settings.special_tokens.emplace_back(name, *text);
  };
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (config.contains(name)) add(name, config[name]);
  }
  for (const char* further : {"extra_special_tokens", "model_specific_special_tokens"}) {
    if (!config.contains(further) || !config[further].is_object()) continue;
    for (const auto& [name, value] : config[further].items()) add(name, value);
  }
}

void read_templates(const Json& config, const std::string& origin, ChatSettings& settings) {
  if (!config.is_object() || !config.contains("chat_template")) return;
  const Json& found = config["chat_template"];
  if (found.is_string()) add_template(settings, kDefault, found.get<std::string>(), origin);
  if (found.is_object()) {
    for (const auto& [name, source] : found.items()) {
      if (source.is_string()) add_template(settings, name, source.get<std::string>(), origin);
    }
  }
  if (!found.is_array()) return;
  for (const Json& entry : found) {
    const bool named = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                       entry.contains("template") && entry["template"].is_string();
    if (named) add_template(settings, entry["name"].get<std::string>(), entry["template"].get<std::string>(), origin);
  }
}

Status read_generation(const Json& generation, const std::string& origin, ChatSettings& settings) {
  if (!generation.is_object()) return {};
  const auto number = [&](const char* key, std::optional<float>& target) -> Status {
    if (!generation.contains(key) || generation[key].is_null()) return {};
    if (!generation[key].is_number()) {
      return make_error(ErrorCode::kBadData, "{}: {} is {}, expected a number", origin, key,
                        generation[key].type_name());
    }
    settings.sampling_origin = "generation_config.json";
    return take(target, generation[key].get<double>(), origin, key);
  };
  BF_TRY(number("temperature", settings.temperature));
  BF_TRY(number("top_p", settings.top_p));
  BF_TRY(number("min_p", settings.min_p));
  BF_TRY(number("repetition_penalty", settings.repeat_penalty));
  std::optional<float> top_k;
  BF_TRY(number("top_k", top_k));
  if (top_k) settings.top_k = static_cast<int>(std::clamp(*top_k, 0.0f, 1e6f));
  // transformers samples only where the file says so.
  const bool samples =
      generation.contains("do_sample") && generation["do_sample"].is_boolean() && generation["do_sample"].get<bool>();
  if (!settings.sampling_origin.empty() && !samples) settings.temperature = 0.0f;
  if (samples && !settings.temperature) settings.temperature = 1.0f;
  if (samples) settings.sampling_origin = "generation_config.json";
  return {};
}

Result<ChatSettings> read_directory_settings(const fs::path& directory) {
  ChatSettings settings;
  std::error_code ignored;
  const auto add_file = [&](const fs::path& path, const std::string& name) -> Status {
    BF_ASSIGN_OR_RETURN(std::string source, read_file(path.string(), kTemplateBytes));
    add_template(settings, name, std::move(source), path.filename().string());
    return {};
  };
  if (fs::exists(directory / "chat_template.jinja", ignored))
    BF_TRY(add_file(directory / "chat_template.jinja", kDefault));
  std::vector<fs::path> further;
  std::error_code error;
  for (fs::directory_iterator entry(directory / "additional_chat_templates", error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".jinja" && further.size() < kNamesMax) further.push_back(entry->path());
  }
  std::ranges::sort(further);
  for (const fs::path& path : further) BF_TRY(add_file(path, path.stem().string()));
  BF_ASSIGN_OR_RETURN(const Json config, read_object(directory / "tokenizer_config.json"));
  read_templates(config, "tokenizer_config.json", settings);
  BF_ASSIGN_OR_RETURN(const Json processor, read_object(directory / "chat_template.json"));
  read_templates(processor, "chat_template.json", settings);
  if (config.is_object()) read_special_tokens(config, settings);
  BF_ASSIGN_OR_RETURN(const Json map, read_object(directory / "special_tokens_map.json"));
  if (map.is_object()) read_special_tokens(map, settings);
  const fs::path generation_path = directory / "generation_config.json";
  BF_ASSIGN_OR_RETURN(const Json generation, read_object(generation_path));
  BF_TRY(read_generation(generation, generation_path.string(), settings));
  return settings;
}

}  // namespace

const ChatSettings::Named* ChatSettings::find(const std::string& name) const {
  const std::string wanted = name.empty() ? kDefault : name;
  const auto found = std::ranges::find(templates, wanted, &Named::name);
  if (found != templates.end()) return &*found;
  // One template alone is the default, whatever its name.
  return name.empty() && templates.size() == 1 ? &templates.front() : nullptr;
}

Result<ChatSettings> read_chat_settings(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return read_directory_settings(path);
  return read_gguf_settings(path);
}

}  // namespace butterfly
