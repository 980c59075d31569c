// What pipelined collectives move: pieces of one operation, checked on arrival, over one channel to each other member.
// Sending never waits (what a connection does not take is copied), so a caller that sends ahead limits by how much.
// Used by one thread at a time; close() from any.
#pragma once

#include <memory>
#include <vector>

#include "butterfly/wire/channel/channel.h"

namespace butterfly {

/// The type of its messages. Their tag is a transfer_tag() of the number of the operation and all its bytes.
inline constexpr std::uint16_t kPieceMessage = 4;

/// How many pieces go ahead of what came back: enough to keep a line busy, few enough for a socket's buffers.
inline constexpr std::size_t kPiecesAhead = 4;

class PieceChannels {
 public:
  PieceChannels(std::vector<std::shared_ptr<Channel>> members, Epoch epoch, std::chrono::milliseconds member_timeout);

  /// What follows belongs to one more operation, which moves `operation_bytes`; all members begin the same ones.
  void begin(std::uint64_t operation_bytes);

  /// `piece` is the caller's again on return.
  Status send(int member, ByteSpan piece);

  /// The next piece of a member, exactly as large as `room`, which it is read to; from a channel between threads it is
  /// in the message's own memory. Errors: those of Channel::receive(), kProtocol.
  Result<Message> receive(int member, MutableByteSpan room);
  /// The same, always in `room`.
  Status receive_into(int member, MutableByteSpan room);

  void close();

  std::size_t members() const { return members_.size(); }

 private:
  const std::vector<std::shared_ptr<Channel>> members_;
  const Epoch epoch_;
  const std::chrono::milliseconds member_timeout_;
  std::uint64_t sequence_ = 0;
  std::uint64_t tag_ = 0;
};

}  // namespace butterfly
