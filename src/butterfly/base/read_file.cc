#include "butterfly/base/read_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace butterfly {

Result<std::string> read_file(const std::string& path, const ReadFileOptions& options) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return make_error(ErrorCode::kBadData, "{}: is a directory, expected {}", path, options.what);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return make_error(ErrorCode::kNotFound, "{}: there is no such file, or it cannot be opened", path);
  constexpr std::size_t kPieceBytes = 1 << 20;
  std::string text;
  while (file) {
    const std::size_t before = text.size();
    text.resize(before + kPieceBytes);
    file.read(text.data() + before, static_cast<std::streamsize>(kPieceBytes));
    text.resize(before + static_cast<std::size_t>(file.gcount()));
    if (file.bad()) return make_error(ErrorCode::kIo, "{}: cannot be read beyond {} bytes", path, text.size());
    if (text.size() > options.bytes_max) {
      return make_error(ErrorCode::kBadData, "{}: is longer than {} bytes", path, options.bytes_max);
    }
  }
  return text;
}

}  // namespace butterfly
