// One run at a time in a checkpoint folder: two would remove and replace each other's files. The lock is the system's,
// on a file in the folder, so it ends with the process however that ends. Not thread-safe.
#pragma once

#include <string>

#include "butterfly/base/descriptor.h"
#include "butterfly/base/result.h"

namespace butterfly {

class RunLock {
 public:
  /// Makes the folder where it is missing. Waits a second for a run that is about to end. Errors: kInvalidArgument
  /// naming the folder and the process that has it; kIo.
  static Result<RunLock> take(const std::string& directory);

  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;
  ~RunLock();

 private:
  RunLock(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  void release();

  std::string path_;
  Descriptor file_;
};

}  // namespace butterfly
