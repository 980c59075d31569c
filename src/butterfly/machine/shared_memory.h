// Memory that processes of one host share: an anonymous file that never has a name in a file system, so nothing is left
// of it when the last process that has it is gone, however that went. Its size is sealed: who maps it can rely on every
// byte. Who else may map it is decided by who is given the descriptor. A movable owner; not thread-safe.
#pragma once

#include <cstdint>
#include <utility>

#include "butterfly/base/bytes.h"
#include "butterfly/base/descriptor.h"
#include "butterfly/base/result.h"

namespace butterfly {

class SharedMemory {
 public:
  SharedMemory() = default;  // none

  /// Zeroed and all there; on huge pages where it is large and the system has them. Errors: kNoMemory, kIo.
  static Result<SharedMemory> create(std::uint64_t bytes);

  /// What another process created; the descriptor belongs to the result, or is closed. Errors: kProtocol for one of
  /// another size or whose size may change, kIo.
  static Result<SharedMemory> adopt(int descriptor, std::uint64_t bytes);

  SharedMemory(SharedMemory&& other) noexcept
      : descriptor_(std::move(other.descriptor_)), bytes_(std::exchange(other.bytes_, {})) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMemory();

  MutableByteSpan bytes() const { return bytes_; }
  int descriptor() const { return descriptor_.get(); }  // -1: none

 private:
  explicit SharedMemory(int descriptor) : descriptor_(descriptor) {}
  Status map(std::uint64_t bytes);

  Descriptor descriptor_;
  MutableByteSpan bytes_;
};

}  // namespace butterfly
