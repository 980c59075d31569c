// Collectives between threads of one process: members lay open what they bring, meet, and read each other's memory.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "butterfly/base/check.h"
#include "butterfly/base/futex.h"
#include "butterfly/machine/topology.h"
#include "butterfly/trace/timed_span.h"
#include "butterfly/wire/channel/spin.h"
#include "butterfly/wire/collective/collective_work.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {
namespace {

constexpr std::chrono::microseconds kSpin{50};
// Up to this number of bytes, values are copied to a common place and the last who comes adds them: one meeting instead
// of three.
constexpr std::size_t kTogetherBytesMax = 16 * 1024;
// What is added at a time: stays in the nearest cache while one member after the other is added to it.
constexpr std::size_t kBlockBytes = 16 * 1024;

enum class Operation : std::uint8_t { kAllReduce, kAllToAll, kAllGather, kBroadcast, kBarrier };
constexpr std::array<std::string_view, 5> kOperationNames{"all_reduce", "all_to_all", "all_gather", "broadcast",
                                                          "barrier"};
constexpr std::array<trace::Zone, 5> kOperationZones{trace::Zone::kAllReduce, trace::Zone::kAllToAll,
                                                     trace::Zone::kAllGather, trace::Zone::kBroadcast,
                                                     trace::Zone::kWaitMembers};

/// What a member brings to an operation; the memory is its caller's until the last meeting.
struct Brought {
  Operation operation = Operation::kBarrier;
  std::uint64_t bytes = 0;  // all members agree on these two
  int detail = 0;           // bytes of an element, or the root
  MutableByteSpan data{};
  std::span<const ByteSpan> parts{};
  std::uint64_t gathered = 0;  // bytes of all members
};

/// What the operation is about.
std::uint64_t data_bytes(const Brought& brought) {
  if (brought.operation == Operation::kAllGather) return brought.gathered;
  std::uint64_t bytes = brought.data.size();
  for (const ByteSpan part : brought.parts) bytes += part.size();
  return bytes;
}
std::uint64_t element_bytes(const Brought& brought) {
  return brought.operation == Operation::kAllReduce ? static_cast<std::uint64_t>(brought.detail) : 1;
}

std::string describe(const Brought& brought) {
  const auto name = kOperationNames[static_cast<std::size_t>(brought.operation)];
  switch (brought.operation) {
    case Operation::kAllReduce:
      return fmt::format("{} of {} bytes in elements of {}", name, brought.bytes, brought.detail);
    case Operation::kBroadcast:
      return fmt::format("{} of {} bytes from member {}", name, brought.bytes, brought.detail);
    default:
      return std::string(name);
  }
}

struct alignas(64) Member {
  std::atomic<std::uint64_t> operations{0};  // begun
  std::atomic<bool> reading{false};          // another member's memory
  Brought brought;
  std::array<std::vector<std::byte>, 2> deposits;                        // of operations of odd and even numbers
  std::mutex mutex;                                                      // guards what follows
  std::map<std::pair<int, std::uint64_t>, std::vector<std::byte>> mail;  // sent to this member: by sender and label
};

/// What all members share. A member that waits looks again for a while, unless there are more members than cores, and
/// then sleeps; only the last to come to a meeting wakes the others.
class Shared {
 public:
  Shared(int count, const CollectivesOptions& options)
      : members(static_cast<std::size_t>(count)), timeout_(options.member_timeout) {}

  /// Until all have come for the `number`-th time; the last one calls `last` before anybody goes on. False after an
  /// abort or the timeout.
  template <typename Last>
  bool meet(std::uint64_t number, const Last& last) {
    if (arrived_.fetch_add(1) + 1 == static_cast<int>(members.size())) {
      last();
      arrived_.store(0);
      met_.store(number);
      ring();
      return true;
    }
    const auto done = [&] { return met_.load() >= number; };
    await([&] { return done() || aborted_.load(); });
    return done();
  }

  void deliver(int to, std::pair<int, std::uint64_t> label, ByteSpan data) {
    Member& member = members[static_cast<std::size_t>(to)];
    {
      const std::lock_guard lock(member.mutex);
      member.mail[label].assign(data.begin(), data.end());
    }
    ring();
  }

  /// Nothing after an abort or the timeout.
  std::optional<std::vector<std::byte>> take(Member& member, std::pair<int, std::uint64_t> label) {
    std::optional<std::vector<std::byte>> taken;
    await([&] {
      const std::lock_guard lock(member.mutex);
      const auto found = member.mail.find(label);
      if (!taken && found != member.mail.end()) {
        taken = std::move(found->second);
        member.mail.erase(found);
      }
      return taken || aborted_.load();
    });
    return taken;
  }

  void abort() {
    aborted_.store(true);
    ring();
  }
  bool aborted() const { return aborted_.load(); }
  std::chrono::milliseconds timeout() const { return timeout_; }

  std::vector<Member> members;
  std::array<std::optional<Error>, 2> verdicts;  // of the last to come, on operations of odd and even numbers

 private:
  template <typename Over>
  void await(const Over& over) {
    if (over()) return;
    const trace::Scope scope(trace::Zone::kWaitMembers);
    const Deadline deadline = std::chrono::steady_clock::now() + timeout_;
    const auto end = spin_end(kSpin, deadline, static_cast<int>(members.size()));
    while (std::chrono::steady_clock::now() < end) {
      relax_cpu();
      if (over()) return;
    }
    sleepers_.fetch_add(1);
    for (;;) {
      const std::uint32_t seen = bell_.load();
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (over() || left.count() <= 0) break;
      futex_wait(bell_, seen, left, FutexScope::kProcess);
    }
    sleepers_.fetch_sub(1);
  }

  /// After a change that others wait for. Sequentially consistent with await(): either the waiter sees the change or
  /// it is seen to sleep.
  void ring() {
    bell_.fetch_add(1);
    if (sleepers_.load() > 0) futex_wake(bell_, FutexScope::kProcess);
  }

  const std::chrono::milliseconds timeout_;
  std::atomic<int> arrived_{0};
  std::atomic<std::uint64_t> met_{0};  // how many meetings have been
  std::atomic<bool> aborted_{false};
  std::atomic<int> sleepers_{0};
  std::atomic<std::uint32_t> bell_{0};
};

class InprocCollectives final : public Collectives {
 public:
  // All ends need the state, and none is the last for certain.
  InprocCollectives(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)), rank_(rank), me_(shared_->members[static_cast<std::size_t>(rank)]) {}
  ~InprocCollectives() override { shared_->abort(); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->members.size()); }
  void abort() override { shared_->abort(); }

  Status all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                    AllReduceAlgorithm algorithm) override;
  std::uint64_t all_reduce_bytes(std::uint64_t bytes, AllReduceAlgorithm algorithm) const override;
  Status all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) override;
  Status all_gather(std::span<const MutableByteSpan> parts) override;
  Status broadcast(MutableByteSpan data, int root) override;
  Status send(int to, std::uint64_t label, ByteSpan data) override;
  Status receive(int from, std::uint64_t label, MutableByteSpan data) override;
  Status barrier() override;
  CollectiveStats stats() const override;

 private:
  /// Counts it; a member that fails makes all fail, and returns when no other reads its memory any more.
  template <typename Work>
  Status operation(const Brought& brought, const Work& work);
  /// The first meeting of an operation: all have brought something, and the same.
  template <typename Last>
  Status meet_all(const Last& last);
  Status meet_all() {
    return meet_all([] {});
  }
  Status meet_again();
  /// Reads memory of other members, unless they have taken it back.
  template <typename Read>
  Status read(const Read& read_others);
  Status copy(int member, ByteSpan from, MutableByteSpan into) const;

  Status reduce_together(MutableByteSpan data, const ReduceFunction& reduce);
  Status reduce_slices(MutableByteSpan data, std::size_t element_bytes, const ReduceFunction& reduce);
  MutableByteSpan slice(MutableByteSpan data, std::size_t element_bytes, int member) const;
  std::optional<Error> disagreement() const;
  tl::unexpected<Error> failure() const;
  int other(int i) const { return (rank_ + i) % size(); }
  Member& member(int number) const { return shared_->members[static_cast<std::size_t>(number)]; }
  std::size_t parity() const { return me_.operations.load(std::memory_order_relaxed) % 2; }
  void count_sent(std::uint64_t bytes) { bytes_sent_.fetch_add(bytes, std::memory_order_relaxed); }

  const std::shared_ptr<Shared> shared_;
  const int rank_;
  Member& me_;
  std::uint64_t meetings_ = 0;
  std::atomic<std::uint64_t> bytes_sent_{0}, wait_ns_{0};
};

template <typename Work>
Status InprocCollectives::operation(const Brought& brought, const Work& work) {
  if (size() > 1 && shared_->aborted()) return failure();  // others may still look at what was brought before
  trace::TimedSpan span(kOperationZones[static_cast<std::size_t>(brought.operation)]);
  const std::uint64_t sent_before = bytes_sent_.load(std::memory_order_relaxed);
  me_.brought = brought;
  me_.operations.fetch_add(1);
  const Status status = size() > 1 ? work() : Status{};
  if (!status) {
    shared_->abort();
    // Nobody begins to read after an abort; who has begun is waited for, since the caller may free what it brought.
    for (int i = 1; i < size(); ++i) {
      while (member(other(i)).reading.load()) std::this_thread::yield();
    }
  }
  const std::uint64_t sent = bytes_sent_.load(std::memory_order_relaxed) - sent_before;
  span.set_work(collective_work(size(), data_bytes(brought), element_bytes(brought), sent));
  wait_ns_.fetch_add(span.end(), std::memory_order_relaxed);
  return status;
}

template <typename Last>
Status InprocCollectives::meet_all(const Last& last) {
  // The verdict stays where nobody writes before all have come to the next operation.
  auto& verdict = shared_->verdicts[parity()];
  const bool met = shared_->meet(++meetings_, [&] {
    verdict = disagreement();
    if (!verdict) last();
  });
  if (!met) return failure();
  if (verdict) return tl::unexpected(*verdict);
  return {};
}

Status InprocCollectives::meet_again() {
  if (shared_->meet(++meetings_, [] {})) return {};
  return failure();
}

std::optional<Error> InprocCollectives::disagreement() const {
  const Brought& mine = me_.brought;
  for (int i = 1; i < size(); ++i) {
    const Brought& theirs = member(other(i)).brought;
    if (theirs.operation == mine.operation && theirs.bytes == mine.bytes && theirs.detail == mine.detail) continue;
    return Error{ErrorCode::kProtocol, fmt::format("member {} came to {}, member {} to {}", rank_, describe(mine),
                                                   other(i), describe(theirs))};
  }
  return std::nullopt;
}

tl::unexpected<Error> InprocCollectives::failure() const {
  if (shared_->aborted()) return make_error(ErrorCode::kUnavailable, "the collectives of these threads were aborted");
  for (int i = 1; i < size(); ++i) {
    if (member(other(i)).operations.load() >= me_.operations.load()) continue;
    return make_error(ErrorCode::kTimeout, "member {} did not come to collective {} within {} ms", other(i),
                      me_.operations.load(), shared_->timeout().count());
  }
  return make_error(ErrorCode::kTimeout, "collective {} took longer than {} ms", me_.operations.load(),
                    shared_->timeout().count());
}

template <typename Read>
Status InprocCollectives::read(const Read& read_others) {
  me_.reading.store(true);
  Status status = shared_->aborted() ? Status(failure()) : read_others();
  me_.reading.store(false);
  return status;
}

Status InprocCollectives::copy(int from_member, ByteSpan from, MutableByteSpan into) const {
  if (from.size() != into.size()) {
    return make_error(ErrorCode::kProtocol, "member {} gave {} bytes, member {} expected {}", from_member, from.size(),
                      rank_, into.size());
  }
  if (!into.empty() && into.data() != from.data()) std::memcpy(into.data(), from.data(), into.size());
  return {};
}

Status InprocCollectives::all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                                     AllReduceAlgorithm /*one between threads*/) {
  const auto element = static_cast<std::size_t>(element_bytes);
  BF_CHECK(element_bytes > 0 && data.size() % element == 0, "whole elements");
  const Brought brought{
      .operation = Operation::kAllReduce, .bytes = data.size(), .detail = element_bytes, .data = data};
  return operation(brought, [&] {
    return data.size() <= kTogetherBytesMax ? reduce_together(data, reduce) : reduce_slices(data, element, reduce);
  });
}

std::uint64_t InprocCollectives::all_reduce_bytes(std::uint64_t bytes, AllReduceAlgorithm /*algorithm*/) const {
  if (size() == 1) return 0;
  const auto members = static_cast<std::uint64_t>(size());
  return bytes <= kTogetherBytesMax ? bytes : 2 * (members - 1) * bytes / members;
}

// Values of operation k lie where those of operation k + 2 will: by then all have come to k + 1, so all have read.
Status InprocCollectives::reduce_together(MutableByteSpan data, const ReduceFunction& reduce) {
  auto& deposit = me_.deposits[parity()];
  if (deposit.size() < data.size()) deposit.resize(kTogetherBytesMax);
  std::ranges::copy(data, deposit.begin());
  const auto value = [&](int number) { return MutableByteSpan(member(number).deposits[parity()]).first(data.size()); };
  BF_TRY(meet_all([&] {
    for (int number = 1; number < size(); ++number) reduce(value(0), value(number));
  }));
  std::ranges::copy(value(0), data.begin());
  count_sent(data.size());
  return {};
}

MutableByteSpan InprocCollectives::slice(MutableByteSpan data, std::size_t element_bytes, int member) const {
  const auto members = static_cast<std::size_t>(size());
  const std::size_t elements = data.size() / element_bytes;
  const auto number = static_cast<std::size_t>(member);
  const auto border = [&](std::size_t i) {
    return (elements / members * i + std::min(i, elements % members)) * element_bytes;
  };
  return data.subspan(border(number), border(number + 1) - border(number));
}

Status InprocCollectives::reduce_slices(MutableByteSpan data, std::size_t element_bytes, const ReduceFunction& reduce) {
  BF_TRY(meet_all());
  const MutableByteSpan mine = slice(data, element_bytes, rank_);
  const std::size_t block_bytes = std::max<std::size_t>(1, kBlockBytes / element_bytes) * element_bytes;
  for (std::size_t at = 0; at < mine.size(); at += block_bytes) {
    const std::size_t bytes = std::min(block_bytes, mine.size() - at);
    BF_TRY(read([&]() -> Status {
      for (int i = 1; i < size(); ++i) {
        const MutableByteSpan theirs = slice(member(other(i)).brought.data, element_bytes, rank_);
        reduce(mine.subspan(at, bytes), theirs.subspan(at, bytes));
      }
      return {};
    }));
  }
  BF_TRY(meet_again());
  for (int i = 1; i < size(); ++i) {
    BF_TRY(read([&] {
      const MutableByteSpan theirs = member(other(i)).brought.data;
      return copy(other(i), slice(theirs, element_bytes, other(i)), slice(data, element_bytes, other(i)));
    }));
  }
  count_sent(data.size() - mine.size() + static_cast<std::uint64_t>(size() - 1) * mine.size());
  return meet_again();
}

Status InprocCollectives::all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) {
  const auto members = static_cast<std::size_t>(size());
  const auto me = static_cast<std::size_t>(rank_);
  BF_CHECK(parts.size() == members && mine.size() == members, "one part for each member");
  if (!mine[me].empty()) BF_CHECK(copy(rank_, parts[me], mine[me]).has_value(), "one's own part has one size");
  return operation({.operation = Operation::kAllToAll, .parts = parts}, [&]() -> Status {
    BF_TRY(meet_all());
    for (int i = 1; i < size(); ++i) {
      BF_TRY(read([&] {
        return copy(other(i), member(other(i)).brought.parts[me], mine[static_cast<std::size_t>(other(i))]);
      }));
      count_sent(parts[static_cast<std::size_t>(other(i))].size());
    }
    return meet_again();
  });
}

Status InprocCollectives::all_gather(std::span<const MutableByteSpan> parts) {
  BF_CHECK(parts.size() == shared_->members.size(), "one part for each member");
  const MutableByteSpan mine = parts[static_cast<std::size_t>(rank_)];
  std::uint64_t gathered = 0;
  for (const MutableByteSpan part : parts) gathered += part.size();
  return operation({.operation = Operation::kAllGather, .data = mine, .gathered = gathered}, [&]() -> Status {
    BF_TRY(meet_all());
    for (int i = 1; i < size(); ++i) {
      BF_TRY(read(
          [&] { return copy(other(i), member(other(i)).brought.data, parts[static_cast<std::size_t>(other(i))]); }));
    }
    count_sent(static_cast<std::uint64_t>(size() - 1) * mine.size());
    return meet_again();
  });
}

Status InprocCollectives::broadcast(MutableByteSpan data, int root) {
  BF_CHECK(root >= 0 && root < size(), "the root is a member");
  const Brought brought{.operation = Operation::kBroadcast, .bytes = data.size(), .detail = root, .data = data};
  return operation(brought, [&]() -> Status {
    BF_TRY(meet_all());
    if (rank_ == root) {
      count_sent(static_cast<std::uint64_t>(size() - 1) * data.size());
    } else {
      BF_TRY(read([&] { return copy(root, member(root).brought.data, data); }));
    }
    return meet_again();
  });
}

Status InprocCollectives::send(int to, std::uint64_t label, ByteSpan data) {
  if (shared_->aborted()) return failure();
  shared_->deliver(to, {rank_, label}, data);
  count_sent(data.size());
  return {};
}

Status InprocCollectives::receive(int from, std::uint64_t label, MutableByteSpan data) {
  trace::TimedSpan span(trace::Zone::kWaitMembers);
  const auto mail = shared_->take(me_, {from, label});
  wait_ns_.fetch_add(span.end(), std::memory_order_relaxed);
  Status status;
  if (!mail && shared_->aborted()) status = failure();
  if (!mail && !shared_->aborted()) {
    status = make_error(ErrorCode::kTimeout, "member {} sent nothing with label {} within {} ms", from, label,
                        shared_->timeout().count());
  }
  if (mail) status = copy(from, *mail, data);
  if (!status) shared_->abort();
  return status;
}

Status InprocCollectives::barrier() {
  return operation({.operation = Operation::kBarrier}, [&] { return meet_all(); });
}

CollectiveStats InprocCollectives::stats() const {
  return {.operations = me_.operations.load(std::memory_order_relaxed),
          .bytes_sent = bytes_sent_.load(std::memory_order_relaxed),
          .wait_ns = wait_ns_.load(std::memory_order_relaxed)};
}

}  // namespace

std::vector<std::unique_ptr<Collectives>> make_inproc_collectives(int members, const CollectivesOptions& options) {
  BF_CHECK(members >= 1, "collectives have members");
  const auto shared = std::make_shared<Shared>(members, options);
  std::vector<std::unique_ptr<Collectives>> ends;
  for (int rank = 0; rank < members; ++rank) ends.push_back(std::make_unique<InprocCollectives>(shared, rank));
  return ends;
}

}  // namespace butterfly
