// A file as read-only memory. Thread-safe after opening; the bytes live as long as the object.
// Model files are written beside their final name and renamed, so ours never change under a reader. Of one that another
// program writes into, the bytes here change too: unchanged() notices it afterwards. One that gets shorter ends this
// process (SIGBUS), with a sentence where explain_lost_pages() was called.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"

namespace butterfly {

/// So much is on its way while a weight is computed with: more than a fast disk brings in that time.
constexpr std::size_t kReadBehindBytes = 64 << 20;

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

  /// Lets the system begin to read `bytes` behind `part`, which are wanted soon. A part that lies elsewhere is ignored.
  void read_behind(ByteSpan part, std::size_t bytes) const;

  /// Lets the system begin to read all of it.
  void read_ahead() const;

  /// Errors: kBadData where the file has another size or another time of its last change than when it was opened, with
  /// both. Renaming, linking or deleting it changes no byte of it and is no error.
  Status unchanged() const;

 private:
  MappedFile(std::string path, ByteSpan bytes) : path_(std::move(path)), bytes_(bytes) {}
  void begin_to_read(std::uintptr_t first, std::uintptr_t last) const;

  std::string path_;
  ByteSpan bytes_;
  mutable std::atomic<std::uintptr_t> begun_to_read_{0};  // up to this address
};

/// The same for every file that is mapped in this process and is `path` or lies below it.
Status files_unchanged(const std::string& path);

/// For programs, once: where the pages of a mapped file are gone, the process ends with a sentence on stderr and
/// `exit_code` instead of SIGBUS. Other causes of that signal end it as before.
void explain_lost_pages(int exit_code);

}  // namespace butterfly
