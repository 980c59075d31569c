// A whole file as text or bytes. A plain function, thread-safe.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include "butterfly/base/result.h"

namespace butterfly {

struct ReadFileOptions {
  std::size_t bytes_max = std::numeric_limits<std::size_t>::max();
  std::string_view what = "a file";  // "a cluster file", for messages
};

/// Pipes are read to their end. Errors: kNotFound; kIo; kBadData for a directory, or more than bytes_max bytes.
Result<std::string> read_file(const std::string& path, const ReadFileOptions& options = {});

}  // namespace butterfly
