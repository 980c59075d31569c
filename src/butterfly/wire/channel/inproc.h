// The channel between two threads of one process: bounded queues, the payload changes hands and is never copied.
// Each end is used by one sending and one receiving thread; the ends share the queues and may die in any order.
#pragma once

#include <utility>

#include "butterfly/wire/channel/channel.h"

namespace butterfly {

struct InprocOptions {
  int queue_messages_max = 8;  // in each direction; send() waits while that many are unread
  ChannelLimits limits{};
  std::chrono::microseconds spin{50};  // looked again for that long before a receive blocks
  std::string first_name = "inproc";   // what peer() of the second end says
  std::string second_name = "inproc";  // what peer() of the first end says
};

/// Two connected ends. receive() gives the sender's own payload and ignores the allocator. Messages sent before the
/// peer closed are still received; then receive() fails with kUnavailable.
std::pair<ChannelPtr, ChannelPtr> make_inproc_pair(const InprocOptions& options = {});

}  // namespace butterfly
