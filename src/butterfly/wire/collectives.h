// Collective operations over bytes among the members of an epoch: each has a channel to every other. A reduce function
// makes sums of what only its caller understands. Blocking, one at a time for each Collectives; abort() from any
// thread. The bits of the canonical sum do not depend on the number of members; rings' do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/wire/channel.h"

namespace butterfly {

/// into[i] = into[i] + from[i], both of the same size, a multiple of the element's.
using ReduceFunction = std::function<void(MutableByteSpan into, ByteSpan from)>;

enum class AllReduceAlgorithm : std::uint8_t {
  kAuto,              // by size and members
  kDirect,            // everyone to everyone: for a few KiB
  kRing,              // reduce-scatter and all-gather in rings: bandwidth
  kRecursiveHalving,  // halves exchanged with partners at distances n/2, n/4, ...: few steps
};

struct CollectiveStats {
  std::uint64_t operations = 0;
  std::uint64_t bytes_sent = 0;  // payloads
  std::uint64_t wait_ns = 0;     // inside calls
};

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Every member ends with the reduction of all. `element_bytes` divides data.size() and every cut.
  virtual Status all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                            AllReduceAlgorithm algorithm) = 0;

  /// parts[r] of every member to member r's result: `mine` has room for size() pieces of my part, in rank order, for
  /// the caller to sum in its own order (canonical sums). Sizes may differ by member but agree on both sides.
  virtual Status all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) = 0;

  /// parts[r] is filled with what member r has in its own parts[r].
  virtual Status all_gather(std::span<const MutableByteSpan> parts) = 0;

  /// data of `root` to all.
  virtual Status broadcast(MutableByteSpan data, int root) = 0;

  virtual Status barrier() = 0;
  virtual CollectiveStats stats() const = 0;

  /// Wakes and fails everyone who waits.
  virtual void abort() = 0;
};

struct CollectivesOptions {
  Epoch epoch{};
  std::chrono::milliseconds member_timeout{60'000};
  std::uint64_t piece_bytes = 256 * 1024;  // of a pipelined transfer
};

/// One channel for each member, nothing for `rank` itself; shared with whoever ends the epoch by closing them.
std::unique_ptr<Collectives> make_collectives(int rank, std::vector<std::shared_ptr<Channel>> members,
                                              const CollectivesOptions& options);

/// Members as threads of this process over inproc channels; the i-th has rank i.
std::vector<std::unique_ptr<Collectives>> make_inproc_collectives(int members);

}  // namespace butterfly
