#include "butterfly/wire/collective/channel_collectives.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/wire/collective/broadcast.h"
#include "butterfly/wire/collective/ring.h"

namespace butterfly {
namespace {

// Up to this number of bytes together, parts go to everyone at once instead of in a ring, and are not looked for in
// memory.
constexpr std::uint64_t kGatherDirectBytesMax = 256 * 1024;

template <typename Parts>
std::uint64_t total_bytes(const Parts& parts) {
  std::uint64_t total = 0;
  for (const ByteSpan part : parts) total += part.size();
  return total;
}

void copy_own_part(ByteSpan part, MutableByteSpan mine) {
  if (mine.empty() || mine.data() == part.data()) return;
  BF_CHECK(mine.size() == part.size(), "one's own part has one size");
  std::memcpy(mine.data(), part.data(), part.size());
}

}  // namespace

std::unique_ptr<Collectives> make_collectives(int rank, std::vector<std::shared_ptr<Channel>> members,
                                              const CollectivesOptions& options) {
  return std::make_unique<ChannelCollectives>(rank, std::move(members), options);
}

ChannelCollectives::ChannelCollectives(int rank, std::vector<std::shared_ptr<Channel>> members,
                                       const CollectivesOptions& options)
    : options_(options),
      exchange_(rank, members, {.epoch = options.epoch, .member_timeout = options.member_timeout}),
      pieces_(members, options.epoch, options.member_timeout),
      direct_(members, options.epoch, options.member_timeout),
      members_(std::move(members)),
      to_(pieces_.members()),
      from_(pieces_.members()) {
  BF_CHECK(options.piece_bytes > 0, "pieces have bytes");
}

CollectiveStats ChannelCollectives::stats() const {
  return {.operations = operations_.load(std::memory_order_relaxed),
          .bytes_sent = bytes_sent_.load(std::memory_order_relaxed),
          .wait_ns = wait_ns_.load(std::memory_order_relaxed)};
}

Status ChannelCollectives::exchange() {
  if (aborted_) return make_error(ErrorCode::kUnavailable, "these collectives were aborted");
  std::uint64_t bytes = 0;
  for (const ByteSpan part : to_) bytes += part.size();
  const Status status = group_ ? group_->exchange(to_, from_) : exchange_.exchange(to_, from_);
  if (status) bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  std::ranges::fill(to_, ByteSpan());
  std::ranges::fill(from_, MutableByteSpan());
  return status;
}

Status ChannelCollectives::swap(int to, ByteSpan bytes, int from, MutableByteSpan room) {
  if (to >= 0) to_[static_cast<std::size_t>(to)] = bytes;
  if (from >= 0) from_[static_cast<std::size_t>(from)] = room;
  return exchange();
}

Result<MutableByteSpan> ChannelCollectives::scratch(std::size_t bytes) {
  if (scratch_.bytes.size() < bytes) {
    scratch_ = {};
    BF_ASSIGN_OR_RETURN(scratch_, allocate_payload(bytes));
  }
  return scratch_.bytes.first(bytes);
}

Status ChannelCollectives::all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) {
  const auto members = static_cast<std::size_t>(size());
  const auto me = static_cast<std::size_t>(rank());
  BF_CHECK(parts.size() == members && mine.size() == members, "one part for each member");
  copy_own_part(parts[me], mine[me]);
  return operation({.zone = trace::Zone::kAllToAll, .bytes = total_bytes(parts)}, [&]() -> Status {
    BF_ASSIGN_OR_RETURN(const bool done,
                        done_in_memory([&](SharedCollectives& shared) { return shared.all_to_all(parts, mine); }));
    if (done) return {};
    std::ranges::copy(parts, to_.begin());
    std::ranges::copy(mine, from_.begin());
    to_[me] = {};
    from_[me] = {};
    return exchange();
  });
}

Status ChannelCollectives::all_gather(std::span<const MutableByteSpan> parts) {
  BF_CHECK(parts.size() == to_.size(), "one part for each member");
  const auto me = static_cast<std::size_t>(rank());
  const std::uint64_t bytes = total_bytes(parts);
  return operation({.zone = trace::Zone::kAllGather, .bytes = bytes}, [&]() -> Status {
    bool done = false;
    if (bytes > kGatherDirectBytesMax) {
      BF_ASSIGN_OR_RETURN(done, done_in_memory([&](SharedCollectives& shared) { return shared.all_gather(parts); }));
    }
    if (done) return {};
    if (size() == 2 || bytes <= kGatherDirectBytesMax) {
      for (std::size_t member = 0; member < parts.size(); ++member) {
        if (member == me) continue;
        to_[member] = parts[me];
        from_[member] = parts[member];
      }
      return exchange();
    }
    pieces_.begin(bytes);
    Ring ring(pieces_, parts, {.rank = rank(), .steps = size() - 1, .piece_bytes = options_.piece_bytes});
    BF_TRY(ring.run());
    bytes_sent_.fetch_add(ring.bytes_sent(), std::memory_order_relaxed);
    return {};
  });
}

Status ChannelCollectives::broadcast(MutableByteSpan data, int root) {
  BF_CHECK(root >= 0 && root < size(), "the root is a member");
  return operation({.zone = trace::Zone::kBroadcast, .bytes = data.size()}, [&] { return send_tree(data, root); });
}

// Down the tree in pieces. A piece that has gone on is confirmed where its sender will wait for that: it sends a few
// ahead, so that what a slow member has not read does not pile up at those above it.
Status ChannelCollectives::send_tree(MutableByteSpan data, int root) {
  const TreePlace place = binomial_tree(rank(), size(), root);
  const std::size_t piece_bytes = options_.piece_bytes;
  const std::size_t count = (data.size() + piece_bytes - 1) / piece_bytes;
  pieces_.begin(data.size());
  for (std::size_t i = 0; i < count; ++i) {
    const MutableByteSpan piece = data.subspan(i * piece_bytes, std::min(piece_bytes, data.size() - i * piece_bytes));
    if (place.parent) BF_TRY(pieces_.receive_into(*place.parent, piece));
    for (const int child : place.children) {
      if (i >= kPiecesAhead) BF_TRY(pieces_.receive_into(child, {}));
      BF_TRY(pieces_.send(child, piece));
      bytes_sent_.fetch_add(piece.size(), std::memory_order_relaxed);
    }
    if (place.parent && i + kPiecesAhead < count) BF_TRY(pieces_.send(*place.parent, {}));
  }
  return {};
}

Status ChannelCollectives::send(int to, std::uint64_t label, ByteSpan data) {
  const Status sent = direct_.send(to, label, data);
  if (!sent) abort();
  if (sent) bytes_sent_.fetch_add(data.size(), std::memory_order_relaxed);
  return sent;
}

Status ChannelCollectives::receive(int from, std::uint64_t label, MutableByteSpan data) {
  trace::TimedSpan span(trace::Zone::kWaitMembers);
  const Status received = direct_.receive(from, label, data);
  wait_ns_.fetch_add(span.end(), std::memory_order_relaxed);
  if (!received) abort();
  return received;
}

Result<bool> ChannelCollectives::share_memory(const ReadableMemory& memory) {
  BF_CHECK(shared_ == nullptr, "memory is shared once");
  if (size() < 2) return false;
  const auto share = [&]() -> Status {
    BF_ASSIGN_OR_RETURN(shared_, SharedCollectives::create(exchange_, members_, memory, options_));
    BF_ASSIGN_OR_RETURN(group_, GroupExchange::create(rank(), members_,
                                                      {.epoch = options_.epoch,
                                                       .shared_memory = options_.shared_memory,
                                                       .member_timeout = options_.member_timeout,
                                                       .spin = spin_beside_computation(size())}));
    return {};
  };
  if (const Status status = share(); !status) {
    abort();
    return tl::unexpected(status.error());
  }
  return shared_ != nullptr;
}

// After round k, everyone has heard, directly or not, of the 2^k members before him.
Status ChannelCollectives::barrier() {
  return operation({}, [&]() -> Status {
    if (shared_ != nullptr) return shared_->barrier();
    const std::array<std::byte, 1> here{};
    std::array<std::byte, 1> there{};
    for (int distance = 1; distance < size(); distance *= 2) {
      BF_TRY(swap((rank() + distance) % size(), here, (rank() + size() - distance) % size(), there));
    }
    return {};
  });
}

}  // namespace butterfly
