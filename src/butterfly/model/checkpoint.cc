#include "butterfly/model/checkpoint.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "butterfly/model/gguf_weights.h"
#include "butterfly/model/hugging_face.h"

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
    files.push_back({.path = path});
  }
  for (ContentFile& file : files) {
    file.size = fs::file_size(file.path, error);
    if (error) return make_error(ErrorCode::kIo, "{}: cannot be examined: {}", file.path, error.message());
  }
  return files;
}

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    ok_ = EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1;
  }

  void add(ByteSpan bytes) { ok_ = ok_ && EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1; }

  Status add_file(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return make_error(ErrorCode::kIo, "{}: cannot be opened: {}", path, std::strerror(errno));
    std::vector<std::byte> buffer(1 << 20);
    ssize_t got = 0;
    while ((got = ::read(file, buffer.data(), buffer.size())) > 0) {
      add(ByteSpan(buffer.data(), static_cast<std::size_t>(got)));
    }
    const int reason = errno;
    ::close(file);
    if (got < 0) return make_error(ErrorCode::kIo, "{}: cannot be read: {}", path, std::strerror(reason));
    return {};
  }

  Result<std::string> finish() {
    unsigned char digest[32];
    unsigned int length = 0;
    ok_ = ok_ && EVP_DigestFinal_ex(context_.get(), digest, &length) == 1 && length == sizeof(digest);
    if (!ok_) return make_error(ErrorCode::kUnsupported, "OpenSSL offers no SHA-256");
    std::string text;
    for (unsigned char byte : digest) text += fmt::format("{:02x}", byte);
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
  bool ok_ = false;
};

}  // namespace

Result<Checkpoint> open_checkpoint(const std::string& path, const OpenOptions& options) {
  std::error_code error;
  if (fs::is_directory(path, error)) return open_hugging_face(path, options);
  BF_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  return open_gguf(std::move(file), options);
}

Result<std::string> content_hash(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const auto files, content_files(path));
  Sha256 hash;
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
