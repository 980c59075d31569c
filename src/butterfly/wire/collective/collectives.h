// Collective operations over bytes among the members of an epoch: each has a channel to every other, or all are threads
// of one process; members who are processes of one host can read each other's memory. A reduce function makes sums of
// what only its caller understands. Blocking; one operation at a time for each Collectives, on any thread; abort() and
// stats() from any thread. All members call the same operations in the same order. The bits of sums over all_to_all()
// and of kDirect do not depend on how bytes travel; the others' do.
//
// Errors of every operation: kUnavailable (a member is gone, or abort() was called), kTimeout, kProtocol (sizes,
// operations or epochs that disagree). All are reasons to end the epoch: the first one wakes and fails all members, the
// Collectives are of no use afterwards, and what was to be received is undefined. Besides, kNoMemory and kIo.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/range.h"
#include "butterfly/base/result.h"
#include "butterfly/wire/channel/channel.h"
#include "butterfly/wire/exchange/exchange.h"

namespace butterfly {

/// into[i] = into[i] + from[i], both of the same size, a multiple of the element's. Commutative to the bit, so that
/// members who add the same two values get the same; called by the threads of several members at once.
using ReduceFunction = std::function<void(MutableByteSpan into, ByteSpan from)>;

enum class AllReduceAlgorithm : std::uint8_t {
  kAuto,              // by size and members: choose_all_reduce()
  kDirect,            // everyone to everyone, added in the order of ranks: for a few KiB
  kRing,              // reduce-scatter and all-gather in rings: bandwidth
  kRecursiveHalving,  // halves exchanged with partners at distances n/2, n/4, ...: few steps
};

/// A range of elements.
using ElementRange = Range<std::uint64_t>;

/// "auto", "direct", "ring", "halving".
std::string_view to_string(AllReduceAlgorithm algorithm);

/// What kAuto is over channels. The borders are where `butterfly bench collectives --engine tcp` sees the times of two
/// algorithms cross; loopback and Ethernet are alike in what matters here, the price of a message.
AllReduceAlgorithm choose_all_reduce(int members, std::uint64_t bytes);

struct CollectiveStats {
  std::uint64_t operations = 0;
  std::uint64_t bytes_sent = 0;  // payloads; between threads and in shared memory, what others read of this member's
  std::uint64_t wait_ns = 0;     // inside calls
};

/// What other processes may read where it lies: all of a SharedMemory.
struct ReadableMemory {
  MutableByteSpan bytes{};
  int descriptor = -1;  // -1: nobody else's
};

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Every member ends with the reduction of all, the same bits everywhere. `element_bytes` divides data.size() and
  /// every cut. Between threads the algorithms are one: sums are taken where the data lie.
  virtual Status all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                            AllReduceAlgorithm algorithm) = 0;

  /// What all_reduce() of `bytes` bytes shall add to stats().bytes_sent, by the textbook's formula (S bytes, n
  /// members): ring 2 (n-1)/n S, direct (n-1) S. Off by two elements at most where n does not divide their number.
  virtual std::uint64_t all_reduce_bytes(std::uint64_t bytes, AllReduceAlgorithm algorithm) const = 0;

  /// parts[r] of every member to member r's result: `mine` has room for size() pieces of my part, in rank order, for
  /// the caller to sum in its own order (canonical sums). Sizes may differ by member but agree on both sides. The
  /// member's own piece is copied too, unless mine[rank()] is empty or is parts[rank()] itself.
  virtual Status all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) = 0;

  /// parts[r] is filled with what member r has in its own parts[r].
  virtual Status all_gather(std::span<const MutableByteSpan> parts) = 0;

  /// data of `root` to all.
  virtual Status broadcast(MutableByteSpan data, int root) = 0;

  /// To one member, besides what all do together: it receives what was sent with the same label, in whatever order
  /// others come; a label is used again once it was received. `data` is the caller's again on return, and nobody is
  /// waited for. Errors: also kUnsupported, of Collectives that have operations of all alone.
  virtual Status send(int to, std::uint64_t label, ByteSpan data);
  /// Waits for it. `data` is as large as what was sent.
  virtual Status receive(int from, std::uint64_t label, MutableByteSpan data);

  /// Called by all members at once, at most once. From here on exchanges between members that are processes of one
  /// host go through memory, where it may be shared; and where all members are such processes, large operations on data
  /// in `memory` read it where it lies: the same bits either way. The memory outlives the Collectives' operations.
  /// Whether it is read; between threads nothing has to.
  virtual Result<bool> share_memory(const ReadableMemory& /*memory*/) { return false; }
  /// What share_memory() said.
  virtual bool reads_memory() const { return false; }

  /// Returns when all members have called it.
  virtual Status barrier() = 0;
  virtual CollectiveStats stats() const = 0;

  /// Wakes and fails everyone who waits, here and at the other members. Idempotent.
  virtual void abort() = 0;
};

struct CollectivesOptions {
  Epoch epoch{};                                              // messages of another are refused
  std::chrono::milliseconds member_timeout{60'000};           // for a member's next bytes
  std::uint64_t piece_bytes = 128 * 1024;                     // of a pipelined transfer
  SharedMemoryUse shared_memory = SharedMemoryUse::kAllowed;  // share_memory()
};

/// One channel for each member, nothing for `rank` itself; shared with the thread that closes them to end the epoch.
std::unique_ptr<Collectives> make_collectives(int rank, std::vector<std::shared_ptr<Channel>> members,
                                              const CollectivesOptions& options);

/// Members as threads of this process, who read each other's memory; the i-th has rank i. One that dies aborts.
std::vector<std::unique_ptr<Collectives>> make_inproc_collectives(int members, const CollectivesOptions& options = {});

}  // namespace butterfly
