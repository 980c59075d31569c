// What a checkpoint says of itself: manifest and state, as JSON.
#include <algorithm>
#include <optional>
#include <set>

#include "butterfly/base/json.h"
#include "butterfly/train/checkpoint/run_checkpoint.h"

namespace butterfly {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;

json entry_of(const CheckpointFile& file) {
  json entry{{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}};
  if (file.ranges.empty()) return entry;
  json ranges = json::array();
  for (const ParameterRange& range : file.ranges) {
    ranges.push_back({static_cast<std::uint64_t>(range.begin), static_cast<std::uint64_t>(range.end)});
  }
  entry["ranges"] = ranges;
  return entry;
}

/// Files stay in their checkpoint: a name is letters, digits, '.', '-' and '_', and does not begin with a dot.
bool is_plain_name(const std::string& name) {
  constexpr std::size_t kLongest = 100;
  if (name.empty() || name.size() > kLongest || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  });
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// A value of the given type, or nothing; nlohmann-json would throw.
template <typename T>
std::optional<T> get(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  if constexpr (std::is_same_v<T, std::string>) {
    if (found->is_string()) return found->get<std::string>();
  } else if constexpr (std::is_same_v<T, double>) {
    if (found->is_number()) return found->get<double>();
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    if (found->is_number_unsigned()) return found->get<std::uint64_t>();
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    // Sizes and counts: never negative, and signed as the rest of the module has them.
    if (found->is_number_unsigned() && found->get<std::uint64_t>() <= INT64_MAX) return found->get<std::int64_t>();
  }
  return std::nullopt;
}

/// Ascending, apart from each other, and as many values as the file has bytes for.
Result<std::vector<ParameterRange>> parse_ranges(const json& list, const CheckpointFile& file,
                                                 const std::string& name) {
  std::vector<ParameterRange> ranges;
  std::uint64_t elements = 0;
  bool good = list.is_array() && !list.empty();
  for (std::size_t i = 0; good && i < list.size(); ++i) {
    const json& entry = list[i];
    good = entry.is_array() && entry.size() == 2 && entry[0].is_number_unsigned() && entry[1].is_number_unsigned();
    if (!good) break;
    const auto begin = entry[0].get<std::uint64_t>(), end = entry[1].get<std::uint64_t>();
    good = begin < end && end <= file.bytes + begin && end <= INT64_MAX / 8 &&
           (ranges.empty() || static_cast<std::uint64_t>(ranges.back().end) <= begin);
    elements += end - begin;
    ranges.push_back({.begin = static_cast<std::int64_t>(begin), .end = static_cast<std::int64_t>(end)});
  }
  if (good && elements == file.bytes / sizeof(float) && file.bytes % sizeof(float) == 0) return ranges;
  return make_error(ErrorCode::kBadData, "{}: file {} has ranges that do not ascend or are not its {} bytes", name,
                    file.name, file.bytes);
}

Result<std::vector<CheckpointFile>> parse_entries(const json& list, const std::string& name) {
  if (!list.is_array()) return make_error(ErrorCode::kBadData, "{}: lists no files", name);
  std::vector<CheckpointFile> files;
  std::set<std::string> seen;
  for (const json& entry : list) {
    if (!entry.is_object()) return make_error(ErrorCode::kBadData, "{}: file {} is no object", name, files.size());
    const auto file = get<std::string>(entry, "name");
    const auto bytes = get<std::uint64_t>(entry, "bytes");
    const auto hash = get<std::string>(entry, "sha256");
    if (!file || !is_plain_name(*file) || !bytes || !hash || !is_sha256(*hash) || !seen.insert(*file).second) {
      return make_error(ErrorCode::kBadData, "{}: file {} has no name of its own, size or SHA-256", name, files.size());
    }
    files.push_back({.name = *file, .bytes = *bytes, .sha256 = *hash});
    if (!entry.contains("ranges")) continue;
    BF_ASSIGN_OR_RETURN(files.back().ranges, parse_ranges(entry["ranges"], files.back(), name));
  }
  return files;
}

}  // namespace

std::string manifest_of(std::span<const CheckpointFile> files) {
  json entries = json::array();
  for (const CheckpointFile& file : files) entries.push_back(entry_of(file));
  return dump_json(json{{"format", kFormat}, {"files", entries}}, {.indent = 1}) + "\n";
}

Result<std::vector<CheckpointFile>> parse_manifest(const std::string& text, const std::string& name) {
  const json manifest = parse_json(text);
  if (!manifest.is_object()) return make_error(ErrorCode::kBadData, "{}: is no JSON object", name);
  const auto format = get<std::int64_t>(manifest, "format");
  if (format != kFormat) {
    return make_error(ErrorCode::kBadData, "{}: is of format {}, this program reads {}", name, format.value_or(0),
                      kFormat);
  }
  const auto list = manifest.find("files");
  if (list == manifest.end()) return make_error(ErrorCode::kBadData, "{}: lists no files", name);
  return parse_entries(*list, name);
}

std::string to_json(std::span<const CheckpointFile> files) {
  json entries = json::array();
  for (const CheckpointFile& file : files) entries.push_back(entry_of(file));
  return dump_json(entries, {});
}

Result<std::vector<CheckpointFile>> parse_files(const std::string& text, const std::string& name) {
  return parse_entries(parse_json(text), name);
}

std::string to_json(const RunState& state) {
  json parameters = json::array();
  for (const Parameter& parameter : state.parameters) {
    parameters.push_back({{"name", parameter.name},
                          {"rows", static_cast<std::uint64_t>(parameter.rows)},
                          {"cols", static_cast<std::uint64_t>(parameter.cols)},
                          {"offset", static_cast<std::uint64_t>(parameter.offset)}});
  }
  const json object{{"step", static_cast<std::uint64_t>(state.step)},
                    {"updates", static_cast<std::uint64_t>(state.updates)},
                    {"guard", state.guard},
                    {"fingerprint", state.fingerprint},
                    {"train_tokens", static_cast<std::uint64_t>(state.train_tokens)},
                    {"unigram_entropy", state.unigram_entropy},
                    {"data_sha256", state.data_digest},
                    {"parameters", parameters}};
  return dump_json(object, {.indent = 1}) + "\n";
}

Result<RunState> parse_run_state(const std::string& text, const std::string& name) {
  const json object = parse_json(text);
  if (!object.is_object()) return make_error(ErrorCode::kBadData, "{}: is no JSON object", name);
  const auto step = get<std::int64_t>(object, "step");
  const auto updates = get<std::int64_t>(object, "updates");
  const auto fingerprint = get<std::string>(object, "fingerprint");
  const auto train_tokens = get<std::int64_t>(object, "train_tokens");
  const auto entropy = get<double>(object, "unigram_entropy");
  const auto guard = object.find("guard");
  const auto parameters = object.find("parameters");
  if (!step || !updates || !fingerprint || !train_tokens || !entropy || guard == object.end() || !guard->is_array() ||
      parameters == object.end() || !parameters->is_array()) {
    return make_error(ErrorCode::kBadData,
                      "{}: lacks step, updates, fingerprint, train_tokens, unigram_entropy, guard or parameters", name);
  }
  if (*updates > *step) {
    return make_error(ErrorCode::kBadData, "{}: says {} updates in {} steps", name, *updates, *step);
  }
  RunState state{.step = *step,
                 .updates = *updates,
                 .fingerprint = *fingerprint,
                 .train_tokens = *train_tokens,
                 .unigram_entropy = *entropy,
                 .data_digest = get<std::string>(object, "data_sha256").value_or("")};
  if (!state.data_digest.empty() && !is_sha256(state.data_digest)) {
    return make_error(ErrorCode::kBadData,
                      "{}: data_sha256 has {} characters and is no SHA-256, which has 64 hex digits", name,
                      state.data_digest.size());
  }
  for (const json& value : *guard) {
    if (!value.is_number()) return make_error(ErrorCode::kBadData, "{}: guard holds what is no number", name);
    state.guard.push_back(value.get<double>());
  }
  for (const json& entry : *parameters) {
    if (!entry.is_object()) return make_error(ErrorCode::kBadData, "{}: a parameter is no object", name);
    const auto parameter = get<std::string>(entry, "name");
    const auto rows = get<std::int64_t>(entry, "rows");
    const auto cols = get<std::int64_t>(entry, "cols");
    const auto offset = get<std::int64_t>(entry, "offset");
    if (!parameter || !rows || !cols || !offset) {
      return make_error(ErrorCode::kBadData, "{}: parameter {} lacks name, rows, cols or offset", name,
                        state.parameters.size());
    }
    state.parameters.push_back({.name = *parameter, .rows = *rows, .cols = *cols, .offset = *offset});
  }
  return state;
}

}  // namespace butterfly
