// What all kinds of collectives promise, tested on all.
#include "butterfly/wire/collective/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <map>
#include <random>

#include "butterfly/trace/trace.h"
#include "butterfly/wire/collective/collectives_mesh_test.h"
#include "butterfly/wire/collective/piece_channels.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::array kAlgorithms{AllReduceAlgorithm::kAuto, AllReduceAlgorithm::kDirect, AllReduceAlgorithm::kRing,
                                 AllReduceAlgorithm::kRecursiveHalving};

#if defined(BUTTERFLY_TINY) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kLargeCount = 30'011;
#else
constexpr std::size_t kLargeCount = 300'007;  // more than a connection's buffers and the borders of kAuto
#endif

class CollectivesTest : public ::testing::TestWithParam<std::string> {};

void expect_sums(const CollectivesMesh& mesh, std::size_t count, AllReduceAlgorithm algorithm) {
  mesh.expect_ok([&](Collectives& end) -> Status {
    std::vector<float> values = brought_by(end.rank(), count);
    BF_TRY(end.all_reduce(bytes_of(values), sizeof(float), add_floats, algorithm));
    const auto wrong = wrong_sum(values, end.size());
    EXPECT_FALSE(wrong) << to_string(algorithm) << ", " << end.size() << " members: " << *wrong;
    return {};
  });
}

TEST_P(CollectivesTest, EveryMemberGetsTheSumWhateverAlgorithmNumberOfMembersAndSize) {
  for (const int members : {1, 2, 3, 4, 5, 6, 7, 8, 10}) {
    const CollectivesMesh mesh(GetParam(), members);
    for (const AllReduceAlgorithm algorithm : kAlgorithms) {
      for (const std::size_t count : {0, 1, 2, 3, 7, 9, 1000, 1027, 5003, 20'011}) {
        expect_sums(mesh, count, algorithm);
      }
    }
  }
}

TEST_P(CollectivesTest, SumsLargerThanAnyBufferPassEachOther) {
  for (const int members : {2, 3, 5}) {
    CollectivesOptions options = CollectivesMesh::test_options();
    options.piece_bytes = 64 * 1024;
    const CollectivesMesh mesh(GetParam(), members, options);
    for (const AllReduceAlgorithm algorithm : kAlgorithms) expect_sums(mesh, kLargeCount, algorithm);
  }
}

TEST_P(CollectivesTest, SpansAreAsLongAsTheirStatisticsAndSayWhatWasSent) {
  if (trace::kRingSpans < 4096) GTEST_SKIP() << "a ring of " << trace::kRingSpans << " spans is too small";
  const CollectivesMesh mesh(GetParam(), 3);
  trace::reset();
  trace::set_recording(true);
  std::atomic<std::uint64_t> wait_ns{0}, bytes_sent{0};
  mesh.expect_ok([&](Collectives& end) -> Status {
    const CollectiveStats before = end.stats();
    std::vector<float> values = brought_by(end.rank(), 10'000);
    BF_TRY(end.all_reduce(bytes_of(values), sizeof(float), add_floats, AllReduceAlgorithm::kAuto));
    std::array<std::array<std::byte, 100>, 3> parts{};
    const std::array<MutableByteSpan, 3> spans{parts[0], parts[1], parts[2]};
    BF_TRY(end.all_gather(spans));
    BF_TRY(end.broadcast(parts[0], 1));
    wait_ns += end.stats().wait_ns - before.wait_ns;
    bytes_sent += end.stats().bytes_sent - before.bytes_sent;
    return {};
  });
  trace::set_recording(false);
  std::uint64_t lengths_ns = 0, sent = 0;
  std::map<trace::Zone, int> counts;
  for (const trace::Span& span : trace::drain().spans) {
    const bool all_reduce = span.zone == trace::Zone::kAllReduce;
    if (!all_reduce && span.zone != trace::Zone::kAllGather && span.zone != trace::Zone::kBroadcast) continue;
    ++counts[span.zone];
    lengths_ns += span.end_ns - span.begin_ns;
    sent += span.work.bytes;
    EXPECT_EQ(span.work.number, 3U);
    const std::uint32_t elements = all_reduce ? 10'000 : span.zone == trace::Zone::kAllGather ? 300 : 100;
    EXPECT_EQ(span.work.in, elements);
    EXPECT_EQ(span.work.out, all_reduce ? sizeof(float) : 1);
  }
  EXPECT_EQ(counts[trace::Zone::kAllReduce], 3);
  EXPECT_EQ(counts[trace::Zone::kAllGather], 3);
  EXPECT_EQ(counts[trace::Zone::kBroadcast], 3);
  EXPECT_EQ(lengths_ns, wait_ns);
  EXPECT_EQ(sent, bytes_sent);
  trace::reset();
}

TEST_P(CollectivesTest, AllMembersGetTheSameBits) {
  for (const int members : {2, 3, 7}) {
    const CollectivesMesh mesh(GetParam(), members);
    for (const AllReduceAlgorithm algorithm : kAlgorithms) {
      std::vector<std::vector<float>> results(static_cast<std::size_t>(members));
      mesh.expect_ok([&](Collectives& end) {
        std::mt19937 random(static_cast<unsigned>(end.rank()));
        std::normal_distribution<float> normal;
        std::vector<float>& values = results[static_cast<std::size_t>(end.rank())];
        values.resize(7001);
        for (float& value : values) value = normal(random);
        return end.all_reduce(bytes_of(values), sizeof(float), add_floats, algorithm);
      });
      for (const auto& values : results) {
        EXPECT_EQ(std::memcmp(values.data(), results[0].data(), values.size() * sizeof(float)), 0)
            << to_string(algorithm) << ", " << members << " members";
      }
    }
  }
}

TEST_P(CollectivesTest, ElementsAreNeverCut) {
  // Three floats each, in pieces of 4096 bytes, which 12 does not divide.
  const CollectivesMesh mesh(GetParam(), 3);
  for (const AllReduceAlgorithm algorithm : kAlgorithms) {
    mesh.expect_ok([&](Collectives& end) -> Status {
      std::vector<float> values = brought_by(end.rank(), 3 * 5003);
      const auto add = [](MutableByteSpan into, ByteSpan from) {
        EXPECT_EQ(into.size() % 12, 0u);
        add_floats(into, from);
      };
      BF_TRY(end.all_reduce(bytes_of(values), 12, add, algorithm));
      EXPECT_FALSE(wrong_sum(values, 3)) << *wrong_sum(values, 3);
      return {};
    });
  }
}

TEST_P(CollectivesTest, CountedBytesAreThoseOfTheFormula) {
  for (const int members : {2, 3, 4, 7, 8}) {
    const CollectivesMesh mesh(GetParam(), members);
    for (const AllReduceAlgorithm algorithm : kAlgorithms) {
      for (const std::size_t count : {std::size_t{1000}, std::size_t{5003}, std::size_t{262'147}}) {
        if (count > kLargeCount) continue;
        mesh.expect_ok([&](Collectives& end) -> Status {
          std::vector<float> values = brought_by(end.rank(), count);
          const std::uint64_t before = end.stats().bytes_sent;
          BF_TRY(end.all_reduce(bytes_of(values), sizeof(float), add_floats, algorithm));
          const auto sent = static_cast<double>(end.stats().bytes_sent - before);
          const auto formula = static_cast<double>(end.all_reduce_bytes(count * sizeof(float), algorithm));
          // A member's parts may have an element more than others', once for each halving, or in two parts of a ring.
          const int elements = 1 + static_cast<int>(std::bit_width(static_cast<unsigned>(members)));
          EXPECT_NEAR(sent, formula, sizeof(float) * elements) << to_string(algorithm) << ", " << members << " members";
          if (algorithm == AllReduceAlgorithm::kRing && count > 100'000) {
            const double ring = 2.0 * (members - 1) / members * static_cast<double>(count * sizeof(float));
            EXPECT_NEAR(sent, ring, 0.01 * ring);
          }
          return {};
        });
      }
    }
  }
}

/// What member `sender` gives `receiver` in a round where pairs differ in size.
std::vector<std::byte> part_between(std::size_t sender, std::size_t receiver) {
  std::vector<std::byte> bytes((sender * 7 + receiver * 3) * 1009 % 9001);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = exchanged_byte(sender, receiver, 0, i);
  return bytes;
}

TEST_P(CollectivesTest, AllToAllBringsEveryPartWhereItBelongs) {
  for (const std::size_t members : {1u, 2u, 3u, 8u}) {
    const CollectivesMesh mesh(GetParam(), static_cast<int>(members));
    mesh.expect_ok([&](Collectives& end) -> Status {
      const auto me = static_cast<std::size_t>(end.rank());
      std::vector<std::vector<std::byte>> sent(members), got(members);
      for (std::size_t other = 0; other < members; ++other) {
        sent[other] = part_between(me, other);
        got[other].resize(part_between(other, me).size());
      }
      BF_TRY(end.all_to_all(std::vector<ByteSpan>(sent.begin(), sent.end()),
                            std::vector<MutableByteSpan>(got.begin(), got.end())));
      for (std::size_t other = 0; other < members; ++other) EXPECT_EQ(got[other], part_between(other, me));
      return {};
    });
  }
}

TEST_P(CollectivesTest, AllGatherAndBroadcastBringEveryoneTheSame) {
  for (const std::size_t members : {1u, 2u, 3u, 5u, 8u}) {
    const CollectivesMesh mesh(GetParam(), static_cast<int>(members));
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{120'007}}) {
      mesh.expect_ok([&](Collectives& end) -> Status {
        const auto me = static_cast<std::size_t>(end.rank());
        const auto expected = [&](std::size_t owner) {
          std::vector<std::byte> part(bytes / (owner + 1));
          for (std::size_t i = 0; i < part.size(); ++i) part[i] = exchanged_byte(owner, owner, 1, i);
          return part;
        };
        std::vector<std::vector<std::byte>> parts(members);
        for (std::size_t owner = 0; owner < members; ++owner) parts[owner].resize(expected(owner).size());
        parts[me] = expected(me);
        BF_TRY(end.all_gather(std::vector<MutableByteSpan>(parts.begin(), parts.end())));
        for (std::size_t owner = 0; owner < members; ++owner) EXPECT_EQ(parts[owner], expected(owner));

        for (std::size_t root = 0; root < members; ++root) {
          std::vector<std::byte> data = me == root ? expected(0) : std::vector<std::byte>(bytes);
          BF_TRY(end.broadcast(data, static_cast<int>(root)));
          EXPECT_EQ(data, expected(0)) << "from " << root;
        }
        return {};
      });
    }
  }
}

// Fails when a message that comes before it is asked for is lost or taken for another, or a sender waits for anyone.
TEST_P(CollectivesTest, MessagesToOneMemberAreReceivedByLabelInAnyOrderAndMixWithOperationsOfAll) {
  for (const int members : {2, 3}) {
    const CollectivesMesh mesh(GetParam(), members);
    mesh.expect_ok([&](Collectives& end) -> Status {
      const int next = (end.rank() + 1) % end.size(), before = (end.rank() + end.size() - 1) % end.size();
      const std::uint64_t sent_before = end.stats().bytes_sent;
      constexpr std::size_t kSizes[] = {kLargeCount, 7, 0, 1000};
      std::uint64_t bytes = 0;
      for (std::uint64_t label = 0; label < std::size(kSizes); ++label) {
        const std::vector<float> values = brought_by(end.rank(), kSizes[label]);
        BF_TRY(end.send(next, label, std::as_bytes(std::span(values))));
        bytes += values.size() * sizeof(float);
      }
      EXPECT_EQ(end.stats().bytes_sent - sent_before, bytes);
      for (const std::uint64_t label : {3u, 0u, 2u, 1u}) {
        std::vector<float> values(kSizes[label]);
        BF_TRY(end.receive(before, label, bytes_of(values)));
        EXPECT_EQ(values, brought_by(before, kSizes[label])) << "label " << label;
      }
      std::vector<float> values = brought_by(end.rank(), 1000);
      BF_TRY(end.all_reduce(bytes_of(values), sizeof(float), add_floats, AllReduceAlgorithm::kAuto));
      EXPECT_FALSE(wrong_sum(values, end.size()));
      return {};
    });
  }
}

TEST_P(CollectivesTest, NobodyLeavesABarrierBeforeTheLastHasCome) {
  for (const int members : {1, 2, 3, 7, 8}) {
    const CollectivesMesh mesh(GetParam(), members);
    std::atomic<int> come{0};
    mesh.expect_ok([&](Collectives& end) -> Status {
      for (int round = 1; round <= 50; ++round) {
        ++come;
        BF_TRY(end.barrier());
        EXPECT_GE(come.load(), round * members);
        BF_TRY(end.barrier());
      }
      return {};
    });
  }
}

TEST_P(CollectivesTest, CanonicalSumsHaveTheSameBitsForEveryNumberOfMembers) {
  // Eight leaves, held in runs by 1 to 8 members, folded in a fixed tree: how a deterministic step adds gradients.
  constexpr std::size_t kLeaves = 8, kCount = 2003;
  const auto leaf = [](std::size_t number) {
    std::mt19937 random(static_cast<unsigned>(number));
    std::normal_distribution<float> normal;
    std::vector<float> values(kCount);
    for (float& value : values) value = normal(random);
    return values;
  };
  std::vector<float> first;
  for (std::size_t members = 1; members <= kLeaves; ++members) {
    const CollectivesMesh mesh(GetParam(), static_cast<int>(members));
    const auto run_of = [&](std::size_t member) {
      return std::pair(member * kLeaves / members, (member + 1) * kLeaves / members);
    };
    const auto slice = [&](std::size_t member) {
      return std::pair(member * kCount / members, (member + 1) * kCount / members);
    };
    mesh.expect_ok([&](Collectives& end) -> Status {
      const auto me = static_cast<std::size_t>(end.rank());
      const auto [begin, finish] = slice(me);
      // Every leaf's slice goes to the slice's owner, who has all eight then.
      std::vector<std::vector<float>> sent(members), got(members);
      for (std::size_t other = 0; other < members; ++other) {
        for (std::size_t number = run_of(me).first; number < run_of(me).second; ++number) {
          const auto values = leaf(number);
          sent[other].insert(sent[other].end(), values.begin() + static_cast<long>(slice(other).first),
                             values.begin() + static_cast<long>(slice(other).second));
        }
        got[other].resize((run_of(other).second - run_of(other).first) * (finish - begin));
      }
      std::vector<ByteSpan> to;
      std::vector<MutableByteSpan> from;
      for (std::size_t other = 0; other < members; ++other) {
        to.push_back(bytes_of(sent[other]));
        from.push_back(bytes_of(got[other]));
      }
      BF_TRY(end.all_to_all(to, from));
      std::vector<std::vector<float>> leaves;
      for (const auto& part : got) {
        for (std::size_t at = 0; at < part.size(); at += finish - begin) {
          leaves.emplace_back(part.begin() + static_cast<long>(at),
                              part.begin() + static_cast<long>(at + finish - begin));
        }
      }
      for (std::size_t distance = 1; distance < kLeaves; distance *= 2) {
        for (std::size_t i = 0; i < kLeaves; i += 2 * distance) {
          add_floats(bytes_of(leaves[i]), bytes_of(leaves[i + distance]));
        }
      }
      std::vector<float> sums(kCount);
      std::ranges::copy(leaves[0], sums.begin() + static_cast<long>(begin));
      std::vector<MutableByteSpan> parts;
      for (std::size_t other = 0; other < members; ++other) {
        parts.push_back(std::as_writable_bytes(
            std::span(sums).subspan(slice(other).first, slice(other).second - slice(other).first)));
      }
      BF_TRY(end.all_gather(parts));
      if (members == 1) first = sums;
      EXPECT_EQ(std::memcmp(sums.data(), first.data(), kCount * sizeof(float)), 0) << members << " members";
      return {};
    });
  }
}

TEST_P(CollectivesTest, AMemberThatComesLateDelaysTheOthersAndChangesNothing) {
  const CollectivesMesh mesh(GetParam(), 4);
  for (const AllReduceAlgorithm algorithm : kAlgorithms) {
    for (int late = 0; late < 4; ++late) {
      mesh.expect_ok([&](Collectives& end) -> Status {
        // Longer than anybody spins, in the middle of the additions too.
        const auto pause = [&] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
        if (end.rank() == late) pause();
        std::vector<float> values = brought_by(end.rank(), 9001);
        const auto slow_add = [&](MutableByteSpan into, ByteSpan from) {
          if (end.rank() == (late + 1) % 4) pause();
          add_floats(into, from);
        };
        BF_TRY(end.all_reduce(bytes_of(values), sizeof(float), slow_add, algorithm));
        EXPECT_FALSE(wrong_sum(values, 4)) << *wrong_sum(values, 4);
        if (end.rank() == late) pause();
        return end.broadcast(bytes_of(values), late);
      });
    }
  }
}

TEST_P(CollectivesTest, OperationsOfAllKindsFollowEachOtherAndBuffersAreTheCallersAgain) {
  const CollectivesMesh mesh(GetParam(), 3);
  mesh.expect_ok([&](Collectives& end) -> Status {
    for (std::size_t round = 0; round < 60; ++round) {
      std::vector<float> values = brought_by(end.rank(), 1 + round * 97);
      BF_TRY(end.all_reduce(bytes_of(values), sizeof(float), add_floats, kAlgorithms[round % kAlgorithms.size()]));
      EXPECT_FALSE(wrong_sum(values, 3)) << "round " << round << ": " << *wrong_sum(values, 3);
      std::ranges::fill(values, -1.0f);  // a member that still reads them would notice
      std::vector<float> data(500 + round * 100, end.rank() == 1 ? 5.0f : 0.0f);
      BF_TRY(end.broadcast(bytes_of(data), 1));
      EXPECT_EQ(data, std::vector<float>(data.size(), 5.0f));
      std::ranges::fill(data, -1.0f);
      if (round % 7 == 0) BF_TRY(end.barrier());
    }
    return {};
  });
}

TEST_P(CollectivesTest, WhoRunsAheadToTheNextSumDoesNotSpoilTheLast) {
  for (const int members : {2, 5}) {
    const CollectivesMesh mesh(GetParam(), members);
    mesh.expect_ok([&](Collectives& end) -> Status {
      std::vector<float> values(4000);
      for (int round = 1; round <= 400; ++round) {
        std::ranges::fill(values, static_cast<float>(round));
        BF_TRY(end.all_reduce(bytes_of(values), sizeof(float), add_floats, AllReduceAlgorithm::kDirect));
        EXPECT_EQ(values, std::vector<float>(4000, static_cast<float>(round * members)));
      }
      return {};
    });
  }
}

TEST_P(CollectivesTest, TheyMayBeUsedByAnotherThreadThanTheOneThatMadeThemAndByOneAfterAnother) {
  const CollectivesMesh mesh(GetParam(), 2);
  for (int round = 0; round < 3; ++round) expect_sums(mesh, 5003, AllReduceAlgorithm::kAuto);
  for (const auto& end : mesh.ends) EXPECT_EQ(end->stats().operations, 3u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, CollectivesTest, ::testing::Values("threads", "inproc", "tcp", "memory"),
                         [](const auto& kind) { return kind.param; });

TEST(Collectives, WorkOverTls) {
  const CollectivesMesh mesh("tls", 3);
  for (const AllReduceAlgorithm algorithm : kAlgorithms) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{1027}, kLargeCount})
      expect_sums(mesh, count, algorithm);
  }
  mesh.expect_ok([&](Collectives& end) -> Status {
    std::vector<float> data(kLargeCount, end.rank() == 2 ? 5.0f : 0.0f);
    BF_TRY(end.broadcast(bytes_of(data), 2));
    EXPECT_EQ(data, std::vector<float>(data.size(), 5.0f));
    return end.barrier();
  });
}

TEST(Collectives, TheAlgorithmIsChosenBySizeAndMembersAlone) {
  EXPECT_EQ(choose_all_reduce(2, 8192), AllReduceAlgorithm::kDirect);
  EXPECT_EQ(choose_all_reduce(10, 2048), AllReduceAlgorithm::kRecursiveHalving);
  EXPECT_EQ(choose_all_reduce(2, 4 << 20), AllReduceAlgorithm::kRing);
  EXPECT_EQ(choose_all_reduce(10, 4 << 20), AllReduceAlgorithm::kRing);
}

}  // namespace
}  // namespace butterfly
