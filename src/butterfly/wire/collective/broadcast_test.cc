#include "butterfly/wire/collective/broadcast.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "butterfly/wire/channel/inproc.h"

namespace butterfly {
namespace {

/// Channels between all members of a group.
class Mesh {
 public:
  explicit Mesh(int size) : ends_(static_cast<std::size_t>(size)) {
    for (auto& row : ends_) row.resize(ends_.size());
    for (std::size_t a = 0; a < ends_.size(); ++a) {
      for (std::size_t b = a + 1; b < ends_.size(); ++b) std::tie(ends_[a][b], ends_[b][a]) = make_inproc_pair();
    }
  }
  std::vector<Channel*> channels_of(int rank) const {
    std::vector<Channel*> channels;
    for (const ChannelPtr& channel : ends_[static_cast<std::size_t>(rank)]) channels.push_back(channel.get());
    return channels;
  }
  Channel& channel(int from, int to) const {
    return *ends_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }

 private:
  std::vector<std::vector<ChannelPtr>> ends_;
};

int hops_to_root(int rank, int size, int root) {
  int hops = 0;
  for (auto parent = binomial_tree(rank, size, root).parent; parent; ++hops) {
    parent = binomial_tree(*parent, size, root).parent;
  }
  return hops;
}

TEST(Broadcast, TheTreeReachesEveryMemberOnceInFewHopsFromEveryRoot) {
  for (int size = 1; size <= 33; ++size) {
    for (int root = 0; root < size; ++root) {
      std::multiset<int> reached{root};
      int hops = 0;
      for (int rank = 0; rank < size; ++rank) {
        const TreePlace place = binomial_tree(rank, size, root);
        EXPECT_EQ(place.parent.has_value(), rank != root);
        EXPECT_LE(static_cast<int>(place.children.size()), tree_hops(size));
        for (const int child : place.children) {
          EXPECT_EQ(binomial_tree(child, size, root).parent, rank);
          reached.insert(child);
        }
        hops = std::max(hops, hops_to_root(rank, size, root));
      }
      EXPECT_EQ(reached.size(), static_cast<std::size_t>(size));
      EXPECT_EQ(std::set<int>(reached.begin(), reached.end()).size(), static_cast<std::size_t>(size));
      EXPECT_LE(hops, tree_hops(size)) << size;
    }
  }
  EXPECT_EQ(tree_hops(1), 0);
  EXPECT_EQ(tree_hops(8), 3);
  EXPECT_EQ(tree_hops(9), 4);
}

TEST(Broadcast, EveryMemberGetsTheRootsMessageWhicheverTheRoot) {
  for (int size = 1; size <= 9; ++size) {
    const Mesh mesh(size);
    for (int root = 0; root < size; ++root) {
      std::vector<Result<Message>> got(static_cast<std::size_t>(size), make_error(ErrorCode::kIo, "nothing came"));
      std::vector<std::jthread> members;
      const Payload payload = allocate_payload(1000).value();
      std::memset(payload.bytes.data(), root + 1, payload.bytes.size());
      for (int rank = 0; rank < size; ++rank) {
        members.emplace_back([&, rank] {
          const auto channels = mesh.channels_of(rank);
          Message message;
          if (rank == root) message = {.type = 3, .tag = 77, .meta = {std::byte{5}}, .payload = payload};
          got[static_cast<std::size_t>(rank)] =
              broadcast({.rank = rank, .root = root, .channels = channels}, std::move(message), {}, after_ms(10'000));
        });
      }
      members.clear();  // joins
      for (const auto& message : got) {
        ASSERT_TRUE(message) << message.error().message;
        EXPECT_EQ(message->tag, 77u);
        EXPECT_EQ(message->meta.size(), 1u);
        EXPECT_EQ(message->payload.bytes.data(), payload.bytes.data()) << "between threads nothing is copied";
      }
    }
  }
}

TEST(Broadcast, AMemberThatIsGoneFailsItsParentAndItsWholeSubtreeAtOnce) {
  constexpr int kSize = 8;
  const Mesh mesh(kSize);
  constexpr int kGone = 4;  // of root 0: its children are 6 and 5, and 7 below 6
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank != kGone) mesh.channel(kGone, rank).close();
  }
  std::vector<Status> status(kSize);
  std::vector<std::jthread> members;
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == kGone) continue;
    members.emplace_back([&, rank] {
      const auto channels = mesh.channels_of(rank);
      const auto message = broadcast({.rank = rank, .root = 0, .channels = channels}, {}, {}, after_ms(60'000));
      if (!message) status[static_cast<std::size_t>(rank)] = tl::unexpected(message.error());
    });
  }
  members.clear();  // joins; long before the deadline
  for (const int rank : {0, 5, 6, 7}) {
    ASSERT_FALSE(status[static_cast<std::size_t>(rank)]) << rank;
    EXPECT_EQ(status[static_cast<std::size_t>(rank)].error().code, ErrorCode::kUnavailable);
  }
}

TEST(Broadcast, ASilentRootIsGivenUpAtTheDeadline) {
  const Mesh mesh(3);
  const auto channels = mesh.channels_of(1);
  const auto message = broadcast({.rank = 1, .root = 0, .channels = channels}, {}, {}, after_ms(20));
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().code, ErrorCode::kTimeout);
}

}  // namespace
}  // namespace butterfly
