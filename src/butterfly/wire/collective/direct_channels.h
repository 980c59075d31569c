// What one member sends to another alone: whole messages with labels, over the channels of all other operations. One
// that comes before it is asked for waits here. Sending never waits. Used by one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "butterfly/wire/channel/channel.h"

namespace butterfly {

/// The type of its messages; their tag is the label.
inline constexpr std::uint16_t kDirectMessage = 7;

class DirectChannels {
 public:
  DirectChannels(std::vector<std::shared_ptr<Channel>> members, Epoch epoch, std::chrono::milliseconds member_timeout);

  /// `data` is the caller's again on return. Errors: those of Channel::send_borrowed().
  Status send(int member, std::uint64_t label, ByteSpan data);
  /// Exactly as large as `room`. Errors: those of Channel::receive(), kProtocol.
  Status receive(int member, std::uint64_t label, MutableByteSpan room);

 private:
  Status keep(int member, std::uint64_t label, ByteSpan bytes);

  const std::vector<std::shared_ptr<Channel>> members_;
  const Epoch epoch_;
  const std::chrono::milliseconds member_timeout_;
  std::map<std::pair<int, std::uint64_t>, Payload> early_;  // by member and label
};

}  // namespace butterfly
