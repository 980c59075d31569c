// A whole file as a string. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "butterfly/base/descriptor.h"
#include "butterfly/base/result.h"

namespace butterfly {

/// For a file whose size is its owner's business.
inline constexpr std::size_t kAnySize = SIZE_MAX;

/// Also of files whose size is not known before: pipes, and those of /proc. Errors, each naming the path: kNotFound;
/// kIo with the system's reason; kBadData for a directory, or more than `bytes_max`.
Result<std::string> read_file(const std::string& path, std::size_t bytes_max);

/// From where `file` stands to its end; `path` is its name in errors. Errors: as above.
Result<std::string> read_to_end(const Descriptor& file, const std::string& path, std::size_t bytes_max);

}  // namespace butterfly
