#include "butterfly/model/files/file_stamp.h"

#include <fmt/format.h>
#include <sys/stat.h>

namespace butterfly {

// Other than its size and the time of its content, the time of its inode is not for its owner to set.
std::string file_stamp(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return "gone";
  return fmt::format("{}:{}:{}:{}.{:09}:{}.{:09}", about.st_dev, about.st_ino, about.st_size, about.st_mtim.tv_sec,
                     about.st_mtim.tv_nsec, about.st_ctim.tv_sec, about.st_ctim.tv_nsec);
}

}  // namespace butterfly
