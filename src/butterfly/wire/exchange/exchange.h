// What the members of a tensor group do between two matmuls: each gives every other one some bytes and gets some
// from it. The members call in the same order with sizes that agree. Used by one thread of each member at a time.
#pragma once

#include <cstdint>
#include <span>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"

namespace butterfly {

/// Whether members that are processes of one host may reach each other through memory.
enum class SharedMemoryUse : std::uint8_t { kAllowed, kForbidden };

class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual int rank() const = 0;  // of this member, in [0, size())
  virtual int size() const = 0;

  /// Sends to[r] to member r and fills from[r] with what member r sent here, for every r but rank(), whose two entries
  /// are not looked at; empty ones move nothing. `to` may be used again on return. Errors: kUnavailable (a member is
  /// gone, or abort() was called), kTimeout, kProtocol (sizes that disagree); the exchange is of no use afterwards.
  virtual Status exchange(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) = 0;

  /// Wakes and fails everyone who waits, here and at the other members. Idempotent, from any thread.
  virtual void abort() = 0;
};

}  // namespace butterfly
