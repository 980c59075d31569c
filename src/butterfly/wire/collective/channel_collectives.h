// Collectives over one channel to each other member. What goes to many at once, and what is exchanged between partners,
// is a ChannelExchange, or between members of one host that share memory a GroupExchange; what is pipelined (rings,
// trees) moves in pieces; what is large and in memory that all share is left to SharedCollectives. Threads as for
// Collectives.
#pragma once

#include <atomic>
#include <vector>

#include "butterfly/trace/timed_span.h"
#include "butterfly/wire/collective/collective_work.h"
#include "butterfly/wire/collective/collectives.h"
#include "butterfly/wire/collective/direct_channels.h"
#include "butterfly/wire/collective/piece_channels.h"
#include "butterfly/wire/collective/shared_collectives.h"
#include "butterfly/wire/exchange/channel_exchange.h"
#include "butterfly/wire/exchange/group_exchange.h"

namespace butterfly {

class ChannelCollectives final : public Collectives {
 public:
  ChannelCollectives(int rank, std::vector<std::shared_ptr<Channel>> members, const CollectivesOptions& options);

  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }
  Status all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                    AllReduceAlgorithm algorithm) override;
  std::uint64_t all_reduce_bytes(std::uint64_t bytes, AllReduceAlgorithm algorithm) const override;
  Status all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) override;
  Status all_gather(std::span<const MutableByteSpan> parts) override;
  Status broadcast(MutableByteSpan data, int root) override;
  Status send(int to, std::uint64_t label, ByteSpan data) override;
  Status receive(int from, std::uint64_t label, MutableByteSpan data) override;
  Result<bool> share_memory(const ReadableMemory& memory) override;
  bool reads_memory() const override { return shared_ != nullptr; }
  Status barrier() override;
  CollectiveStats stats() const override;
  void abort() override {
    aborted_ = true;
    pieces_.close();
  }

 private:
  /// The data of one all-reduce, seen as elements.
  struct Elements {
    MutableByteSpan data;
    std::uint64_t element_bytes;
    const ReduceFunction& reduce;

    std::uint64_t count() const { return data.size() / element_bytes; }
    MutableByteSpan part(const ElementRange& range) const {
      return data.subspan(range.begin * element_bytes, range.size() * element_bytes);
    }
  };

  /// What an operation is called, and how much it is about.
  struct Named {
    trace::Zone zone = trace::Zone::kWaitMembers;
    std::uint64_t bytes = 0;
    std::uint64_t element_bytes = 1;
  };

  /// Counts it, and fails everyone where it failed.
  template <typename Work>
  Status operation(const Named& named, const Work& work) {
    trace::TimedSpan span(named.zone);
    const std::uint64_t sent_before = bytes_sent_.load(std::memory_order_relaxed);
    const Status status = size() > 1 ? work() : Status{};
    operations_.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t sent = bytes_sent_.load(std::memory_order_relaxed) - sent_before;
    span.set_work(collective_work(size(), named.bytes, named.element_bytes, sent));
    wait_ns_.fetch_add(span.end(), std::memory_order_relaxed);
    if (!status) abort();
    return status;
  }

  /// Where all members share memory, and it is in it: it is done.
  template <typename Work>
  Result<bool> done_in_memory(const Work& work) {
    if (shared_ == nullptr) return false;
    BF_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> sent, work(*shared_));
    bytes_sent_.fetch_add(sent.value_or(0), std::memory_order_relaxed);
    return sent.has_value();
  }

  Status reduce_direct(const Elements& elements);
  Status reduce_ring(const Elements& elements);
  Status reduce_halving(const Elements& elements);
  Status fold_surplus(const Elements& elements, int partners);
  Status return_surplus(const Elements& elements, int partners);
  Status exchange_halves(const Elements& elements, int partners);
  Status send_tree(MutableByteSpan data, int root);

  /// One exchange with at most one member on each side, who may be the same; -1 for nobody.
  Status swap(int to, ByteSpan bytes, int from, MutableByteSpan room);
  Status exchange();  // of to_ and from_, which are empty afterwards
  Result<MutableByteSpan> scratch(std::size_t bytes);

  const CollectivesOptions options_;
  ChannelExchange exchange_;
  PieceChannels pieces_;
  DirectChannels direct_;
  const std::vector<std::shared_ptr<Channel>> members_;
  std::unique_ptr<SharedCollectives> shared_;  // of the thread that operates
  std::unique_ptr<GroupExchange> group_;       // null: over channels alone
  std::atomic<bool> aborted_{false};           // memory would go on without channels
  std::vector<ByteSpan> to_;
  std::vector<MutableByteSpan> from_;
  Payload scratch_;
  std::atomic<std::uint64_t> operations_{0}, bytes_sent_{0}, wait_ns_{0};
};

}  // namespace butterfly
