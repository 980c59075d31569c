#include "butterfly/train/checkpoint/run_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string_view>

#include "butterfly/base/hash/digest.h"
#include "butterfly/base/read_file.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

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
    const std::string manifest = manifest_of(list_);
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

/// A name that no save had before: ranks of one that was given up may still be writing into its folder.
std::string unfinished_path(const std::string& directory, std::int64_t step) {
  std::random_device random;
  return fmt::format("{}/{}{}-{:08x}", directory, kUnfinished, step, random());
}

/// What interrupted saves left. Errors: kIo.
Status remove_leftovers(CheckpointFiles& files, const std::string& directory) {
  for (const std::string& name : names_in(directory)) {
    if (!name.starts_with(kUnfinished) && !name.starts_with(kRemoved)) continue;
    BF_TRY(files.remove(fmt::format("{}/{}", directory, name)));
  }
  return {};
}

/// What is in `unfinished` becomes the checkpoint, if it was written; otherwise it goes.
Result<std::string> put_in_place(CheckpointFiles& files, const std::string& directory, const std::string& unfinished,
                                 std::int64_t step, Status written) {
  const std::string path = checkpoint_path(directory, step);
  if (written) written = files.replace(unfinished, path);
  if (!written) {
    // Room for the next attempt, where the disk was full; what cannot be removed now goes after it.
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
  (void)remove_leftovers(files, directory);  // where the disk is full, room for this one
  const std::string unfinished = unfinished_path(directory, run.state.step);
  return put_in_place(files, directory, unfinished, run.state.step, write_files(files, unfinished, run));
}

Result<std::string> begin_checkpoint(CheckpointFiles& files, const std::string& directory, std::int64_t step) {
  (void)remove_leftovers(files, directory);  // where the disk is full, room for this one
  std::string unfinished = unfinished_path(directory, step);
  BF_TRY(files.create_directory(unfinished));
  return unfinished;
}

Result<std::vector<CheckpointFile>> write_parts(CheckpointFiles& files, const std::string& folder, int rank,
                                                std::span<const RunArray> arrays) {
  std::vector<CheckpointFile> written;
  std::vector<float> values;  // of one array at a time
  for (const RunArray& array : arrays) {
    values.clear();
    for (const ParameterRange& range : array.ranges) {
      const auto from = array.values.begin() + range.begin;
      values.insert(values.end(), from, from + range.size());
    }
    const RunPart part{.name = array.name, .values = values, .ranges = array.ranges};
    BF_ASSIGN_OR_RETURN(std::vector<CheckpointFile> one, write_parts(files, folder, rank, std::span(&part, 1)));
    std::ranges::move(one, std::back_inserter(written));
  }
  return written;
}

Result<std::vector<CheckpointFile>> write_parts(CheckpointFiles& files, const std::string& folder, int rank,
                                                std::span<const RunPart> parts) {
  Saver saver(files, folder);
  for (const RunPart& part : parts) {
    if (part.values.empty()) continue;
    BF_TRY(saver.add(part_of_rank(part.name, rank), std::as_bytes(part.values), part.ranges));
  }
  return saver.take();
}

Result<std::string> complete_checkpoint(CheckpointFiles& files, const std::string& directory,
                                        const std::string& unfinished, const RunSnapshot& run,
                                        std::vector<CheckpointFile> parts) {
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
  return put_in_place(files, directory, unfinished, run.state.step, write());
}

Status prune_checkpoints(CheckpointFiles& files, const std::string& directory, int keep) {
  BF_TRY(remove_leftovers(files, directory));
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

}  // namespace butterfly
