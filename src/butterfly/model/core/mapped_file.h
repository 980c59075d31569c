// A file as read-only memory. Thread-safe after opening; the bytes live as long as the object.
// A file that another program shortens while it is mapped ends this process (SIGBUS): model files are written
// beside their final name and renamed, so ours never shrink.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"

namespace butterfly {

class MappedFile {
 public:
  /// Errors: kNotFound; kIo naming the path and the system's reason; kBadData for an empty file or no regular file.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  ByteSpan bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

  /// Lets the system drop the whole pages inside `part`; they are read again when touched. A part that lies
  /// elsewhere is ignored.
  void drop(ByteSpan part) const;

 private:
  MappedFile(std::string path, ByteSpan bytes) : path_(std::move(path)), bytes_(bytes) {}
  std::string path_;
  ByteSpan bytes_;
};

}  // namespace butterfly
