#pragma once
#include <condition_variable>
#include <cstring>
#include <mutex>
#include "butterfly/wire/collectives.h"
namespace butterfly {
struct FakeGroup {
  explicit FakeGroup(int n) : size(n), parts(static_cast<std::size_t>(n)) {}
  bool meet() {
    std::unique_lock lock(mutex);
    if (aborted) return false;
    const auto turn = turns;
    if (++waiting == size) {
      waiting = 0;
      ++turns;
      changed.notify_all();
      return true;
    }
    changed.wait(lock, [&] { return aborted || turns != turn; });
    return turns != turn;
  }
  void abort() {
    std::lock_guard lock(mutex);
    aborted = true;
    changed.notify_all();
  }
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0;
  std::uint64_t turns = 0;
  bool aborted = false;
  std::vector<std::vector<ByteSpan>> parts;
};
class FakeCollectives final : public Collectives {
 public:
  FakeCollectives(std::shared_ptr<FakeGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->size; }
  Status all_reduce(MutableByteSpan data, int, const ReduceFunction& reduce, AllReduceAlgorithm) override {
    stats_.bytes_sent += 2 * data.size() * static_cast<std::uint64_t>(size() - 1) / static_cast<std::uint64_t>(size());
    publish({data});
    if (!group_->meet()) return gone();
    std::vector<std::byte> sum(group_->parts[0][0].begin(), group_->parts[0][0].end());
    for (std::size_t i = 1; i < group_->parts.size(); ++i) reduce(sum, group_->parts[i][0]);
    if (!group_->meet()) return gone();
    std::memcpy(data.data(), sum.data(), sum.size());
    return {};
  }
  Status all_to_all(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) override {
    for (std::size_t i = 0; i < to.size(); ++i)
      if (static_cast<int>(i) != rank_) stats_.bytes_sent += to[i].size();
    publish({to.begin(), to.end()});
    if (!group_->meet()) return gone();
    for (std::size_t i = 0; i < from.size(); ++i) {
      const ByteSpan in = group_->parts[i][static_cast<std::size_t>(rank_)];
      if (in.size() != from[i].size()) std::abort();
      if (!in.empty()) std::memcpy(from[i].data(), in.data(), in.size());
    }
    return group_->meet() ? Status{} : gone();
  }
  Status all_gather(std::span<const MutableByteSpan> parts) override {
    const auto me = static_cast<std::size_t>(rank_);
    stats_.bytes_sent += parts[me].size() * (parts.size() - 1);
    publish({parts[me]});
    if (!group_->meet()) return gone();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (group_->parts[i][0].size() != parts[i].size()) std::abort();
      if (i != me && !parts[i].empty()) std::memcpy(parts[i].data(), group_->parts[i][0].data(), parts[i].size());
    }
    return group_->meet() ? Status{} : gone();
  }
  Status broadcast(MutableByteSpan, int) override { return gone(); }
  Status barrier() override { return group_->meet() ? Status{} : gone(); }
  CollectiveStats stats() const override { return stats_; }
  void abort() override { group_->abort(); }

 private:
  void publish(std::vector<ByteSpan> parts) { group_->parts[static_cast<std::size_t>(rank_)] = std::move(parts); }
  static Status gone() { return make_error(ErrorCode::kUnavailable, "a member is gone"); }
  std::shared_ptr<FakeGroup> group_;
  int rank_;
  CollectiveStats stats_;
};
inline std::vector<std::unique_ptr<Collectives>> make_inproc_collectives_fake(int n) {
  auto group = std::make_shared<FakeGroup>(n);
  std::vector<std::unique_ptr<Collectives>> made;
  for (int i = 0; i < n; ++i) made.push_back(std::make_unique<FakeCollectives>(group, i));
  return made;
}
}  // namespace butterfly
