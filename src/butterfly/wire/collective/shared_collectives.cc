#include "butterfly/wire/collective/shared_collectives.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "butterfly/base/check.h"
#include "butterfly/base/futex.h"
#include "butterfly/base/log.h"
#include "butterfly/machine/topology.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/spin.h"
#include "butterfly/wire/exchange/segment_passing.h"
#include "butterfly/wire/exchange/shared_segment.h"

namespace butterfly {
namespace {

constexpr std::chrono::microseconds kSharedSpin{50};
constexpr std::int64_t kBrokenMemberMs = 5;  // how soon a sleeper notices a broken peer
// What is added at a time: stays in the nearest cache while one member after the other is added to it.
constexpr std::size_t kAddedBytes = 16 * 1024;
constexpr std::uint64_t kElsewhere = UINT64_MAX;
constexpr std::array<std::string_view, 3> kSharedOperationNames{"all_reduce", "all_to_all", "barrier"};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "a lock cannot be shared between processes");

std::size_t lines(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// Part `member` of data that all divide alike: the first ones have an element more where they do not divide evenly.
ElementRange part_of(std::uint64_t elements, int member, int members) {
  const auto count = static_cast<std::uint64_t>(members);
  const auto border = [&](std::uint64_t i) { return elements / count * i + std::min(i, elements % count); };
  return {.begin = border(static_cast<std::uint64_t>(member)), .end = border(static_cast<std::uint64_t>(member) + 1)};
}

}  // namespace

std::chrono::microseconds spin_beside_computation(int members) {
  return 2 * members > usable_threads() ? std::chrono::microseconds(0) : kSharedSpin;
}

/// Bytes of a member's memory that another may read.
struct SharedCollectives::Place {
  std::atomic<std::uint64_t> begin;
  std::atomic<std::uint64_t> bytes;
};

/// What a member came for; a Place for each member follows it.
struct SharedCollectives::Call {
  std::atomic<std::uint64_t> operation;  // its number, and below it its kind
};

/// Written by its owner; two Calls follow it, of operations of even and odd numbers: a member has looked at the others'
/// calls before it comes to the next operation, so nobody writes over what is still read.
struct SharedCollectives::Slot {
  std::atomic<std::uint64_t> came;  // to this number of meetings
};

/// The slots follow it.
struct SharedCollectives::ControlBlock {
  std::atomic<std::uint32_t> bell;
  std::atomic<std::uint32_t> sleepers;
};

namespace {

constexpr std::size_t kHeadBytes = 64;  // of a control_block and of a slot

std::size_t call_bytes(int members) {
  return lines(sizeof(std::uint64_t) * (1 + 2 * static_cast<std::size_t>(members)));
}
std::size_t slot_bytes(int members) {
  return kHeadBytes + 2 * call_bytes(members);
}

}  // namespace

std::size_t SharedCollectives::control_block_bytes(int members) {
  return kHeadBytes + static_cast<std::size_t>(members) * slot_bytes(members);
}

SharedCollectives::SharedCollectives(int rank, SharedMemory control_block, std::vector<SharedMemory> memories,
                                     MutableByteSpan mine, std::vector<std::shared_ptr<Channel>> peers,
                                     const CollectivesOptions& options)
    : rank_(rank),
      control_block_(std::move(control_block)),
      memories_(std::move(memories)),
      mine_(mine),
      peers_(std::move(peers)),
      options_(options),
      spin_(spin_beside_computation(size())),
      theirs_(peers_.size()) {
  BF_CHECK(control_block_.bytes().size() == control_block_bytes(size()) && memories_.size() == peers_.size(),
           "a control_block for other members");
}

SharedCollectives::ControlBlock& SharedCollectives::control_block() const {
  return *reinterpret_cast<ControlBlock*>(control_block_.bytes().data());
}

SharedCollectives::Slot& SharedCollectives::slot(int member) const {
  std::byte* const place =
      control_block_.bytes().data() + kHeadBytes + static_cast<std::size_t>(member) * slot_bytes(size());
  return *reinterpret_cast<Slot*>(place);
}

SharedCollectives::Call& SharedCollectives::call(int member) const {
  std::byte* const calls = reinterpret_cast<std::byte*>(&slot(member)) + kHeadBytes;
  return *reinterpret_cast<Call*>(calls + operations_ % 2 * call_bytes(size()));
}

SharedCollectives::Place* SharedCollectives::places(int member) const {
  return reinterpret_cast<Place*>(&call(member) + 1);
}

Result<bool> SharedCollectives::open(Operation operation, std::span<const ByteSpan> given) {
  // No member comes any more where one gave up: an operation that has not begun would be half done.
  BF_TRY(check_members(UINT64_MAX, Deadline::max()));
  ++operations_;
  for (std::size_t reader = 0; reader < given.size(); ++reader) {
    const ByteSpan part = static_cast<int>(reader) == rank_ ? ByteSpan() : given[reader];
    const bool here =
        part.empty() || (part.data() >= mine_.data() && part.data() + part.size() <= mine_.data() + mine_.size());
    const std::uint64_t begin = part.empty() ? 0 : static_cast<std::uint64_t>(part.data() - mine_.data());
    Place& place = places(rank_)[reader];
    place.begin.store(here ? begin : kElsewhere, std::memory_order_relaxed);
    place.bytes.store(part.size(), std::memory_order_relaxed);
  }
  call(rank_).operation.store(operations_ << 8 | static_cast<std::uint64_t>(operation), std::memory_order_relaxed);
  BF_TRY(meet());
  return look(operation);
}

/// At what all have said: everyone comes to the same conclusion.
Result<bool> SharedCollectives::look(Operation operation) {
  const std::uint64_t expected = operations_ << 8 | static_cast<std::uint64_t>(operation);
  bool all_here = true;
  for (int member = 0; member < size(); ++member) {
    const std::uint64_t theirs = call(member).operation.load(std::memory_order_relaxed);
    if (theirs != expected) {
      const std::size_t kind = std::min<std::size_t>(theirs & 0xff, kSharedOperationNames.size() - 1);
      return make_error(ErrorCode::kProtocol, "member {} came to operation {}, {}, member {} to operation {}, {}",
                        member, theirs >> 8, kSharedOperationNames[kind], rank_, operations_,
                        kSharedOperationNames[static_cast<std::size_t>(operation)]);
    }
    for (int reader = 0; reader < size(); ++reader) {
      all_here = all_here && places(member)[reader].begin.load(std::memory_order_relaxed) != kElsewhere;
    }
  }
  if (!all_here) return false;
  for (int i = 1; i < size(); ++i) {
    BF_ASSIGN_OR_RETURN(theirs_[static_cast<std::size_t>(other(i))], span_of(other(i)));
  }
  return true;
}

Result<ByteSpan> SharedCollectives::span_of(int member) const {
  const Place& place = places(member)[rank_];
  const std::uint64_t begin = place.begin.load(std::memory_order_relaxed);
  const std::uint64_t bytes = place.bytes.load(std::memory_order_relaxed);
  const MutableByteSpan memory = memories_[static_cast<std::size_t>(member)].bytes();
  if (begin > memory.size() || bytes > memory.size() - begin) {
    return make_error(ErrorCode::kProtocol, "member {} gives {} bytes from {} on of a memory of {}", member, bytes,
                      begin, memory.size());
  }
  return ByteSpan(memory).subspan(begin, bytes);
}

Status SharedCollectives::check_sizes(std::span<const std::size_t> expected) const {
  for (int i = 1; i < size(); ++i) {
    const auto member = static_cast<std::size_t>(other(i));
    if (theirs_[member].size() == expected[member]) continue;
    return make_error(ErrorCode::kProtocol, "member {} gave {} bytes, member {} expected {}", member,
                      theirs_[member].size(), rank_, expected[member]);
  }
  return {};
}

SharedCollectives::Read SharedCollectives::all_reduce(MutableByteSpan data, int element_bytes,
                                                      const ReduceFunction& reduce) {
  const auto members = static_cast<std::size_t>(size());
  const auto element = static_cast<std::size_t>(element_bytes);
  BF_ASSIGN_OR_RETURN(const bool here, open(Operation::kAllReduce, std::vector<ByteSpan>(members, data)));
  if (!here) return std::nullopt;
  BF_TRY(check_sizes(std::vector(members, data.size())));
  const auto part = [&](auto bytes, int member) {
    const ElementRange range = part_of(data.size() / element, member, size());
    return bytes.subspan(range.begin * element, range.size() * element);
  };
  const MutableByteSpan mine = part(data, rank_);
  const std::size_t block = std::max<std::size_t>(1, kAddedBytes / element) * element;
  for (std::size_t at = 0; at < mine.size(); at += block) {
    const MutableByteSpan into = mine.subspan(at, std::min(block, mine.size() - at));
    for (int i = 1; i < size(); ++i) {
      reduce(into, part(theirs_[static_cast<std::size_t>(other(i))], rank_).subspan(at, into.size()));
    }
  }
  BF_TRY(meet());
  for (int i = 1; i < size(); ++i) {
    const ByteSpan sum = part(theirs_[static_cast<std::size_t>(other(i))], other(i));
    if (!sum.empty()) std::memcpy(part(data, other(i)).data(), sum.data(), sum.size());
  }
  BF_TRY(meet());
  return data.size() - mine.size() + (members - 1) * mine.size();
}

SharedCollectives::Read SharedCollectives::all_to_all(std::span<const ByteSpan> parts,
                                                      std::span<const MutableByteSpan> mine) {
  BF_ASSIGN_OR_RETURN(const bool here, open(Operation::kAllToAll, parts));
  if (!here) return std::nullopt;
  std::vector<std::size_t> sizes;
  for (const MutableByteSpan room : mine) sizes.push_back(room.size());
  BF_TRY(check_sizes(sizes));
  std::uint64_t given = 0;
  for (int i = 1; i < size(); ++i) {
    const auto member = static_cast<std::size_t>(other(i));
    if (!mine[member].empty()) std::memcpy(mine[member].data(), theirs_[member].data(), mine[member].size());
    given += parts[member].size();
  }
  BF_TRY(meet());
  return given;
}

SharedCollectives::Read SharedCollectives::all_gather(std::span<const MutableByteSpan> parts) {
  const ByteSpan own = parts[static_cast<std::size_t>(rank_)];
  return all_to_all(std::vector<ByteSpan>(parts.size(), own), parts);
}

Status SharedCollectives::barrier() {
  BF_TRY(open(Operation::kBarrier, std::vector<ByteSpan>(peers_.size())));
  return {};
}

Status SharedCollectives::meet() {
  const std::uint64_t number = ++meetings_;
  slot(rank_).came.store(number);
  if (!all_came(number)) return wait(number);
  // The last one wakes those who sleep. Sequentially consistent with wait(): it sees them, or they see that all came.
  control_block().bell.fetch_add(1);
  if (control_block().sleepers.load() > 0) futex_wake(control_block().bell, FutexScope::kMachine);
  return {};
}

bool SharedCollectives::all_came(std::uint64_t number) const {
  for (int i = 1; i < size(); ++i) {
    if (slot(other(i)).came.load() < number) return false;
  }
  return true;
}

Status SharedCollectives::wait(std::uint64_t number) {
  const trace::Scope scope(trace::Zone::kWaitMembers);
  const Deadline deadline = std::chrono::steady_clock::now() + options_.member_timeout;
  const auto spin_until = spin_end(spin_, deadline);
  while (std::chrono::steady_clock::now() < spin_until) {
    relax_cpu();
    if (all_came(number)) return {};
  }
  control_block().sleepers.fetch_add(1);
  Status status;
  for (;;) {
    const std::uint32_t seen = control_block().bell.load();
    if (all_came(number)) break;
    status = check_members(number, deadline);
    if (!status) break;
    futex_wait(control_block().bell, seen, std::chrono::milliseconds(kBrokenMemberMs), FutexScope::kMachine);
  }
  control_block().sleepers.fetch_sub(1);
  return status;
}

Status SharedCollectives::check_members(std::uint64_t number, Deadline deadline) const {
  const bool late = std::chrono::steady_clock::now() >= deadline;
  for (int i = 1; i < size(); ++i) {
    // One that has gone after its last meeting is missed by those who still wait for it.
    if (slot(other(i)).came.load() >= number) continue;
    const Channel& peer = *peers_[static_cast<std::size_t>(other(i))];
    if (peer.broken()) {
      return make_error(
          ErrorCode::kUnavailable,
          "{} went away, or these collectives were aborted, before operation {} of shared memory was done", peer.peer(),
          operations_);
    }
    if (late) {
      return make_error(ErrorCode::kTimeout, "member {} ({}) did not come to operation {} within {} ms", other(i),
                        peer.peer(), operations_, options_.member_timeout.count());
    }
  }
  return {};
}

Result<std::unique_ptr<SharedCollectives>> SharedCollectives::create(Exchange& exchange,
                                                                     std::vector<std::shared_ptr<Channel>> peers,
                                                                     const ReadableMemory& mine,
                                                                     const CollectivesOptions& options) {
  const int members = exchange.size();
  const bool may = options.shared_memory == SharedMemoryUse::kAllowed && mine.descriptor >= 0;
  std::vector<std::byte> offer = padded(may ? sharing_scope() : std::string(), kSharingScopeBytes);
  const std::uint64_t bytes = mine.bytes.size();
  offer.insert(offer.end(), as_bytes(std::span(&bytes, 1)).begin(), as_bytes(std::span(&bytes, 1)).end());
  std::vector<int> everyone(static_cast<std::size_t>(members));
  std::iota(everyone.begin(), everyone.end(), 0);
  MemberRound round(members);
  for (const int member : everyone) {
    if (member == exchange.rank()) continue;
    round.say(member, offer);
    round.hear(member, offer.size());
  }
  BF_TRY(round.run(exchange));
  const bool together = offer[0] != std::byte(0) && std::ranges::all_of(everyone, [&](int member) {
                          return member == exchange.rank() || std::ranges::equal(round.heard(member), offer);
                        });
  if (!together) return nullptr;

  // The control_block is the first member's; then each gives what it has to be read. All take part in all of it.
  bool complete = true;
  const auto pass = [&](int owner, int descriptor, std::uint64_t size) -> Result<SharedMemory> {
    if (owner == exchange.rank()) {
      BF_ASSIGN_OR_RETURN(const bool given, give_memory(exchange, everyone, descriptor));
      complete = complete && given;
      return SharedMemory();
    }
    BF_ASSIGN_OR_RETURN(auto taken, take_memory(exchange, everyone, owner, size));
    complete = complete && taken.has_value();
    return taken ? std::move(*taken) : SharedMemory();
  };
  SharedMemory control_block;
  if (exchange.rank() == 0) {
    auto made = SharedMemory::create(control_block_bytes(members));
    if (made) control_block = std::move(*made);
    if (!made) log().info("members do not share memory: {}", made.error().message);
    BF_TRY(pass(0, control_block.descriptor(), 0));
  } else {
    BF_ASSIGN_OR_RETURN(control_block, pass(0, -1, control_block_bytes(members)));
  }
  std::vector<SharedMemory> memories;
  for (const int owner : everyone) {
    BF_ASSIGN_OR_RETURN(memories.emplace_back(), pass(owner, mine.descriptor, bytes));
  }
  BF_ASSIGN_OR_RETURN(const bool mapped, all_agree(exchange, everyone, complete));
  if (!mapped) return nullptr;
  return std::make_unique<SharedCollectives>(exchange.rank(), std::move(control_block), std::move(memories), mine.bytes,
                                             std::move(peers), options);
}

}  // namespace butterfly
