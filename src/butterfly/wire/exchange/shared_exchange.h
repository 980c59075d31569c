// An exchange through memory that the members, processes of one host, share: for each pair and direction a ring, for
// each member a bell that the others ring when they have moved something. Waits spin, then sleep on the bell; while
// they sleep they look every few milliseconds whether the peer channel to a member has broken, so a dead one
// leaves nobody waiting. What others write into the rings is checked, not believed. Threads as for Exchange.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "butterfly/wire/channel/channel.h"
#include "butterfly/wire/exchange/exchange.h"
#include "butterfly/wire/exchange/shared_segment.h"

namespace butterfly {

struct SharedExchangeOptions {
  std::chrono::milliseconds member_timeout{60'000};  // without any progress
  std::chrono::microseconds spin{200};               // where each member has a CPU of its own
};

class SharedExchange final : public Exchange {
 public:
  /// Bytes of a segment for `members` members.
  static std::size_t segment_bytes(int members);

  /// `memory` is mapped by all members and has been zero. The peers, one for each member but this one, tell
  /// whether a member lives; shared with the thread that closes them to end the epoch.
  SharedExchange(int rank, SharedMemory memory, std::vector<std::shared_ptr<Channel>> peers,
                 const SharedExchangeOptions& options);
  ~SharedExchange() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  Status exchange(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) override;
  void abort() override;

  /// Given to others so far, headers included. From any thread.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Bell;
  struct Ring;
  struct Segment;
  struct Transfer;

  Bell& bell(int member) const;
  Ring& ring_between(int sender, int receiver) const;
  /// What can be moved without waiting; whether something was.
  Result<bool> push(int member, Transfer& transfer);
  Result<bool> pull(int member, Transfer& transfer);
  Result<bool> move_all();
  std::uint32_t rings_to_come() const;
  bool may_spin();
  Status wait_for_bell(std::uint32_t seen, Deadline deadline);
  Status check_members(Deadline deadline) const;
  void ring_bell(int member, std::uint32_t times = 1) const;

  const int rank_;
  const SharedMemory memory_;
  const std::vector<std::shared_ptr<Channel>> peers_;
  const SharedExchangeOptions options_;
  const std::size_t ring_bytes_;
  std::atomic<bool> aborted_{false};
  std::optional<bool> may_spin_;  // once all members are there
  std::uint64_t sequence_ = 0;
  std::vector<Transfer> outgoing_, incoming_;
  std::atomic<std::uint64_t> bytes_sent_{0};
};

}  // namespace butterfly
