#include "butterfly/train/checkpoint/run_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>

#include "butterfly/base/hash/digest.h"
#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormat = 1;
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kUnfinished = ".unfinished-";
constexpr std::string_view kRemoved = ".removed-";
constexpr std::uint64_t kTextBytesMax = std::uint64_t{64} << 20;  // of manifest and state: some MiB for a large model

std::string file_of(const std::string& array) {
  return array + ".f32";
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc{} || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

/// Writes the files of a checkpoint one after another and keeps what the manifest says of each.
class Saver {
 public:
  Saver(CheckpointFiles& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  Status add(const std::string& name, ByteSpan bytes) {
    BF_TRY(files_.write(folder_ + "/" + name, bytes));
    list_.push_back({{"name", name}, {"bytes", bytes.size()}, {"sha256", to_hex(sha256(bytes))}});
    return {};
  }

  Status finish() {
    const std::string manifest = dump_json(json{{"format", kFormat}, {"files", list_}}, {.indent = 1}) + "\n";
    BF_TRY(files_.write(folder_ + "/manifest.json", as_bytes(manifest)));
    return files_.sync_directory(folder_);
  }

 private:
  CheckpointFiles& files_;
  std::string folder_;
  json list_ = json::array();
};

Status write_files(CheckpointFiles& files, const std::string& folder, const RunSnapshot& run) {
  BF_TRY(files.create_directory(folder));
  Saver saver(files, folder);
  for (const RunArray& array : run.arrays) BF_TRY(saver.add(file_of(array.name), std::as_bytes(array.values)));
  BF_TRY(saver.add("config.toml", as_bytes(run.config_toml)));
  const std::string state = to_json(run.state);
  BF_TRY(saver.add("state.json", as_bytes(state)));
  return saver.finish();
}

Result<std::uint64_t> size_of(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return make_error(ErrorCode::kNotFound, "{}: is missing", path);
  if (error) return make_error(ErrorCode::kIo, "{}: cannot be examined: {}", path, error.message());
  if (!fs::is_regular_file(status)) return make_error(ErrorCode::kBadData, "{}: is no regular file", path);
  const std::uint64_t size = fs::file_size(path, error);
  if (error) return make_error(ErrorCode::kIo, "{}: cannot be examined: {}", path, error.message());
  return size;
}

Status read_into(MutableByteSpan bytes, const std::string& path) {
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rbe"));
  if (!file) return make_error(ErrorCode::kIo, "{}: cannot be opened: {}", path, std::strerror(errno));
  const std::size_t got = std::fread(bytes.data(), 1, bytes.size(), file.get());
  if (got != bytes.size()) {
    return make_error(ErrorCode::kBadData, "{}: has {} bytes, {} were expected", path, got, bytes.size());
  }
  return {};
}

Result<std::string> read_text(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const std::uint64_t size, size_of(path));
  if (size > kTextBytesMax) {
    return make_error(ErrorCode::kBadData, "{}: has {} bytes, at most {} make sense", path, size, kTextBytesMax);
  }
  return read_file(path, kTextBytesMax);
}

Status check_hash(const std::string& path, ByteSpan bytes, const CheckpointFile& file) {
  const std::string hash = to_hex(sha256(bytes));
  if (hash == file.sha256) return {};
  return make_error(ErrorCode::kBadData, "{}: has SHA-256 {}, the manifest says {}: the file is corrupt", path, hash,
                    file.sha256);
}

const CheckpointFile* find_file(const std::vector<CheckpointFile>& files, const std::string& name) {
  const auto found = std::find_if(files.begin(), files.end(), [&](const auto& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
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

Result<SavedRun> open_complete(const std::string& path) {
  SavedRun run{.path = path};
  const std::string manifest = path + "/manifest.json";
  BF_ASSIGN_OR_RETURN(const std::string text, read_text(manifest));
  BF_ASSIGN_OR_RETURN(run.files, parse_manifest(text, manifest));
  for (const CheckpointFile& file : run.files) {
    const std::string name = path + "/" + file.name;
    BF_ASSIGN_OR_RETURN(const std::uint64_t size, size_of(name));
    if (size != file.bytes) {
      return make_error(ErrorCode::kBadData, "{}: has {} bytes, the manifest says {}: the file is corrupt", name, size,
                        file.bytes);
    }
  }
  for (const char* needed : {"state.json", "config.toml"}) {
    const CheckpointFile* file = find_file(run.files, needed);
    if (file == nullptr) return make_error(ErrorCode::kBadData, "{}: names no {}", manifest, needed);
    const std::string name = path + "/" + needed;
    BF_ASSIGN_OR_RETURN(const std::string content, read_text(name));
    BF_TRY(check_hash(name, as_bytes(content), *file));
    if (std::string_view(needed) == "state.json") {
      BF_ASSIGN_OR_RETURN(run.state, parse_run_state(content, name));
    }
  }
  return run;
}

}  // namespace

std::optional<std::uint64_t> SavedRun::array_bytes(const std::string& name) const {
  const CheckpointFile* file = find_file(files, file_of(name));
  if (file == nullptr) return std::nullopt;
  return file->bytes;
}

std::string checkpoint_path(const std::string& directory, std::int64_t step) {
  return fmt::format("{}/{}{:08}", directory, kPrefix, step);
}

std::vector<std::int64_t> saved_steps(const std::string& directory) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(directory)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Result<std::string> write_checkpoint(CheckpointFiles& files, const std::string& directory, const RunSnapshot& run) {
  const std::string unfinished = fmt::format("{}/{}{}", directory, kUnfinished, run.state.step);
  const std::string path = checkpoint_path(directory, run.state.step);
  BF_TRY(files.remove(unfinished));
  Status written = write_files(files, unfinished, run);
  if (written) written = files.replace(unfinished, path);
  if (!written) {
    // Room for the next attempt, where the disk was full; what cannot be removed now is removed before it.
    (void)files.remove(unfinished);
    return tl::unexpected(std::move(written).error());
  }
  BF_TRY(files.sync_directory(directory));
  BF_TRY(files.remove(unfinished));  // the one that was replaced
  return path;
}

Status prune_checkpoints(CheckpointFiles& files, const std::string& directory, int keep) {
  for (const std::string& name : names_in(directory)) {
    if (!name.starts_with(kUnfinished) && !name.starts_with(kRemoved)) continue;
    BF_TRY(files.remove(fmt::format("{}/{}", directory, name)));
  }
  const std::vector<std::int64_t> steps = saved_steps(directory);
  const std::size_t kept = static_cast<std::size_t>(std::max(1, keep));
  for (std::size_t i = 0; i + kept < steps.size(); ++i) {
    // Renamed first, so that no checkpoint with half of its files is ever visible.
    const std::string removed = fmt::format("{}/{}{}", directory, kRemoved, steps[i]);
    BF_TRY(files.replace(checkpoint_path(directory, steps[i]), removed));
    BF_TRY(files.remove(removed));
  }
  return {};
}

Result<SavedRun> open_run(const std::string& path) {
  std::error_code error;
  if (fs::exists(path + "/manifest.json", error)) return open_complete(path);
  const std::vector<std::int64_t> steps = saved_steps(path);
  if (steps.empty()) {
    const char* what = step_of(fs::path(path).filename().string()) ? "has no manifest.json" : "holds no checkpoint";
    return make_error(ErrorCode::kNotFound, "{}: {}", path, what);
  }
  auto run = open_complete(checkpoint_path(path, steps.back()));
  if (run || steps.size() == 1) return run;
  Error why = std::move(run).error();
  why.message += fmt::format(" (the checkpoint before it is {})", checkpoint_path(path, steps[steps.size() - 2]));
  return tl::unexpected(std::move(why));
}

Status read_array(const SavedRun& run, const RunArray& array) {
  const std::string name = file_of(array.name);
  const std::string path = run.path + "/" + name;
  const CheckpointFile* file = find_file(run.files, name);
  if (file == nullptr) return make_error(ErrorCode::kNotFound, "{}: the checkpoint has no {}", run.path, name);
  if (file->bytes != array.values.size_bytes()) {
    return make_error(ErrorCode::kBadData, "{}: has {} bytes, the model needs {}", path, file->bytes,
                      array.values.size_bytes());
  }
  BF_TRY(read_into(std::as_writable_bytes(array.values), path));
  return check_hash(path, std::as_bytes(array.values), *file);
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
  if (list == manifest.end() || !list->is_array()) return make_error(ErrorCode::kBadData, "{}: lists no files", name);
  std::vector<CheckpointFile> files;
  std::set<std::string> seen;
  for (const json& entry : *list) {
    if (!entry.is_object()) return make_error(ErrorCode::kBadData, "{}: file {} is no object", name, files.size());
    const auto file = get<std::string>(entry, "name");
    const auto bytes = get<std::uint64_t>(entry, "bytes");
    const auto hash = get<std::string>(entry, "sha256");
    if (!file || !is_plain_name(*file) || !bytes || !hash || !is_sha256(*hash) || !seen.insert(*file).second) {
      return make_error(ErrorCode::kBadData, "{}: file {} has no name of its own, size or SHA-256", name, files.size());
    }
    files.push_back({.name = *file, .bytes = *bytes, .sha256 = *hash});
  }
  return files;
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
