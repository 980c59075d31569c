#include "butterfly/wire/collective/broadcast.h"

#include "butterfly/base/check.h"

namespace butterfly {
namespace {

Result<Message> pass_on(const BroadcastGroup& group, const TreePlace& place, Message message,
                        const PayloadAllocator& allocator, Deadline deadline) {
  const auto channel = [&](int rank) { return group.channels[static_cast<std::size_t>(rank)]; };
  if (place.parent) {
    BF_ASSIGN_OR_RETURN(message, channel(*place.parent)->receive(allocator, deadline));
  }
  for (const int child : place.children) BF_TRY(channel(child)->send(message, deadline));
  return message;
}

}  // namespace

// Counted from the root, a member's parent is its number without the lowest bit that is set, as in MPICH.
TreePlace binomial_tree(int rank, int size, int root) {
  BF_CHECK(size > 0 && rank >= 0 && rank < size && root >= 0 && root < size);
  const int number = (rank - root + size) % size;
  const auto rank_of = [&](int other) { return (other + root) % size; };
  TreePlace place;
  int bit = 1;
  while (bit < size && (number & bit) == 0) bit *= 2;
  if (number != 0) place.parent = rank_of(number - bit);
  for (bit /= 2; bit > 0; bit /= 2) {
    if (number + bit < size) place.children.push_back(rank_of(number + bit));
  }
  return place;
}

int tree_hops(int size) {
  int hops = 0;
  for (int reached = 1; reached < size; reached *= 2) ++hops;
  return hops;
}

Result<Message> broadcast(const BroadcastGroup& group, Message message, const PayloadAllocator& allocator,
                          Deadline deadline) {
  const TreePlace place = binomial_tree(group.rank, static_cast<int>(group.channels.size()), group.root);
  auto passed = pass_on(group, place, std::move(message), allocator, deadline);
  if (!passed) {
    if (place.parent) group.channels[static_cast<std::size_t>(*place.parent)]->close();
    for (const int child : place.children) group.channels[static_cast<std::size_t>(child)]->close();
  }
  return passed;
}

}  // namespace butterfly
