// Memory that processes of one user on one host share. It never has a name in a file system: its descriptor travels
// over a socket between the processes, so nothing is left of it when the last of them is gone, however that went.
// A SharedMemory owns its mapping; an offer and a request own a socket. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "butterfly/base/bytes.h"
#include "butterfly/wire/socket.h"

namespace butterfly {

class SharedMemory {
 public:
  /// Zeroed, of a size that nobody can change any more. Errors: kNoMemory, kIo.
  static Result<SharedMemory> create(std::size_t bytes);

  /// What another process created. Errors: kProtocol for one of another size or whose size may change, kIo.
  static Result<SharedMemory> adopt(Fd descriptor, std::size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  MutableByteSpan bytes() const { return bytes_; }
  const Fd& descriptor() const { return descriptor_; }

 private:
  SharedMemory(Fd descriptor, MutableByteSpan bytes) : descriptor_(std::move(descriptor)), bytes_(bytes) {}
  static Result<SharedMemory> map(Fd descriptor, std::size_t bytes);

  Fd descriptor_;
  MutableByteSpan bytes_;
};

/// Which processes can share memory: those of one boot of one kernel, one network namespace (two namespaces are two
/// hosts to the wire, so that an emulated link is not passed by) and one user. Empty: unknown.
std::string sharing_scope();

/// Gives a segment to processes that know the name of the offer, which is a secret of 128 bits.
class SegmentOffer {
 public:
  /// Errors: kIo.
  static Result<SegmentOffer> create();

  const std::string& name() const { return name_; }

  /// To `count` processes of this user, each of which has connected already. Errors: kTimeout, kIo.
  Status hand_out(const SharedMemory& memory, int count, Deadline deadline) const;

 private:
  SegmentOffer(Fd socket, std::string name) : socket_(std::move(socket)), name_(std::move(name)) {}
  Fd socket_;
  std::string name_;
};

class SegmentRequest {
 public:
  /// Errors: kUnavailable (there is no such offer where this process can see it), kIo.
  static Result<SegmentRequest> connect(const std::string& name);

  /// Errors: kUnavailable (the offer is gone), kTimeout, kIo, those of SharedMemory::adopt().
  Result<SharedMemory> take(std::size_t bytes, Deadline deadline) const;

 private:
  explicit SegmentRequest(Fd socket) : socket_(std::move(socket)) {}
  Fd socket_;
};

}  // namespace butterfly
