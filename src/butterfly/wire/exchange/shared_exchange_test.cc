// Shared memory: who gets it, and what is left of it.
#include "butterfly/wire/exchange/shared_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>

#include "butterfly/wire/exchange/exchange_mesh_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

std::size_t named_segments() {
  std::error_code ignored;
  const auto files = std::filesystem::directory_iterator("/dev/shm", ignored);
  return static_cast<std::size_t>(std::ranges::count_if(
      files, [](const auto& file) { return file.path().filename().string().find("butterfly") != std::string::npos; }));
}

TEST(GroupExchange, MembersOfOneHostShareMemoryUnlessForbidden) {
  for (const int members : {2, 3, 8}) {
    const ExchangeMesh shared("shared", members);
    for (const auto& exchange : shared.exchanges) EXPECT_EQ(exchange->engine(), ExchangeEngine::kSharedMemory);
    std::vector<std::uint64_t> before;
    for (const auto& channel : shared.channels[0]) before.push_back(channel ? channel->stats().bytes_sent : 0);
    expect_rounds(shared, 3, [](std::size_t, std::size_t) { return 8192; });
    EXPECT_GT(shared.exchanges[0]->shared_bytes_sent(), 3u * 8192);
    for (std::size_t other = 1; other < shared.size(); ++other) {
      EXPECT_EQ(shared.channels[0][other]->stats().bytes_sent, before[other]) << "nothing beside it";
    }
  }
  const ExchangeMesh apart("tcp", 2);
  EXPECT_EQ(apart.exchanges[0]->engine(), ExchangeEngine::kChannels);
  EXPECT_EQ(apart.exchanges[0]->shared_bytes_sent(), 0u);
  EXPECT_EQ(ExchangeMesh("tcp", 1).exchanges[0]->engine(), ExchangeEngine::kNone);
}

TEST(GroupExchange, AMemberElsewhereIsReachedOverItsChannelsByThoseWhoShare) {
  const ExchangeMesh mesh("shared", 4, /*apart=*/true);
  for (std::size_t member = 0; member < 3; ++member) {
    EXPECT_EQ(mesh.exchanges[member]->engine(), ExchangeEngine::kBoth);
  }
  EXPECT_EQ(mesh.exchanges[3]->engine(), ExchangeEngine::kChannels);
  for (const std::size_t bytes : {0u, 1u, 8192u, 500'000u}) {
    expect_rounds(mesh, 5, [&](std::size_t, std::size_t) { return bytes; });
  }
  expect_rounds(mesh, 2,
                [&](std::size_t sender, std::size_t receiver) { return (sender + 1) % 4 == receiver ? 500'000 : 0; });
  mesh.run([&](std::size_t me) {
    if (me == 0) return mesh.exchanges[0]->abort();
    ExchangeBuffers buffers(4, me, 0, [](std::size_t, std::size_t) { return 8192; });
    EXPECT_FALSE(mesh.exchanges[me]->exchange(buffers.to, buffers.from)) << me;
  });
}

TEST(SharedSegment, IsGivenToThoseWhoKnowItsNameAndIsTheSame) {
  const SharedMemory mine = SharedMemory::create(4096).value();
  const SegmentOffer offer = SegmentOffer::create().value();
  const SegmentRequest request = SegmentRequest::connect(offer.name()).value();
  ASSERT_TRUE(offer.hand_out(mine.descriptor(), 1, after_ms(5000)));
  const SharedMemory theirs = request.take(4096, after_ms(5000)).value();
  EXPECT_NE(mine.bytes().data(), theirs.bytes().data());
  mine.bytes()[4095] = std::byte{42};
  EXPECT_EQ(theirs.bytes()[4095], std::byte{42});
  EXPECT_EQ(::ftruncate(theirs.descriptor(), 0), -1) << "or the other would die of reading";
}

TEST(SharedSegment, AnOfferThatIsNotThereOrNotKeptIsSaid) {
  EXPECT_EQ(SegmentRequest::connect("butterfly-nobody").error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(SegmentRequest::connect("").error().code, ErrorCode::kUnavailable);
  auto offer = std::make_unique<SegmentOffer>(SegmentOffer::create().value());
  const SegmentRequest request = SegmentRequest::connect(offer->name()).value();
  EXPECT_EQ(request.take(4096, after_ms(20)).error().code, ErrorCode::kTimeout);
  offer.reset();
  EXPECT_EQ(request.take(4096, after_ms(5000)).error().code, ErrorCode::kUnavailable);
  const SegmentOffer waits = SegmentOffer::create().value();
  EXPECT_EQ(waits.hand_out(SharedMemory::create(64).value().descriptor(), 1, after_ms(20)).error().code,
            ErrorCode::kTimeout);
}

TEST(SharedExchange, CountsThatCannotBeEndTheExchange) {
  // Two bells, then four rings, which begin with a line that says how much was written into them and one that says how
  // much was read; the second leads from member 0 to member 1, the third back.
  constexpr std::size_t kBells = 2 * 256, kLine = 64;
  for (const std::size_t sender : {0u, 1u}) {
    SharedMemory memory = SharedMemory::create(SharedExchange::segment_bytes(2)).value();
    const std::size_t ring_bytes = (memory.bytes().size() - kBells) / 4;
    const std::size_t theirs = kBells + (sender == 0 ? ring_bytes + kLine : 2 * ring_bytes);
    std::ranges::fill(memory.bytes().subspan(theirs, 8), std::byte{0x7f});
    const auto channels = connect_all("inproc", 2);
    SharedExchange exchange(0, std::move(memory), channels[0], {});
    ExchangeBuffers buffers(2, 0, 0, [=](std::size_t from, std::size_t) { return from == sender ? 100 : 0; });
    const Status status = exchange.exchange(buffers.to, buffers.from);
    ASSERT_FALSE(status) << sender;
    EXPECT_EQ(status.error().code, ErrorCode::kProtocol) << status.error().message;
    EXPECT_THAT(status.error().message, HasSubstr(sender == 0 ? "bytes more than there were" : "bytes are in a ring"));
  }
}

/// A process that makes an exchange with this one, three rounds of it, and then waits to be killed.
class ExchangeSibling {
 public:
  explicit ExchangeSibling(Listener& listener) {
    const std::string address = listener.address();
    pid_ = ::fork();
    if (pid_ == 0) live(address);
  }
  ~ExchangeSibling() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  [[noreturn]] static void live(const std::string& address) {
    auto channel = connect_tcp(address, {}, after_ms(10'000));
    if (!channel) ::_exit(1);
    auto exchange = GroupExchange::create(1, {std::shared_ptr<Channel>(std::move(*channel)), nullptr}, {});
    if (!exchange) ::_exit(1);
    for (std::size_t round = 0; round < 3; ++round) {
      ExchangeBuffers buffers(2, 1, round, [](std::size_t, std::size_t) { return 100'000; });
      if (!(*exchange)->exchange(buffers.to, buffers.from) || buffers.wrong(1, round)) ::_exit(1);
    }
    for (;;) ::pause();
  }
  pid_t pid_ = -1;
};

TEST(FaultsSharedExchange, AKilledProcessLeavesNobodyWaitingAndNothingBehind) {
  const std::size_t before = named_segments();
  const auto listener = Listener::create({}).value();
  ExchangeSibling sibling(*listener);
  auto arrival = listener->accept(after_ms(10'000));
  ASSERT_TRUE(arrival);
  auto exchange = GroupExchange::create(0, {nullptr, std::shared_ptr<Channel>(std::move(arrival->channel))}, {});
  ASSERT_TRUE(exchange) << exchange.error().message;
  EXPECT_EQ((*exchange)->engine(), ExchangeEngine::kSharedMemory);
  for (std::size_t round = 0; round < 3; ++round) {
    ExchangeBuffers buffers(2, 0, round, [](std::size_t, std::size_t) { return 100'000; });
    const Status status = (*exchange)->exchange(buffers.to, buffers.from);
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_FALSE(buffers.wrong(0, round));
  }
  std::thread waiter([&] {
    ExchangeBuffers buffers(2, 0, 3, [](std::size_t, std::size_t) { return 100'000; });
    const Status status = (*exchange)->exchange(buffers.to, buffers.from);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
    EXPECT_THAT(status.error().message, HasSubstr("went away"));
  });
  sibling.kill();
  waiter.join();
  EXPECT_EQ(named_segments(), before);
}

}  // namespace
}  // namespace butterfly
