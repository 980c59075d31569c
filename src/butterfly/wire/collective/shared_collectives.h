// What collectives do among processes of one host whose data lie in memory that all of them have mapped: members say
// where, meet, and read each other's data where they are. An operation of which some member's data lie elsewhere is not
// done, and all know it. Waits spin, then sleep, and look every few milliseconds whether the peer channel to a
// member who has not come has broken: a dead one leaves no member waiting, and its memory stays as long as a member
// reads it. What others say is checked before it is believed. One operation at a time; closing the peers ends it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "butterfly/machine/shared_memory.h"
#include "butterfly/wire/channel/channel.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// How long a member's thread waits before it sleeps: not at all where it would take the core of one that computes.
std::chrono::microseconds spin_beside_computation(int members);

class SharedCollectives {
 public:
  /// Called by all members at once, with an exchange between them that all use alike and a channel to each other one.
  /// Nothing where they are not all processes of one host and user with as much memory to read: no member has any then.
  /// `mine` outlives it. Errors: those of the exchange.
  static Result<std::unique_ptr<SharedCollectives>> create(Exchange& exchange,
                                                           std::vector<std::shared_ptr<Channel>> peers,
                                                           const ReadableMemory& mine,
                                                           const CollectivesOptions& options);

  /// Bytes of the control block where `members` members meet.
  static std::size_t control_block_bytes(int members);

  /// `memories` are those of all members as they are mapped here, this member's own empty.
  SharedCollectives(int rank, SharedMemory control_block, std::vector<SharedMemory> memories, MutableByteSpan mine,
                    std::vector<std::shared_ptr<Channel>> peers, const CollectivesOptions& options);

  /// Those of Collectives, or nothing where they are not done: what others read of this member's data, in bytes. Parts
  /// of a sum are added as a ring adds them, to the bit.
  using Read = Result<std::optional<std::uint64_t>>;
  Read all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce);
  Read all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine);
  Read all_gather(std::span<const MutableByteSpan> parts);
  Status barrier();

 private:
  enum class Operation : std::uint8_t { kAllReduce, kAllToAll, kBarrier };
  struct Place;
  struct Call;
  struct Slot;
  struct ControlBlock;

  int size() const { return static_cast<int>(peers_.size()); }
  int other(int i) const { return (rank_ + i) % size(); }
  ControlBlock& control_block() const;
  Slot& slot(int member) const;
  Call& call(int member) const;  // of the operation under way
  Place* places(int member) const;

  /// Says what each member may read of this one, and hears what this one may read of them, in theirs_. False where
  /// something lies elsewhere.
  Result<bool> open(Operation operation, std::span<const ByteSpan> given);
  Result<bool> look(Operation operation);
  Result<ByteSpan> span_of(int member) const;
  Status check_sizes(std::span<const std::size_t> expected) const;
  Status meet();
  Status wait(std::uint64_t number);
  Status check_members(std::uint64_t number, Deadline deadline) const;
  bool all_came(std::uint64_t number) const;

  const int rank_;
  const SharedMemory control_block_;
  const std::vector<SharedMemory> memories_;
  const MutableByteSpan mine_;
  const std::vector<std::shared_ptr<Channel>> peers_;
  const CollectivesOptions options_;
  const std::chrono::microseconds spin_;
  std::uint64_t meetings_ = 0, operations_ = 0;
  std::vector<ByteSpan> theirs_;  // of each member in the operation under way
};

}  // namespace butterfly
