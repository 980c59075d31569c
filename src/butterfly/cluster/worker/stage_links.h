// What a share of the work is connected to while it runs. Views: the code that opened the connections owns them.
#pragma once

#include <vector>

#include "butterfly/wire/channel/channel.h"
#include "butterfly/wire/exchange/exchange.h"

namespace butterfly {

struct StageLinks {
  Channel* input = nullptr;           // steps: from the stage before, or from the leader of the tensor group
  Channel* output = nullptr;          // results; nothing for a member that does not lead its group
  std::vector<Channel*> followers{};  // the leader's: to whom it hands each step
  Exchange* exchange = nullptr;       // between the members of a group; nothing where there is none

  /// Gives the followers the message; it stays the caller's. Errors: kUnavailable (one is gone), kNoMemory.
  Status hand_on(const Message& message) const {
    for (Channel* follower : followers) BF_TRY(follower->send_borrowed(message));
    return {};
  }
};

}  // namespace butterfly
