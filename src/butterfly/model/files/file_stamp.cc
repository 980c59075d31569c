#include "butterfly/model/files/file_stamp.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

namespace butterfly {

// Other than its size and the time of its content, the time of its inode is not for its owner to set.
std::string file_stamp(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return "gone";
  return fmt::format("{}:{}:{}:{}.{:09}:{}.{:09}", about.st_dev, about.st_ino, about.st_size, about.st_mtim.tv_sec,
                     about.st_mtim.tv_nsec, about.st_ctim.tv_sec, about.st_ctim.tv_nsec);
}

std::chrono::milliseconds until_stamp_settles(const std::string& path) {
  using std::chrono::milliseconds;
  constexpr milliseconds kStep{20};
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return kStep;
  const auto changed = std::chrono::seconds(about.st_ctim.tv_sec) + std::chrono::nanoseconds(about.st_ctim.tv_nsec);
  const auto age = std::chrono::system_clock::now().time_since_epoch() - changed;
  if (age < milliseconds(0)) return kStep;  // the clock was set back
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(kStep - age));
}

}  // namespace butterfly
