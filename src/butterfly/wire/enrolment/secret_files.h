// Files that hold secrets: made for their owner alone, replaced as a whole, refused when others could have read them.
// Plain functions; FolderLock keeps two processes from changing one folder at once.
#pragma once

#include <string>

#include "butterfly/wire/channel/socket.h"

namespace butterfly {

enum class FileAccess { kOwnerOnly, kEveryone };

/// Makes the folder (0700) and what is missing above it. Errors: kIo.
Status make_secret_folder(const std::string& folder);

inline constexpr std::size_t kFileBytesMax = std::size_t{1} << 20;

/// Errors: kNotFound, kIo, kBadData (larger than `bytes_max`), kInvalidArgument when it must be the owner's alone
/// (0600) and is not.
Result<std::string> read_file(const std::string& path, FileAccess access, std::size_t bytes_max = kFileBytesMax);

/// The old content or the new one, never half of it, also after a power failure. Errors: kIo.
Status write_file(const std::string& path, const std::string& content, FileAccess access);

class FolderLock {
 public:
  /// Waits for other processes of this program to finish. Errors: kIo, kTimeout.
  static Result<FolderLock> take(const std::string& folder);

 private:
  explicit FolderLock(Descriptor fd) : fd_(std::move(fd)) {}
  Descriptor fd_;
};

}  // namespace butterfly
