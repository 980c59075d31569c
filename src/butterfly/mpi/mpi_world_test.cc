// Run by mpirun with any number of members, each of which goes through all cases; those that end the collectives last.
#include "butterfly/mpi/mpi_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace butterfly {
namespace {

MpiWorld* world = nullptr;

MutableByteSpan bytes_of(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values));
}

void add_floats(MutableByteSpan into, ByteSpan from) {
  auto* sums = reinterpret_cast<float*>(into.data());
  const auto* values = reinterpret_cast<const float*>(from.data());
  for (std::size_t i = 0; i < into.size() / sizeof(float); ++i) sums[i] += values[i];
}

/// Sums of these depend on the order.
float brought_by(int rank, std::size_t i) {
  return 0.1F * static_cast<float>(rank + 1) +
         1e4F / static_cast<float>(1 + (i * 7 + static_cast<std::size_t>(rank)) % 13);
}

TEST(DistMpi, SumsAreTakenInTheOrderOfRanksWhateverTheAlgorithmAndTheSize) {
  Collectives& end = world->collectives();
  for (const auto algorithm : {AllReduceAlgorithm::kAuto, AllReduceAlgorithm::kDirect, AllReduceAlgorithm::kRing}) {
    for (const std::size_t count : {0, 1, 2, 3, 1027, 20'011, 300'007}) {
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = brought_by(end.rank(), i);
      const std::uint64_t before = end.stats().bytes_sent;
      const Status status = end.all_reduce(bytes_of(values), sizeof(float), add_floats, algorithm);
      ASSERT_TRUE(status) << status.error().message;
      for (std::size_t i = 0; i < count; ++i) {
        float sum = brought_by(0, i);
        for (int rank = 1; rank < end.size(); ++rank) sum += brought_by(rank, i);
        ASSERT_EQ(values[i], sum) << "element " << i << " of " << count;
      }
      const auto announced = static_cast<double>(end.all_reduce_bytes(count * sizeof(float), algorithm));
      EXPECT_NEAR(static_cast<double>(end.stats().bytes_sent - before), announced, 2.0 * sizeof(float) * end.size());
    }
  }
}

TEST(DistMpi, EveryPartArrivesWhereItBelongs) {
  Collectives& end = world->collectives();
  const auto members = static_cast<std::size_t>(end.size());
  const auto me = static_cast<std::size_t>(end.rank());
  const auto length = [](std::size_t from, std::size_t to) { return (from * 3 + to) % 5 * 40'000; };
  std::vector<std::vector<std::byte>> sent, received, gathered;
  for (std::size_t other = 0; other < members; ++other) {
    sent.emplace_back(length(me, other), static_cast<std::byte>(16 * me + other));
    received.emplace_back(length(other, me));
    gathered.emplace_back(length(other, 1), static_cast<std::byte>(other == me ? me + 1 : 0));
  }
  const std::vector<ByteSpan> to(sent.begin(), sent.end());
  ASSERT_TRUE(end.all_to_all(to, std::vector<MutableByteSpan>(received.begin(), received.end())));
  ASSERT_TRUE(end.all_gather(std::vector<MutableByteSpan>(gathered.begin(), gathered.end())));
  for (std::size_t other = 0; other < members; ++other) {
    EXPECT_EQ(received[other], std::vector(length(other, me), static_cast<std::byte>(16 * other + me)));
    EXPECT_EQ(gathered[other], std::vector(length(other, 1), static_cast<std::byte>(other + 1)));
  }
  for (int root = 0; root < end.size(); ++root) {
    std::vector<std::byte> data(100'000, static_cast<std::byte>(end.rank() == root ? root + 1 : 0));
    ASSERT_TRUE(end.broadcast(data, root));
    EXPECT_EQ(data, std::vector(data.size(), static_cast<std::byte>(root + 1)));
  }
  EXPECT_TRUE(end.barrier());
}

TEST(DistMpi, MessagesToOneMemberAreTakenByTheirLabels) {
  Collectives& end = world->collectives();
  const int next = (end.rank() + 1) % end.size(), before = (end.rank() + end.size() - 1) % end.size();
  if (next == end.rank()) GTEST_SKIP() << "nobody to send to";
  const auto sized = [](std::uint64_t label) { return static_cast<std::size_t>(label % 3 * 50'000); };
  for (const std::uint64_t label : {1, 2, 3, 4}) {
    std::vector<std::byte> sent(sized(label), static_cast<std::byte>(16 * end.rank() + static_cast<int>(label)));
    ASSERT_TRUE(end.send(next, label, sent));
  }
  for (const std::uint64_t label : {3, 1, 4, 2}) {
    std::vector<std::byte> received(sized(label));
    const Status status = end.receive(before, label, received);
    ASSERT_TRUE(status) << status.error().message;
    const auto expected = static_cast<std::byte>(16 * before + static_cast<int>(label));
    EXPECT_TRUE(std::ranges::all_of(received, [&](std::byte byte) { return byte == expected; })) << label;
  }
}

TEST(DistMpi, MembersOfThisMachineShareItsCores) {
  EXPECT_EQ(world->hosts(), 1);
  EXPECT_EQ(world->members_here(), world->size());
  EXPECT_GE(world->threads(), 1);
  EXPECT_LE(world->threads() * world->size(), std::max<int>(world->size(), std::thread::hardware_concurrency()));
}

TEST(DistMpi, MembersAgreeOnWhatWentWrongFirst) {
  const int last = world->size() - 1;
  EXPECT_TRUE(world->settle({}));
  Status mine;
  if (world->rank() == 0 && last > 0) mine = make_error(ErrorCode::kUnavailable, "a member is gone");
  if (world->rank() == last) mine = make_error(ErrorCode::kNotFound, "there is no file");
  const Status agreed = world->settle(mine);
  ASSERT_FALSE(agreed);
  EXPECT_EQ(agreed.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(agreed.error().message, last == 0 ? "there is no file" : fmt::format("rank {}: there is no file", last));
}

// The last case: the collectives are of no use afterwards.
TEST(DistMpi, WhoGivesUpWakesAllOthersAndTheyAgreeOnWhy) {
  Collectives& end = world->collectives();
  if (end.size() == 1) GTEST_SKIP() << "nobody to wake";
  const int last = end.size() - 1;
  Status mine;
  if (end.rank() == last) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    mine = make_error(ErrorCode::kIo, "the disk is full");
    end.abort();
  } else {
    std::vector<float> values(300'000, 1.0F);
    mine = end.all_reduce(bytes_of(values), sizeof(float), add_floats, AllReduceAlgorithm::kAuto);
    ASSERT_FALSE(mine);
    EXPECT_EQ(mine.error().code, ErrorCode::kUnavailable);
  }
  const Status agreed = world->settle(mine);
  ASSERT_FALSE(agreed);
  EXPECT_EQ(agreed.error().message, fmt::format("rank {}: the disk is full", last));
}

TEST(DistMpi, AMemberWhoNeverComesIsNotWaitedForForEver) {
  if (world->size() == 1) GTEST_SKIP() << "nobody to wait for";
  if (world->rank() == 0) {
    std::this_thread::sleep_for(std::chrono::seconds(4));
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  const Status agreed = world->settle(make_error(ErrorCode::kIo, "my own reason"));
  ASSERT_FALSE(agreed);
  EXPECT_EQ(agreed.error().message, "my own reason");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
}

}  // namespace
}  // namespace butterfly

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto opened = butterfly::MpiWorld::open({.member_timeout = std::chrono::milliseconds(1500)});
  if (!opened) {
    std::fprintf(stderr, "%s\n", opened.error().message.c_str());
    return 1;
  }
  butterfly::world = opened->get();
  const int failed = RUN_ALL_TESTS();
  std::fflush(nullptr);
  if (failed != 0) std::_Exit(failed);  // the others' end says nothing of it
  butterfly::world->end(failed);        // by MPI_Abort(), where the collectives have ended on purpose
  return failed;
}
