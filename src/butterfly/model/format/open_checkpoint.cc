#include "butterfly/model/format/open_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "butterfly/base/hash/digest.h"
#include "butterfly/model/files/file_stamp.h"
#include "butterfly/model/format/gguf/gguf_shards.h"
#include "butterfly/model/format/gguf/gguf_weights.h"
#include "butterfly/model/format/hugging_face/hugging_face.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

struct ContentFile {
  std::string path{};
  std::string name{};
  std::uint64_t size = 0;
};

/// The files that make the content of a model, in name order.
Result<std::vector<ContentFile>> content_files(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    return make_error(ErrorCode::kNotFound, "{}: there is no such file", path);
  if (error) return make_error(ErrorCode::kIo, "{}: cannot be examined: {}", path, error.message());
  std::vector<ContentFile> files;
  if (fs::is_directory(status)) {
    fs::directory_iterator entry(path, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      const fs::path& file = entry->path();
      if (file.filename() != "config.json" && file.extension() != ".safetensors") continue;
      files.push_back({.path = file.string(), .name = file.filename().string()});
    }
    if (error) return make_error(ErrorCode::kIo, "{}: cannot be listed: {}", path, error.message());
    std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    if (files.empty()) {
      return make_error(ErrorCode::kNotFound, "{}: has neither config.json nor *.safetensors", path);
    }
  } else {
    const std::vector<std::string> parts = gguf_shards(path);
    for (const std::string& part : parts) {
      files.push_back({.path = part, .name = parts.size() > 1 ? fs::path(part).filename().string() : ""});
    }
  }
  for (ContentFile& file : files) {
    file.size = fs::file_size(file.path, error);
    if (error) return make_error(ErrorCode::kIo, "{}: cannot be examined: {}", file.path, error.message());
  }
  return files;
}

}  // namespace

namespace {

Result<Checkpoint> open_files(const std::string& path, const OpenOptions& options) {
  std::error_code error;
  if (fs::is_directory(path, error)) return open_hugging_face(path, options);
  BF_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  return open_gguf(std::move(file), options);
}

/// Of the files that content_hash reads; empty where they cannot be examined.
std::string content_stamp(const std::string& path) {
  std::string stamp;
  for (const std::string& part : content_paths(path).value_or(std::vector<std::string>())) {
    stamp += fmt::format("{} ", file_stamp(part));
  }
  return stamp;
}

}  // namespace

Result<Checkpoint> open_checkpoint(const std::string& path, const OpenOptions& options) {
  std::string stamp = content_stamp(path);  // first: of a file that takes its place meanwhile it says nothing
  BF_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_files(path, options));
  checkpoint.stamp = std::move(stamp);
  return checkpoint;
}

Status checkpoint_unchanged(const std::string& path) {
  for (const std::string& part : gguf_shards(path)) BF_TRY(files_unchanged(part));
  return {};
}

Result<std::vector<std::string>> content_paths(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const auto files, content_files(path));
  std::vector<std::string> paths;
  for (const ContentFile& file : files) paths.push_back(file.path);
  return paths;
}

Result<std::string> content_hash(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const auto files, content_files(path));
  Sha256Hasher hash;
  for (const ContentFile& file : files) {
    if (!file.name.empty()) {
      // Names and sizes between the contents: bytes cannot move from one file to the next unnoticed.
      const std::string header = fmt::format("{}\n{}\n", file.name, file.size);
      hash.add(as_bytes(header));
    }
    BF_TRY(hash.add_file(file.path));
  }
  return hash.finish();
}

Result<std::uint64_t> content_bytes(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const auto files, content_files(path));
  std::uint64_t total = 0;
  for (const ContentFile& file : files) total += file.size;
  return total;
}

}  // namespace butterfly
