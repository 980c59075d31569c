#include "butterfly/wire/exchange/group_exchange.h"

#include <algorithm>
#include <array>

#include "butterfly/base/log.h"
#include "butterfly/wire/exchange/segment_passing.h"

namespace butterfly {
namespace {

constexpr std::array<std::string_view, 4> kEngineNames{"none", "channels", "shared memory",
                                                       "shared memory and channels"};

}  // namespace

std::string_view to_string(ExchangeEngine engine) {
  return kEngineNames[static_cast<std::size_t>(engine)];
}

GroupExchange::GroupExchange(int rank, std::vector<std::shared_ptr<Channel>> members, const GroupOptions& options)
    : members_(members),
      options_(options),
      channels_(rank, std::move(members), {.epoch = options.epoch, .member_timeout = options.member_timeout}),
      channel_to_(members_.size()),
      channel_from_(members_.size()) {}

Result<std::unique_ptr<GroupExchange>> GroupExchange::create(int rank, std::vector<std::shared_ptr<Channel>> members,
                                                             const GroupOptions& options) {
  std::unique_ptr<GroupExchange> made(new GroupExchange(rank, std::move(members), options));
  BF_TRY(made->find_shared_memory());
  return made;
}

Status GroupExchange::find_shared_memory() {
  // Apart from channels_, since members with and without neighbours count differently until they are done.
  ChannelExchange introduction(rank(), members_, {.epoch = options_.epoch, .member_timeout = options_.member_timeout});
  BF_ASSIGN_OR_RETURN(const std::vector<int> neighbours, find_neighbours(introduction));
  if (neighbours.size() < 2) return {};
  BF_ASSIGN_OR_RETURN(auto segment, segment_of(introduction, neighbours));
  BF_ASSIGN_OR_RETURN(const bool mapped, all_agree(introduction, neighbours, segment.has_value()));
  if (!mapped) return {};
  std::vector<std::shared_ptr<Channel>> peers;
  int place = 0;
  for (const int member : neighbours) {
    if (member == rank()) place = static_cast<int>(peers.size());
    peers.push_back(members_[static_cast<std::size_t>(member)]);
  }
  neighbours_ = neighbours;
  shared_ = std::make_unique<SharedExchange>(
      place, std::move(*segment), std::move(peers),
      SharedExchangeOptions{.member_timeout = options_.member_timeout, .spin = options_.spin});
  shared_to_.resize(neighbours_.size());
  shared_from_.resize(neighbours_.size());
  return {};
}

/// Members that say they are where this one is, itself among them; none where memory may not be shared.
Result<std::vector<int>> GroupExchange::find_neighbours(Exchange& introduction) {
  const bool allowed = options_.shared_memory == SharedMemoryUse::kAllowed;
  const auto mine = padded(allowed ? sharing_scope() : std::string(), kSharingScopeBytes);
  MemberRound round(size());
  for (int member = 0; member < size(); ++member) {
    if (member == rank()) continue;
    round.say(member, mine);
    round.hear(member, kSharingScopeBytes);
  }
  BF_TRY(round.run(introduction));
  if (mine[0] == std::byte(0)) return std::vector<int>{};
  std::vector<int> neighbours;
  for (int member = 0; member < size(); ++member) {
    if (member == rank() || std::ranges::equal(round.heard(member), mine)) neighbours.push_back(member);
  }
  return neighbours;
}

Result<std::optional<SharedMemory>> GroupExchange::segment_of(Exchange& introduction,
                                                              const std::vector<int>& neighbours) {
  const std::size_t bytes = SharedExchange::segment_bytes(static_cast<int>(neighbours.size()));
  if (neighbours.front() != rank()) return take_memory(introduction, neighbours, neighbours.front(), bytes);
  auto memory = SharedMemory::create(bytes);
  if (!memory) log().info("members do not share memory: {}", memory.error().message);
  BF_ASSIGN_OR_RETURN(const bool given, give_memory(introduction, neighbours, memory ? memory->descriptor() : -1));
  return given ? std::optional<SharedMemory>(std::move(*memory)) : std::nullopt;
}

Status GroupExchange::exchange(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) {
  if (!shared_) return channels_.exchange(to, from);
  if (neighbours_.size() == members_.size()) return shared_->exchange(to, from);
  std::ranges::copy(to, channel_to_.begin());
  std::ranges::copy(from, channel_from_.begin());
  for (std::size_t i = 0; i < neighbours_.size(); ++i) {
    const auto member = static_cast<std::size_t>(neighbours_[i]);
    shared_to_[i] = std::exchange(channel_to_[member], {});
    shared_from_[i] = std::exchange(channel_from_[member], {});
  }
  // Those afar first, since their bytes take longer; neighbours wait for neighbours alone, so nobody waits in a circle.
  BF_TRY(channels_.begin(channel_to_, channel_from_));
  if (const Status status = shared_->exchange(shared_to_, shared_from_); !status) {
    abort();
    return status;
  }
  return channels_.finish();
}

ExchangeEngine GroupExchange::engine() const {
  if (size() < 2) return ExchangeEngine::kNone;
  if (!shared_) return ExchangeEngine::kChannels;
  return neighbours_.size() == members_.size() ? ExchangeEngine::kSharedMemory : ExchangeEngine::kBoth;
}

void GroupExchange::abort() {
  channels_.abort();
  if (shared_) shared_->abort();
}

}  // namespace butterfly
