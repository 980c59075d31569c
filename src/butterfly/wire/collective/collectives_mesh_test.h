// Members of collectives as threads of a test, of any kind, and values whose sums are known.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "butterfly/machine/shared_memory.h"
#include "butterfly/wire/collective/collectives.h"
#include "butterfly/wire/exchange/exchange_mesh_test.h"

namespace butterfly {

/// "threads": members read each other's memory; "inproc", "tcp", "tls": over channels of that kind; "memory": over tcp,
/// with a memory of each that the others have mapped.
class CollectivesMesh {
 public:
  CollectivesMesh(const std::string& kind, int members, const CollectivesOptions& options = test_options()) {
    if (kind == "threads") {
      ends = make_inproc_collectives(members, options);
      return;
    }
    channels = connect_all(kind == "memory" ? "tcp" : kind, members);
    for (int rank = 0; rank < members; ++rank) {
      ends.push_back(make_collectives(rank, channels[static_cast<std::size_t>(rank)], options));
    }
    if (kind != "memory") return;
    for (int rank = 0; rank < members; ++rank) memories.push_back(SharedMemory::create(kMemoryBytes).value());
    expect_ok([&](Collectives& end) -> Status {
      const SharedMemory& memory = memories[static_cast<std::size_t>(end.rank())];
      BF_ASSIGN_OR_RETURN(const bool shared,
                          end.share_memory({.bytes = memory.bytes(), .descriptor = memory.descriptor()}));
      EXPECT_EQ(shared, members > 1);
      return {};
    });
  }

  /// Pieces are short, so that a few KiB are a pipeline.
  static CollectivesOptions test_options() {
    return {.epoch = Epoch(3), .member_timeout = std::chrono::milliseconds(20'000), .piece_bytes = 4096};
  }

  /// One thread for each member; what each of them got.
  std::vector<Status> run(const std::function<Status(Collectives&)>& work) const {
    std::vector<Status> seen(ends.size());
    ExchangeMesh::run_threads(ends.size(), [&](std::size_t me) { seen[me] = work(*ends[me]); });
    return seen;
  }

  void expect_ok(const std::function<Status(Collectives&)>& work) const {
    for (const Status& status : run(work)) ASSERT_TRUE(status) << status.error().message;
  }

  /// What a member that goes away does: its process closes its connections, its thread destroys its end.
  void leave(std::size_t member) {
    if (channels.empty()) {
      ends[member].reset();
      return;
    }
    for (const auto& channel : channels[member]) {
      if (channel) channel->close();
    }
  }

  static constexpr std::size_t kMemoryBytes = 8 << 20;

  ChannelTable channels;               // none for "threads"
  std::vector<SharedMemory> memories;  // of "memory"
  std::vector<std::unique_ptr<Collectives>> ends;
};

inline MutableByteSpan bytes_of(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values));
}

inline void add_floats(MutableByteSpan into, ByteSpan from) {
  ASSERT_EQ(into.size(), from.size());
  ASSERT_EQ(into.size() % sizeof(float), 0u);
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(into.data()) % alignof(float), 0u);
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(from.data()) % alignof(float), 0u);
  auto* sums = reinterpret_cast<float*>(into.data());
  const auto* values = reinterpret_cast<const float*>(from.data());
  for (std::size_t i = 0; i < into.size() / sizeof(float); ++i) sums[i] += values[i];
}

/// What a member brings: its rank + 1 times something of the place; sums are small integers, so exact in any order.
inline std::vector<float> brought_by(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(rank + 1) * static_cast<float>(1 + i % 251);
  return values;
}

/// Nothing where `values` are the sums over all members.
inline std::optional<std::string> wrong_sum(const std::vector<float>& values, int members) {
  const auto ranks = static_cast<float>(members * (members + 1) / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float sum = ranks * static_cast<float>(1 + i % 251);
    if (values[i] != sum) return fmt::format("element {} of {} is {}, not {}", i, values.size(), values[i], sum);
  }
  return std::nullopt;
}

}  // namespace butterfly
