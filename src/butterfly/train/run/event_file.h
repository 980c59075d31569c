// TensorBoard's files of events, as far as numbers over steps need it: records of length, masked CRC-32C and a message
// of events.proto. For one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"

namespace butterfly {

/// The parts of the format, apart for tests.
std::uint32_t masked_crc32c(ByteSpan bytes);
std::string event_record(std::string_view event);

class EventFile {
 public:
  using Scalars = std::vector<std::pair<std::string_view, double>>;

  /// A new file in `directory`, which is made where it is missing. Errors: kIo.
  static Result<EventFile> create(const std::string& directory);

  /// One event with these values at `step`. Errors: kIo.
  Status add(std::int64_t step, const Scalars& scalars);
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  Status write(const std::string& event);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace butterfly
