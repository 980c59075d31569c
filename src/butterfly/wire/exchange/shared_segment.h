// How processes of one user on one host come to share memory (machine/shared_memory.h): its descriptor travels over a
// local socket between them, and never has a name in a file system. An offer and a request own a socket. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "butterfly/machine/shared_memory.h"
#include "butterfly/wire/channel/socket.h"

namespace butterfly {

/// Which processes can share memory: those of one boot of one kernel, one network namespace (two namespaces are two
/// hosts to the wire, so that an emulated link is not passed by) and one user. Empty: unknown.
std::string sharing_scope();

/// As members tell it to each other, padded with zeros.
inline constexpr std::size_t kSharingScopeBytes = 96;

/// Gives a segment to processes that know the name of the offer, which is a secret of 128 bits.
class SegmentOffer {
 public:
  /// Errors: kIo.
  static Result<SegmentOffer> create();

  const std::string& name() const { return name_; }

  /// The memory's descriptor to `count` processes of this user, each of which has connected already. Errors: kTimeout,
  /// kIo.
  Status hand_out(int descriptor, int count, Deadline deadline) const;

 private:
  SegmentOffer(Descriptor socket, std::string name) : socket_(std::move(socket)), name_(std::move(name)) {}
  Descriptor socket_;
  std::string name_;
};

class SegmentRequest {
 public:
  /// Errors: kUnavailable (there is no such offer where this process can see it), kIo.
  static Result<SegmentRequest> connect(const std::string& name);

  /// Errors: kUnavailable (the offer is gone), kTimeout, kIo, those of SharedMemory::adopt().
  Result<SharedMemory> take(std::size_t bytes, Deadline deadline) const;

 private:
  explicit SegmentRequest(Descriptor socket) : socket_(std::move(socket)) {}
  Descriptor socket_;
};

}  // namespace butterfly
