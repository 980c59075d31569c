// An exchange over channels, one to each other member: a few KiB are one write to each and one read from each, straight
// from and into the caller's buffers. Larger transfers go piece by piece in both directions at once, so that nobody
// waits for a member that waits for it. Threads as for Exchange; the channels may be closed by their other owners.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "butterfly/wire/channel/channel.h"
#include "butterfly/wire/exchange/exchange.h"

namespace butterfly {

/// The type of its messages. Their tag is a transfer_tag() of the number of the exchange.
inline constexpr std::uint16_t kExchangeMessage = 3;

struct ChannelExchangeOptions {
  Epoch epoch{};                                     // of the channels; messages of another are refused
  std::chrono::milliseconds member_timeout{60'000};  // for one member's bytes; silence is found out earlier, elsewhere
};

class ChannelExchange final : public Exchange {
 public:
  /// One channel for each member, nothing for `rank` itself. Shared with the thread that closes them to end the epoch.
  ChannelExchange(int rank, std::vector<std::shared_ptr<Channel>> members, const ChannelExchangeOptions& options);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  Status exchange(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) override;
  void abort() override;

  /// exchange() in two halves, for a caller who has something to do in between: begin() never waits, and `to` must stay
  /// as it is until finish() returns.
  Status begin(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from);
  Status finish();

 private:
  /// What goes to and comes from one member in one exchange.
  struct Flow {
    ByteSpan to{};
    MutableByteSpan from{};
    std::size_t sent = 0, received = 0;
    bool complete() const { return received == from.size() && sent == to.size(); }
  };

  std::uint64_t tag(std::size_t bytes) const;
  Status send_pieces(std::size_t member);
  Status receive_piece(std::size_t member);
  Status check(std::size_t member, const Message& message, MutableByteSpan wanted) const;
  /// After an error the members do not agree any more on what comes next.
  Status give_up(const Error& error);

  const int rank_;
  const std::vector<std::shared_ptr<Channel>> members_;
  const ChannelExchangeOptions options_;
  std::uint64_t sequence_ = 0;
  std::vector<Flow> flows_;
};

}  // namespace butterfly
