// The operations on files that a checkpoint is made of, each of which a test can let fail. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"

namespace butterfly {

class CheckpointFiles {
 public:
  virtual ~CheckpointFiles() = default;

  /// With its parents; one that is there already is no error.
  virtual Status create_directory(const std::string& path) = 0;
  /// Creates the file; its bytes are on the disk on return.
  virtual Status write(const std::string& path, ByteSpan bytes) = 0;
  /// What was created in the directory is on the disk on return.
  virtual Status sync_directory(const std::string& path) = 0;
  /// `from` becomes `to` in one step; a directory `to` that is there becomes `from`.
  virtual Status replace(const std::string& from, const std::string& to) = 0;
  /// With all that is in it; nothing there is no error.
  virtual Status remove(const std::string& path) = 0;
};

/// Errors of each: kIo naming the path and the system's reason. A static object.
CheckpointFiles& disk_files();

}  // namespace butterfly
