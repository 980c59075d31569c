#include "butterfly/train/checkpoint/run_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
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

/// The part that a rank has written of an array.
std::string part_of_rank(const std::string& array, int rank) {
  return fmt::format("{}.{:04}.f32", array, rank);
}

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

/// Writes the files of a checkpoint one after another and keeps what the manifest says of each.
class Saver {
 public:
  Saver(CheckpointFiles& files, std::string folder, std::vector<CheckpointFile> list = {})
      : files_(files), folder_(std::move(folder)), list_(std::move(list)) {}

  Status add(const std::string& name, ByteSpan bytes, std::vector<ParameterRange> ranges = {}) {
    BF_TRY(files_.write(folder_ + "/" + name, bytes));
    list_.push_back(
        {.name = name, .bytes = bytes.size(), .sha256 = to_hex(sha256(bytes)), .ranges = std::move(ranges)});
    return {};
  }

  /// Configuration, state and the manifest.
  Status finish(const RunSnapshot& run) {
    BF_TRY(add("config.toml", as_bytes(run.config_toml)));
    const std::string state = to_json(run.state);
    BF_TRY(add("state.json", as_bytes(state)));
    json entries = json::array();
    for (const CheckpointFile& file : list_) entries.push_back(entry_of(file));
    const std::string manifest = dump_json(json{{"format", kFormat}, {"files", entries}}, {.indent = 1}) + "\n";
    BF_TRY(files_.write(folder_ + "/manifest.json", as_bytes(manifest)));
    return files_.sync_directory(folder_);
  }

  std::vector<CheckpointFile> take() { return std::move(list_); }

 private:
  CheckpointFiles& files_;
  std::string folder_;
  std::vector<CheckpointFile> list_;
};

Status write_files(CheckpointFiles& files, const std::string& folder, const RunSnapshot& run) {
  BF_TRY(files.create_directory(folder));
  Saver saver(files, folder);
  for (const RunArray& array : run.arrays) BF_TRY(saver.add(file_of(array.name), std::as_bytes(array.values)));
  return saver.finish(run);
}

std::string unfinished_path(const std::string& directory, std::int64_t step) {
  return fmt::format("{}/{}{}", directory, kUnfinished, step);
}

/// What is in `unfinished` becomes the checkpoint, if it was written; otherwise it goes.
Result<std::string> put_in_place(CheckpointFiles& files, const std::string& directory, std::int64_t step,
                                 Status written) {
  const std::string unfinished = unfinished_path(directory, step);
  const std::string path = checkpoint_path(directory, step);
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

/// Whether a file is an array, or a rank's part of it.
bool is_of(const std::string& file, const std::string& array) {
  if (file == file_of(array)) return true;
  const std::string_view name = file;
  constexpr std::size_t kNumber = 5;  // ".0003"
  return name.size() == array.size() + kNumber + 4 && name.starts_with(array + ".") && name.ends_with(".f32");
}

tl::unexpected<Error> wrong_size(const std::string& path, std::uint64_t bytes, const RunArray& array) {
  return make_error(ErrorCode::kBadData, "{}: has {} bytes, the model needs {}", path, bytes,
                    array.values.size_bytes());
}

/// Reads a whole file in pieces, and copies to `values` what is in `wanted`: the number of elements.
Result<std::int64_t> copy_ranges(const std::string& folder, const CheckpointFile& file,
                                 const std::vector<ParameterRange>& wanted, std::span<float> values) {
  const std::string path = folder + "/" + file.name;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return make_error(ErrorCode::kIo, "{}: cannot be opened: {}", path, std::strerror(errno));
  const ParameterRange all{.begin = 0, .end = static_cast<std::int64_t>(values.size())};
  constexpr std::int64_t kPiece = 256 * 1024;
  std::vector<float> piece(static_cast<std::size_t>(kPiece));
  Sha256Hasher hasher;
  std::int64_t copied = 0;
  for (const ParameterRange& range : file.ranges.empty() ? std::vector{all} : file.ranges) {
    if (range.end > all.end) {
      return make_error(ErrorCode::kBadData, "{}: holds values up to {}, the model has {}", path, range.end, all.end);
    }
    for (std::int64_t at = range.begin; at < range.end; at += kPiece) {
      const std::int64_t end = std::min(range.end, at + kPiece);
      const auto bytes = std::as_writable_bytes(std::span(piece).first(static_cast<std::size_t>(end - at)));
      if (!stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()))) {
        return make_error(ErrorCode::kBadData, "{}: ends too early", path);
      }
      hasher.add(bytes);
      for (const ParameterRange& want : wanted) {
        const std::int64_t from = std::max(at, want.begin), to = std::min(end, want.end);
        if (from >= to) continue;
        std::copy_n(piece.begin() + (from - at), to - from, values.begin() + from);
        copied += to - from;
      }
    }
  }
  const auto hash = hasher.finish();
  if (hash && *hash == file.sha256) return copied;
  return make_error(ErrorCode::kBadData, "{}: has SHA-256 {}, the manifest says {}: the file is corrupt", path,
                    hash.value_or("none"), file.sha256);
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
  std::optional<std::uint64_t> bytes;
  for (const CheckpointFile& file : files) {
    if (is_of(file.name, name)) bytes = bytes.value_or(0) + file.bytes;
  }
  return bytes;
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
  const std::string unfinished = unfinished_path(directory, run.state.step);
  BF_TRY(files.remove(unfinished));
  return put_in_place(files, directory, run.state.step, write_files(files, unfinished, run));
}

Result<std::string> begin_checkpoint(CheckpointFiles& files, const std::string& directory, std::int64_t step) {
  std::string unfinished = unfinished_path(directory, step);
  BF_TRY(files.remove(unfinished));
  BF_TRY(files.create_directory(unfinished));
  return unfinished;
}

Result<std::vector<CheckpointFile>> write_parts(CheckpointFiles& files, const std::string& folder, int rank,
                                                std::span<const RunArray> arrays) {
  Saver saver(files, folder);
  std::vector<float> part;
  for (const RunArray& array : arrays) {
    part.clear();
    for (const ParameterRange& range : array.ranges) {
      const auto from = array.values.begin() + range.begin;
      part.insert(part.end(), from, from + range.size());
    }
    if (part.empty()) continue;
    BF_TRY(saver.add(part_of_rank(array.name, rank), std::as_bytes(std::span(part)), array.ranges));
  }
  return saver.take();
}

Result<std::string> complete_checkpoint(CheckpointFiles& files, const std::string& directory, const RunSnapshot& run,
                                        std::vector<CheckpointFile> parts) {
  const std::string unfinished = unfinished_path(directory, run.state.step);
  const auto write = [&]() -> Status {
    for (const CheckpointFile& part : parts) {
      const auto size = size_of(unfinished + "/" + part.name);
      if (size && *size == part.bytes) continue;
      return make_error(ErrorCode::kIo,
                        "{}/{}: a rank has written it, and it is not here: {} must be a folder that all "
                        "ranks share",
                        unfinished, part.name, directory);
    }
    return Saver(files, unfinished, std::move(parts)).finish(run);
  };
  return put_in_place(files, directory, run.state.step, write());
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
  if (const CheckpointFile* file = find_file(run.files, name); file != nullptr && array.ranges.empty()) {
    const std::string path = run.path + "/" + name;
    if (file->bytes != array.values.size_bytes()) return wrong_size(path, file->bytes, array);
    BF_TRY(read_into(std::as_writable_bytes(array.values), path));
    return check_hash(path, std::as_bytes(array.values), *file);
  }
  const auto bytes = run.array_bytes(array.name);
  if (!bytes) return make_error(ErrorCode::kNotFound, "{}: the checkpoint has no {}", run.path, name);
  if (*bytes != array.values.size_bytes()) return wrong_size(run.path + "/" + name, *bytes, array);
  std::int64_t wanted = 0, copied = 0;
  const ParameterRange all{.begin = 0, .end = static_cast<std::int64_t>(array.values.size())};
  const std::vector<ParameterRange> ranges = array.ranges.empty() ? std::vector{all} : array.ranges;
  for (const ParameterRange& range : ranges) wanted += range.size();
  for (const CheckpointFile& file : run.files) {
    if (!is_of(file.name, array.name)) continue;
    BF_ASSIGN_OR_RETURN(const std::int64_t here, copy_ranges(run.path, file, ranges, array.values));
    copied += here;
  }
  if (copied == wanted) return {};
  return make_error(ErrorCode::kBadData, "{}: its files have {} of {} values of {}", run.path, copied, wanted,
                    array.name);
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
