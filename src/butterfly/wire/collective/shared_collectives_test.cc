// Collectives on data in memory that all members have mapped: the same bits as over channels, and nobody waits for the
// dead. What they do with data elsewhere is tested with the other kinds (collectives_test.cc, "memory").
#include "butterfly/wire/collective/shared_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <random>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/wire/collective/collectives_mesh_test.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kRingCount = 70'003;  // more than the 256 KiB from which on sums are a ring's

std::span<float> floats_in(const SharedMemory& memory, std::size_t begin, std::size_t count) {
  return {reinterpret_cast<float*>(memory.bytes().data()) + begin, count};
}

void fill_normal(std::span<float> values, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
}

std::uint64_t sent_over(const CollectivesMesh& mesh) {
  std::uint64_t bytes = 0;
  for (const auto& channels : mesh.channels) {
    for (const auto& channel : channels) bytes += channel ? channel->stats().bytes_sent : 0;
  }
  return bytes;
}

Status sum(Collectives& end, std::span<float> values, const ReduceFunction& add = add_floats) {
  return end.all_reduce(std::as_writable_bytes(values), sizeof(float), add, AllReduceAlgorithm::kAuto);
}

TEST(SharedCollectives, SumsHaveTheBitsOfARingAndNothingTravels) {
  for (const int members : {2, 3, 4, 5}) {
    const CollectivesMesh shared("memory", members), apart("tcp", members);
    for (const std::size_t count : {kRingCount, std::size_t{300'000}}) {
      constexpr std::size_t kBegin = 48;  // not all of the memory
      std::vector<std::vector<float>> expected(static_cast<std::size_t>(members));
      apart.expect_ok([&](Collectives& end) {
        auto& values = expected[static_cast<std::size_t>(end.rank())];
        values.resize(count);
        fill_normal(values, end.rank());
        return sum(end, values);
      });
      const std::uint64_t before = sent_over(shared);
      shared.expect_ok([&](Collectives& end) -> Status {
        const auto values = floats_in(shared.memories[static_cast<std::size_t>(end.rank())], kBegin, count);
        fill_normal(values, end.rank());
        const std::uint64_t counted = end.stats().bytes_sent;
        BF_TRY(sum(end, values));
        EXPECT_EQ(std::memcmp(values.data(), expected[0].data(), values.size_bytes()), 0) << members << " members";
        const auto formula = static_cast<double>(end.all_reduce_bytes(values.size_bytes(), AllReduceAlgorithm::kAuto));
        EXPECT_NEAR(static_cast<double>(end.stats().bytes_sent - counted), formula, 8.0 * members);
        return {};
      });
      EXPECT_EQ(sent_over(shared), before) << "nothing travels";
    }
  }
}

TEST(SharedCollectives, ElementsAreNeverCut) {
  const CollectivesMesh mesh("memory", 3);
  mesh.expect_ok([&](Collectives& end) -> Status {
    const auto values = floats_in(mesh.memories[static_cast<std::size_t>(end.rank())], 0, 3 * 30'011);
    std::ranges::copy(brought_by(end.rank(), values.size()), values.begin());
    const auto add = [](MutableByteSpan into, ByteSpan from) {
      EXPECT_EQ(into.size() % 12, 0u);
      add_floats(into, from);
    };
    BF_TRY(end.all_reduce(std::as_writable_bytes(values), 12, add, AllReduceAlgorithm::kRing));
    EXPECT_FALSE(wrong_sum({values.begin(), values.end()}, 3));
    return {};
  });
}

TEST(SharedCollectives, PartsComeWhereTheyBelongWhetherTheyLieInTheMemoryOrElsewhere) {
  constexpr std::size_t kMembers = 3, kPart = 40'000;  // floats: three of them are more than travels at once
  const CollectivesMesh mesh("memory", kMembers);
  for (int apart = -1; apart < static_cast<int>(kMembers); ++apart) {  // a member whose parts lie elsewhere, or none
    const std::uint64_t before = sent_over(mesh);
    mesh.expect_ok([&](Collectives& end) -> Status {
      const auto me = static_cast<std::size_t>(end.rank());
      std::vector<float> elsewhere(2 * kMembers * kPart);
      const std::span<float> all =
          end.rank() == apart ? std::span<float>(elsewhere) : floats_in(mesh.memories[me], 0, 2 * kMembers * kPart);
      std::vector<ByteSpan> to;
      std::vector<MutableByteSpan> from, parts;
      for (std::size_t member = 0; member < kMembers; ++member) {
        const auto given = all.subspan(member * kPart, kPart), got = all.subspan((kMembers + member) * kPart, kPart);
        std::ranges::fill(given, static_cast<float>(10 * me + member));
        to.push_back(std::as_bytes(given));
        from.push_back(std::as_writable_bytes(got));
        parts.push_back(std::as_writable_bytes(given));
      }
      BF_TRY(end.all_to_all(to, from));
      for (std::size_t member = 0; member < kMembers; ++member) {
        EXPECT_EQ(all[(kMembers + member + 1) * kPart - 1], static_cast<float>(10 * member + me));
      }
      BF_TRY(end.all_gather(parts));
      for (std::size_t member = 0; member < kMembers; ++member) {
        EXPECT_EQ(all[(member + 1) * kPart - 1], static_cast<float>(11 * member)) << member;
      }
      return {};
    });
    EXPECT_EQ(sent_over(mesh) == before, apart < 0);
  }
}

// Fails when an operation ends here while another member still reads what this one gave.
TEST(SharedCollectives, AMemberThatIsDoneMayWriteOverWhatItGave) {
  constexpr std::size_t kMembers = 3, kPart = kSanitized ? 50'000 : 100'000;  // floats
  const CollectivesMesh mesh("memory", kMembers);
  mesh.expect_ok([&](Collectives& end) -> Status {
    const auto me = static_cast<std::size_t>(end.rank());
    const auto given = floats_in(mesh.memories[me], 0, kMembers * kPart);
    std::vector<float> got(given.size());
    std::vector<ByteSpan> to;
    std::vector<MutableByteSpan> from;
    for (std::size_t member = 0; member < kMembers; ++member) {
      to.push_back(std::as_bytes(given.subspan(member * kPart, kPart)));
      from.push_back(std::as_writable_bytes(std::span(got).subspan(member * kPart, kPart)));
    }
    for (int round = 0; round < (kSanitized ? 8 : 20); ++round) {
      std::ranges::fill(given, static_cast<float>(me + 1));
      BF_TRY(sum(end, given));
      std::ranges::fill(given.subspan(me * kPart, kPart), 6.0f + 1);  // the part whose sum the others took from here
      EXPECT_EQ(std::ranges::count(given, 6.0f), 2 * kPart) << "member " << me;
      std::ranges::fill(given, static_cast<float>(me + 1));
      BF_TRY(end.all_to_all(to, from));
      std::ranges::fill(given, 0.0f);
      for (std::size_t member = 0; member < kMembers; ++member) {
        const auto part = std::span(got).subspan(member * kPart, kPart);
        if (member == me) continue;
        EXPECT_EQ(std::ranges::count(part, static_cast<float>(member + 1)), kPart) << member << " to " << me;
      }
    }
    return {};
  });
}

TEST(SharedCollectives, AreNotMadeUnlessAllMaySharesAsMuch) {
  const auto shares = [](const std::function<ReadableMemory(int rank, const SharedMemory&)>& given,
                         SharedMemoryUse last_use) {
    const auto channels = connect_all("tcp", 3);
    std::vector<int> shared(3);
    ExchangeMesh::run_threads(3, [&](std::size_t me) {
      const SharedMemory memory = SharedMemory::create(kRingCount * sizeof(float)).value();
      CollectivesOptions options = CollectivesMesh::test_options();
      if (me == 2) options.shared_memory = last_use;
      const auto end = make_collectives(static_cast<int>(me), channels[me], options);
      const auto done = end->share_memory(given(static_cast<int>(me), memory));
      ASSERT_TRUE(done) << done.error().message;
      shared[me] = *done ? 1 : 0;
      const auto values = floats_in(memory, 0, kRingCount - 1);
      std::ranges::copy(brought_by(end->rank(), values.size()), values.begin());
      ASSERT_TRUE(sum(*end, values));
      EXPECT_FALSE(wrong_sum({values.begin(), values.end()}, 3));
    });
    return shared;
  };
  const auto whole = [](int, const SharedMemory& memory) {
    return ReadableMemory{.bytes = memory.bytes(), .descriptor = memory.descriptor()};
  };
  const auto of_one_less = [&](int rank, const SharedMemory& memory) {
    return ReadableMemory{.bytes = memory.bytes().first(memory.bytes().size() - (rank == 1 ? 4 : 0)),
                          .descriptor = memory.descriptor()};
  };
  const auto of_one_none = [&](int rank, const SharedMemory& memory) {
    return ReadableMemory{.bytes = memory.bytes(), .descriptor = rank == 0 ? -1 : memory.descriptor()};
  };
  // Said to be as large as the others', but it is not: found out when it is to be mapped.
  const auto of_one_lie = [&](int rank, const SharedMemory& memory) {
    static const SharedMemory small = SharedMemory::create(64).value();
    return ReadableMemory{.bytes = memory.bytes(), .descriptor = rank == 1 ? small.descriptor() : memory.descriptor()};
  };
  using ::testing::Each;
  EXPECT_THAT(shares(whole, SharedMemoryUse::kAllowed), Each(1));
  EXPECT_THAT(shares(whole, SharedMemoryUse::kForbidden), Each(0));
  EXPECT_THAT(shares(of_one_less, SharedMemoryUse::kAllowed), Each(0));
  EXPECT_THAT(shares(of_one_none, SharedMemoryUse::kAllowed), Each(0));
  EXPECT_THAT(shares(of_one_lie, SharedMemoryUse::kAllowed), Each(0));
}

TEST(SharedCollectives, PartsThatLieElsewhereGoThroughMemoryToo) {
  for (const int members : {2, 3}) {
    const CollectivesMesh mesh("memory", members);
    const std::uint64_t before = sent_over(mesh);
    mesh.expect_ok([&](Collectives& end) -> Status {
      const auto everyone = static_cast<std::size_t>(members), me = static_cast<std::size_t>(end.rank());
      std::vector<float> mine(kRingCount), got(everyone * kRingCount);
      fill_normal(mine, end.rank());
      std::vector<MutableByteSpan> from;
      for (std::size_t member = 0; member < everyone; ++member) {
        from.push_back(std::as_writable_bytes(std::span(got).subspan(member * kRingCount, kRingCount)));
      }
      const std::uint64_t counted = end.stats().bytes_sent;
      BF_TRY(end.all_to_all(std::vector<ByteSpan>(everyone, bytes_of(mine)), from));
      EXPECT_EQ(end.stats().bytes_sent - counted, (everyone - 1) * kRingCount * sizeof(float));
      for (std::size_t member = 0; member < everyone; ++member) {
        std::vector<float> theirs(kRingCount);
        fill_normal(theirs, static_cast<int>(member));
        EXPECT_TRUE(std::ranges::equal(theirs, std::span(got).subspan(member * kRingCount, kRingCount))) << me;
      }
      return {};
    });
    EXPECT_EQ(sent_over(mesh), before);
  }
}

TEST(SharedCollectives, SizesAndOperationsThatDisagreeEndThem) {
  for (const bool other_operation : {false, true}) {
    const CollectivesMesh mesh("memory", 3);
    const auto seen = mesh.run([&](Collectives& end) -> Status {
      const SharedMemory& memory = mesh.memories[static_cast<std::size_t>(end.rank())];
      if (end.rank() != 1) return sum(end, floats_in(memory, 0, kRingCount));
      if (!other_operation) return sum(end, floats_in(memory, 0, kRingCount + 1));
      return end.all_to_all(std::vector<ByteSpan>(3), std::vector<MutableByteSpan>(3));
    });
    for (const Status& status : seen) ASSERT_FALSE(status);
    EXPECT_EQ(seen[1].error().code, ErrorCode::kProtocol);
    EXPECT_THAT(seen[1].error().message, other_operation
                                             ? AllOf(HasSubstr("all_reduce"), HasSubstr("all_to_all"))
                                             : AllOf(HasSubstr(fmt::format("{} bytes", kRingCount * 4)),
                                                     HasSubstr(fmt::format("expected {}", kRingCount * 4 + 4))));
  }
}

TEST(SharedCollectives, AMemberThatNeverComesCostsNoMoreThanTheTimeout) {
  const CollectivesMesh mesh("memory", 3, {.member_timeout = std::chrono::milliseconds(300)});
  const auto seen = mesh.run([&](Collectives& end) -> Status {
    if (end.rank() == 2) return {};
    return sum(end, floats_in(mesh.memories[static_cast<std::size_t>(end.rank())], 0, kRingCount));
  });
  ASSERT_FALSE(seen[0] || seen[1]);
  const Error& first = seen[seen[0].error().code == ErrorCode::kTimeout ? 0 : 1].error();
  EXPECT_EQ(first.code, ErrorCode::kTimeout);
  EXPECT_THAT(first.message, HasSubstr("member 2"));
}

TEST(SharedCollectives, AnAbortWakesWhoWaitsHereAndElsewhere) {
  const CollectivesMesh mesh("memory", 3);
  std::atomic<int> waiting{0};
  ExchangeMesh::run_threads(3, [&](std::size_t me) {
    if (me == 2) {
      while (waiting < 2) std::this_thread::yield();
      return mesh.ends[2]->abort();
    }
    ++waiting;
    const Status status = sum(*mesh.ends[me], floats_in(mesh.memories[me], 0, kRingCount));
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
  });
}

TEST(SharedCollectives, APlaceBeyondTheMemoryIsRefused) {
  for (const auto& [begin, bytes] : {std::pair<std::uint64_t, std::uint64_t>{4096, 4},
                                     {4093, 4},
                                     {0, 4097},
                                     {UINT64_MAX - 3, 8},
                                     {8, UINT64_MAX - 4}}) {
    SharedMemory control_block = SharedMemory::create(SharedCollectives::control_block_bytes(2)).value();
    // A line, then a slot for each member: a line, then what it comes for in operations of even and of odd numbers.
    const std::size_t slot_bytes = (control_block.bytes().size() - 64) / 2, call_bytes = (slot_bytes - 64) / 2;
    std::byte* const place = control_block.bytes().data() + 64 + slot_bytes;
    auto* slot = reinterpret_cast<std::uint64_t*>(place);
    auto* call = reinterpret_cast<std::uint64_t*>(place + 64 + call_bytes);
    *slot = 1;
    call[0] = 1 << 8 | 1;  // the first operation, an all_to_all
    call[1] = begin;
    call[2] = bytes;
    std::vector<SharedMemory> memories(2);
    memories[1] = SharedMemory::create(4096).value();
    const auto channels = connect_all("inproc", 2);
    std::vector<std::byte> room(4);
    SharedCollectives member(0, std::move(control_block), std::move(memories), room, channels[0], {});
    const auto read = member.all_to_all(std::vector<ByteSpan>(2), std::vector<MutableByteSpan>{{}, room});
    ASSERT_FALSE(read) << begin;
    EXPECT_EQ(read.error().code, ErrorCode::kProtocol);
    EXPECT_THAT(read.error().message, HasSubstr(fmt::format("{} bytes from {} on of a memory of 4096", bytes, begin)));
  }
}

/// A process that is member 1 of two: makes three sums with this one, and is killed while it reads in the fourth.
class Sibling {
 public:
  explicit Sibling(Listener& listener) {
    const std::string address = listener.address();
    pid_ = ::fork();
    if (pid_ == 0) live(address);
  }
  ~Sibling() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  [[noreturn]] static void live(const std::string& address) {
    auto channel = connect_tcp(address, {}, after_ms(10'000));
    if (!channel) ::_exit(1);
    const auto end = make_collectives(1, {std::shared_ptr<Channel>(std::move(*channel)), nullptr}, {});
    const SharedMemory memory = SharedMemory::create(kRingCount * sizeof(float)).value();
    const auto shared = end->share_memory({.bytes = memory.bytes(), .descriptor = memory.descriptor()});
    if (!shared || !*shared) ::_exit(1);
    for (int round = 0;; ++round) {
      const auto values = floats_in(memory, 0, kRingCount);
      std::ranges::copy(brought_by(1, values.size()), values.begin());
      const auto add = [&](MutableByteSpan into, ByteSpan from) {
        if (round == 3) ::raise(SIGKILL);
        add_floats(into, from);
      };
      if (!sum(*end, values, add)) ::_exit(1);
    }
  }
  pid_t pid_ = -1;
};

TEST(FaultsSharedCollectives, AProcessKilledWhileItReadsLeavesNobodyWaiting) {
  const auto listener = Listener::create({}).value();
  const Sibling sibling(*listener);
  auto arrival = listener->accept(after_ms(10'000));
  ASSERT_TRUE(arrival);
  const auto end = make_collectives(0, {nullptr, std::shared_ptr<Channel>(std::move(arrival->channel))}, {});
  const SharedMemory memory = SharedMemory::create(kRingCount * sizeof(float)).value();
  const auto shared = end->share_memory({.bytes = memory.bytes(), .descriptor = memory.descriptor()});
  ASSERT_TRUE(shared && *shared);
  const auto values = floats_in(memory, 0, kRingCount);
  for (int round = 0; round < 4; ++round) {
    std::ranges::copy(brought_by(0, values.size()), values.begin());
    const Status status = sum(*end, values);
    if (round < 3) {
      ASSERT_TRUE(status) << status.error().message;
      EXPECT_FALSE(wrong_sum({values.begin(), values.end()}, 2));
    } else {
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
      EXPECT_THAT(status.error().message, AllOf(HasSubstr("went away"), HasSubstr("operation 4 ")));
    }
  }
}

}  // namespace
}  // namespace butterfly
