// How the members of a tensor group reach each other: through shared memory where processes are on one host and may
// share it, over their channels elsewhere, whichever each pair has. Made by all members at once, each with a channel to
// every other. Threads as for Exchange; the channels may be closed by their other owners, which ends the exchange.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "butterfly/wire/exchange/channel_exchange.h"
#include "butterfly/wire/exchange/shared_exchange.h"

namespace butterfly {

struct GroupOptions {
  Epoch epoch{};
  SharedMemoryUse shared_memory = SharedMemoryUse::kAllowed;
  std::chrono::milliseconds member_timeout{60'000};
  std::chrono::microseconds spin = SharedExchangeOptions{}.spin;
};

/// What an exchange moves bytes with.
enum class ExchangeEngine : std::uint8_t { kNone, kChannels, kSharedMemory, kBoth };
std::string_view to_string(ExchangeEngine engine);  // "shared memory"

class GroupExchange final : public Exchange {
 public:
  /// Finds out which members can share memory, and falls back to channels without a word where that fails.
  /// Errors: those of the channels.
  static Result<std::unique_ptr<GroupExchange>> create(int rank, std::vector<std::shared_ptr<Channel>> members,
                                                       const GroupOptions& options);

  int rank() const override { return channels_.rank(); }
  int size() const override { return channels_.size(); }
  Status exchange(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) override;
  void abort() override;

  ExchangeEngine engine() const;
  /// Through shared memory; what channels carry is in their statistics. From any thread.
  std::uint64_t shared_bytes_sent() const { return shared_ ? shared_->bytes_sent() : 0; }

 private:
  GroupExchange(int rank, std::vector<std::shared_ptr<Channel>> members, const GroupOptions& options);
  Status find_shared_memory();
  Result<std::vector<int>> find_neighbours(Exchange& introduction);
  /// The segment that `neighbours`, with this member among them, share, from the first of them; nothing where it fails.
  Result<std::optional<SharedMemory>> segment_of(Exchange& introduction, const std::vector<int>& neighbours);

  const std::vector<std::shared_ptr<Channel>> members_;
  const GroupOptions options_;
  ChannelExchange channels_;
  std::vector<int> neighbours_;  // who share memory, ascending, this member among them
  std::unique_ptr<SharedExchange> shared_;
  // For one exchange: the parts of the members that are reached either way.
  std::vector<ByteSpan> channel_to_, shared_to_;
  std::vector<MutableByteSpan> channel_from_, shared_from_;
};

}  // namespace butterfly
