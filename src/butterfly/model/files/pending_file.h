// A file that takes its name only when all of it is on disk: until then, and on every error, there is a temporary
// beside it that goes away with the object. Not thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "butterfly/base/descriptor.h"
#include "butterfly/base/result.h"

namespace butterfly {

class PendingFile {
 public:
  explicit PendingFile(std::string path) : path_(std::move(path)) {}
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile() { discard(); }

  /// Errors: kInvalidArgument where the path is something else than a file; kIo naming the path and the system's
  /// reason, here and below.
  Status open();
  Status write(const char* data, std::size_t size);
  /// Bytes that were written before, from `offset` on, anew.
  Status overwrite(std::size_t offset, const char* data, std::size_t size);
  /// Syncs and gives the file its name.
  Status commit();

 private:
  tl::unexpected<Error> fail(const char* what);
  void discard();

  std::string path_;
  std::string temporary_;
  Descriptor file_;
};

}  // namespace butterfly
