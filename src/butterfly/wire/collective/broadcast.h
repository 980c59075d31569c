// One message from one member of a group to all others along a binomial tree: after ceil(log2 n) hops everyone has it,
// and nobody sends more than that many copies. Each member calls with its own channels, used by one thread at a time.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "butterfly/wire/channel/channel.h"

namespace butterfly {

/// Where a member stands in the tree of a group.
struct TreePlace {
  std::optional<int> parent{};  // none: the root
  std::vector<int> children{};  // in the order of sending, the largest subtree first
};

/// rank and root in [0, size).
TreePlace binomial_tree(int rank, int size, int root);

/// ceil(log2 size): how many hops the last member waits for.
int tree_hops(int size);

struct BroadcastGroup {
  int rank = 0;
  int root = 0;
  std::span<Channel* const> channels{};  // one for each member, by rank; this member's own is not looked at
};

/// The root gives its message and gets it back; all others get the root's and pass it on, payloads shared, not copied.
/// A member that fails closes its channels in the tree, so that no other waits for a message that will not come.
/// Errors: those of send() and receive().
Result<Message> broadcast(const BroadcastGroup& group, Message message, const PayloadAllocator& allocator,
                          Deadline deadline);

}  // namespace butterfly
