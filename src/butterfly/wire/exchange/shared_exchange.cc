#include "butterfly/wire/exchange/shared_exchange.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/base/futex.h"
#include "butterfly/machine/topology.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/spin.h"

namespace butterfly {
namespace {

#ifdef BUTTERFLY_TINY
constexpr std::size_t kRingBytesMin = 64, kRingBytesMax = 64;  // every transfer goes round and round
#else
constexpr std::size_t kRingBytesMin = 64 * 1024;   // a decode step's exchange fits
constexpr std::size_t kRingBytesMax = 512 * 1024;  // members who exchange a prompt's rows take turns less often
#endif
constexpr std::size_t kRingBytesTotal = std::size_t{8} << 20;  // of all members together, where many share a host
constexpr std::int64_t kBrokenPeerMs = 5;                      // how soon a sleeper notices a broken peer

/// In front of the bytes of each transfer.
struct TransferHeader {
  std::uint64_t sequence = 0, bytes = 0;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "a lock cannot be shared between processes");

std::size_t ring_bytes_of(int members) {
  const auto rings = static_cast<std::size_t>(std::max(members * (members - 1), 1));
  return std::clamp(std::bit_floor(kRingBytesTotal / rings), kRingBytesMin, kRingBytesMax);
}

/// How often a bell rang is counted modulo 2^32.
bool reached(std::uint32_t rings, std::uint32_t wanted) {
  return static_cast<std::int32_t>(rings - wanted) >= 0;
}

}  // namespace

struct alignas(64) SharedExchange::Bell {
  static constexpr std::uint64_t kAsleep = std::uint64_t{1} << 32;
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint64_t> sleeper;  // 0: nobody; else kAsleep and, below it, the ring that the owner waits for
  alignas(64) CpuSet cpus;             // of the owner, written before cpus_known
  alignas(64) std::atomic<std::uint32_t> cpus_known;
};

/// One direction between two members. The counts only grow; written - read of the bytes behind them are in the ring.
struct SharedExchange::Ring {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};

/// A header and bytes on their way into or out of a ring.
struct SharedExchange::Transfer {
  TransferHeader header{};
  MutableByteSpan bytes{};
  std::size_t moved = 0;  // of both
  bool complete() const { return bytes.empty() || moved == sizeof(header) + bytes.size(); }
  /// Where the next byte is, and those that follow it there.
  MutableByteSpan rest() {
    if (moved < sizeof(header)) return std::as_writable_bytes(std::span(&header, 1)).subspan(moved);
    return bytes.subspan(moved - sizeof(header));
  }
};

std::size_t SharedExchange::segment_bytes(int members) {
  const auto count = static_cast<std::size_t>(members);
  return count * sizeof(Bell) + count * count * (sizeof(Ring) + ring_bytes_of(members));
}

SharedExchange::SharedExchange(int rank, SharedMemory memory, std::vector<std::shared_ptr<Channel>> peers,
                               const SharedExchangeOptions& options)
    : rank_(rank),
      memory_(std::move(memory)),
      peers_(std::move(peers)),
      options_(options),
      ring_bytes_(ring_bytes_of(static_cast<int>(peers_.size()))),
      outgoing_(peers_.size()),
      incoming_(peers_.size()) {
  BF_CHECK(rank >= 0 && rank < size() && memory_.bytes().size() == segment_bytes(size()), "a segment of another group");
  bell(rank).cpus = usable_cpus();
  bell(rank).cpus_known.store(1, std::memory_order_release);
}

SharedExchange::~SharedExchange() = default;

SharedExchange::Bell& SharedExchange::bell(int member) const {
  return reinterpret_cast<Bell*>(memory_.bytes().data())[member];
}

SharedExchange::Ring& SharedExchange::ring_between(int sender, int receiver) const {
  const auto members = static_cast<std::size_t>(size());
  const std::size_t number = static_cast<std::size_t>(sender) * members + static_cast<std::size_t>(receiver);
  std::byte* at = memory_.bytes().data() + members * sizeof(Bell) + number * (sizeof(Ring) + ring_bytes_);
  return *reinterpret_cast<Ring*>(at);
}

Status SharedExchange::exchange(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) {
  BF_CHECK(to.size() == outgoing_.size() && from.size() == incoming_.size(), "one buffer for each member");
  ++sequence_;
  for (std::size_t member = 0; member < to.size(); ++member) {
    outgoing_[member] = incoming_[member] = {};
    if (static_cast<int>(member) == rank_) continue;
    // Outgoing bytes are only read.
    outgoing_[member].bytes = {const_cast<std::byte*>(to[member].data()), to[member].size()};
    outgoing_[member].header = {.sequence = sequence_, .bytes = to[member].size()};
    incoming_[member].bytes = from[member];
  }
  const auto complete = [](const Transfer& transfer) { return transfer.complete(); };
  Deadline deadline = std::chrono::steady_clock::now() + options_.member_timeout;
  for (;;) {
    if (aborted_) return make_error(ErrorCode::kUnavailable, "the exchange was aborted");
    const std::uint32_t seen = bell(rank_).rings.load();  // before looking: what comes later rings again
    auto moved = move_all();
    if (moved && std::ranges::all_of(outgoing_, complete) && std::ranges::all_of(incoming_, complete)) return {};
    Status status = moved ? Status{} : tl::unexpected(moved.error());
    if (status && *moved) deadline = std::chrono::steady_clock::now() + options_.member_timeout;
    if (status && !*moved) status = wait_for_bell(seen, deadline);
    if (status) continue;
    abort();
    return status;
  }
}

Result<bool> SharedExchange::move_all() {
  bool moved = false;
  for (int i = 1; i < size(); ++i) {
    const int next = (rank_ + i) % size();
    BF_ASSIGN_OR_RETURN(const bool pushed, push(next, outgoing_[static_cast<std::size_t>(next)]));
    moved = moved || pushed;
  }
  for (int i = 1; i < size(); ++i) {
    const int before = (rank_ + size() - i) % size();
    BF_ASSIGN_OR_RETURN(const bool pulled, pull(before, incoming_[static_cast<std::size_t>(before)]));
    moved = moved || pulled;
  }
  return moved;
}

Result<bool> SharedExchange::push(int member, Transfer& transfer) {
  if (transfer.complete()) return false;
  Ring& ring = ring_between(rank_, member);
  std::uint64_t written = ring.written.load(std::memory_order_relaxed);  // ours
  const std::uint64_t filled = written - ring.read.load(std::memory_order_acquire);
  if (filled > ring_bytes_) {
    return make_error(ErrorCode::kProtocol, "member {} says it read {} bytes more than there were", member,
                      ~filled + 1);
  }
  std::size_t room = ring_bytes_ - filled;
  const std::size_t before = transfer.moved;
  while (room > 0 && !transfer.complete()) {
    const MutableByteSpan rest = transfer.rest();
    const std::size_t at = written % ring_bytes_;
    const std::size_t bytes = std::min({rest.size(), room, ring_bytes_ - at});
    std::memcpy(ring.data() + at, rest.data(), bytes);
    written += bytes;
    room -= bytes;
    transfer.moved += bytes;
  }
  if (transfer.moved == before) return false;
  ring.written.store(written, std::memory_order_release);
  ring_bell(member);
  bytes_sent_.fetch_add(transfer.moved - before, std::memory_order_relaxed);
  return true;
}

Result<bool> SharedExchange::pull(int member, Transfer& transfer) {
  if (transfer.complete()) return false;
  Ring& ring = ring_between(member, rank_);
  std::uint64_t read = ring.read.load(std::memory_order_relaxed);  // ours
  std::uint64_t filled = ring.written.load(std::memory_order_acquire) - read;
  if (filled > ring_bytes_) {
    return make_error(ErrorCode::kProtocol, "member {} says that {} bytes are in a ring of {}", member, filled,
                      ring_bytes_);
  }
  const std::size_t before = transfer.moved;
  while (filled > 0 && !transfer.complete()) {
    const MutableByteSpan rest = transfer.rest();
    const std::size_t at = read % ring_bytes_;
    const std::size_t bytes = std::min({rest.size(), static_cast<std::size_t>(filled), ring_bytes_ - at});
    std::memcpy(rest.data(), ring.data() + at, bytes);
    read += bytes;
    filled -= bytes;
    transfer.moved += bytes;
    if (transfer.moved != sizeof(TransferHeader)) continue;
    if (transfer.header.sequence != sequence_ || transfer.header.bytes != transfer.bytes.size()) {
      return make_error(ErrorCode::kProtocol, "member {} sent {} bytes in exchange {}, {} were due in exchange {}",
                        member, transfer.header.bytes, transfer.header.sequence, transfer.bytes.size(), sequence_);
    }
  }
  if (transfer.moved == before) return false;
  ring.read.store(read, std::memory_order_release);
  // Only a sender who may be waiting for room is told.
  if (!transfer.complete() || transfer.moved > ring_bytes_) ring_bell(member);
  return true;
}

void SharedExchange::ring_bell(int member, std::uint32_t times) const {
  Bell& theirs = bell(member);
  const std::uint32_t rings = theirs.rings.fetch_add(times) + times;
  const std::uint64_t sleeper = theirs.sleeper.load();
  if (sleeper != 0 && reached(rings, static_cast<std::uint32_t>(sleeper))) {
    futex_wake(theirs.rings, FutexScope::kMachine);
  }
}

/// How often the bell will at least ring before this member can be done: once for each member who still has something
/// to give. A sleeper who is woken for each of them costs the others a core each time, where cores are few.
std::uint32_t SharedExchange::rings_to_come() const {
  const auto incomplete = [](const Transfer& transfer) { return !transfer.complete(); };
  if (std::ranges::any_of(outgoing_, incomplete)) return 1;  // the member that makes room
  return static_cast<std::uint32_t>(std::ranges::count_if(incoming_, incomplete));
}

/// Whether all members can run at once. Each may be tied to a CPU of its own, as batch systems do, so what this process
/// may use says little; but where a quota leaves it less than that, it counts.
bool SharedExchange::may_spin() {
  if (may_spin_) return *may_spin_;
  std::vector<CpuSet> cpus;
  for (int member = 0; member < size(); ++member) {
    if (bell(member).cpus_known.load(std::memory_order_acquire) == 0) return false;
    cpus.push_back(bell(member).cpus);
  }
  const bool quota = static_cast<std::size_t>(usable_threads()) < usable_cpus().count();
  may_spin_ = can_run_at_once(cpus) && (!quota || size() <= usable_threads());
  return *may_spin_;
}

Status SharedExchange::wait_for_bell(std::uint32_t seen, Deadline deadline) {
  const trace::Scope scope(trace::Zone::kWaitMembers);
  Bell& mine = bell(rank_);
  const auto spin_until = std::min(deadline, std::chrono::steady_clock::now() + options_.spin);
  while (may_spin() && std::chrono::steady_clock::now() < spin_until) {
    relax_cpu();
    if (mine.rings.load(std::memory_order_acquire) != seen) return {};
  }
  // Raised before the bell is looked at again: who rings afterwards sees it, or is seen.
  const std::uint32_t wanted = seen + rings_to_come();
  mine.sleeper.store(Bell::kAsleep | wanted);
  Status status;
  for (std::uint32_t rings = mine.rings.load(); status && !reached(rings, wanted); rings = mine.rings.load()) {
    futex_wait(mine.rings, rings, std::chrono::milliseconds(kBrokenPeerMs), FutexScope::kMachine);
    if (mine.rings.load() != rings) continue;
    status = check_members(deadline);
    if (mine.rings.load() != seen) break;  // one member came, and another one does not
  }
  mine.sleeper.store(0);
  return status;
}

Status SharedExchange::check_members(Deadline deadline) const {
  if (aborted_) return make_error(ErrorCode::kUnavailable, "the exchange was aborted");
  const bool late = std::chrono::steady_clock::now() >= deadline;
  for (std::size_t member = 0; member < peers_.size(); ++member) {
    if (static_cast<int>(member) == rank_) continue;
    // One that has gone after its last exchange is missed by those who still wait for something from it.
    if (incoming_[member].complete() && outgoing_[member].complete()) continue;
    if (peers_[member]->broken()) {
      return make_error(ErrorCode::kUnavailable, "{} went away during an exchange through shared memory",
                        peers_[member]->peer());
    }
    if (late) {
      return make_error(ErrorCode::kTimeout, "nothing came from {} through shared memory within {} ms",
                        peers_[member]->peer(), options_.member_timeout.count());
    }
  }
  return {};
}

void SharedExchange::abort() {
  aborted_ = true;
  for (const auto& peer : peers_) {
    if (peer) peer->close();
  }
  // As often as anybody can wait for.
  for (int member = 0; member < size(); ++member) ring_bell(member, static_cast<std::uint32_t>(size()));
}

}  // namespace butterfly
