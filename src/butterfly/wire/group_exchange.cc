#include "butterfly/wire/group_exchange.h"

#include <algorithm>
#include <array>

#include "butterfly/base/log.h"

namespace butterfly {
namespace {

constexpr std::size_t kScopeBytes = 96;  // of sharing_scope(), padded with zeros
constexpr std::size_t kNameBytes = 64;   // of an offer, padded likewise
constexpr std::int64_t kPassTimeoutMs = 2000;

/// What is said to some members, and room for what they say.
class Round {
 public:
  explicit Round(int members) : to_(static_cast<std::size_t>(members)), from_(to_.size()), answers_(to_.size()) {}

  void say(int member, ByteSpan bytes) { to_[static_cast<std::size_t>(member)] = bytes; }
  void hear(int member, std::size_t bytes) {
    auto& answer = answers_[static_cast<std::size_t>(member)];
    answer.resize(bytes);
    from_[static_cast<std::size_t>(member)] = answer;
  }
  Status run(Exchange& exchange) { return exchange.exchange(to_, from_); }
  ByteSpan heard(int member) const { return answers_[static_cast<std::size_t>(member)]; }

 private:
  std::vector<ByteSpan> to_;
  std::vector<MutableByteSpan> from_;
  std::vector<std::vector<std::byte>> answers_;
};

std::vector<std::byte> padded(std::string_view text, std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  std::ranges::copy(as_bytes(text.substr(0, bytes)), result.begin());
  return result;
}

/// Each neighbour says yes or no to the others; whether all said yes.
Result<bool> all_agree(Exchange& exchange, const std::vector<int>& neighbours, bool mine) {
  const std::array<std::byte, 1> word{std::byte(mine ? 1 : 0)};
  Round round(exchange.size());
  for (const int member : neighbours) {
    if (member == exchange.rank()) continue;
    round.say(member, word);
    round.hear(member, word.size());
  }
  BF_TRY(round.run(exchange));
  return mine && std::ranges::all_of(neighbours, [&](int member) {
           return member == exchange.rank() || round.heard(member)[0] == std::byte(1);
         });
}

constexpr std::array<std::string_view, 4> kEngineNames{"none", "channels", "shared memory",
                                                       "shared memory and channels"};

}  // namespace

std::string_view to_string(ExchangeEngine engine) {
  return kEngineNames[static_cast<std::size_t>(engine)];
}

ExchangeEngine parse_exchange_engine(std::string_view name) {
  const auto found = std::ranges::find(kEngineNames, name);
  return found == kEngineNames.end() ? ExchangeEngine::kNone
                                     : static_cast<ExchangeEngine>(found - kEngineNames.begin());
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
  ChannelExchange greeting(rank(), members_, {.epoch = options_.epoch, .member_timeout = options_.member_timeout});
  BF_ASSIGN_OR_RETURN(const std::vector<int> neighbours, find_neighbours(greeting));
  if (neighbours.size() < 2) return {};
  const bool offers = neighbours.front() == rank();
  BF_ASSIGN_OR_RETURN(auto segment,
                      offers ? offer_segment(greeting, neighbours) : ask_for_segment(greeting, neighbours));
  BF_ASSIGN_OR_RETURN(const bool mapped, all_agree(greeting, neighbours, segment.has_value()));
  if (!mapped) return {};
  std::vector<std::shared_ptr<Channel>> companions;
  int place = 0;
  for (const int member : neighbours) {
    if (member == rank()) place = static_cast<int>(companions.size());
    companions.push_back(members_[static_cast<std::size_t>(member)]);
  }
  neighbours_ = neighbours;
  shared_ = std::make_unique<SharedExchange>(
      place, std::move(*segment), std::move(companions),
      SharedExchangeOptions{.member_timeout = options_.member_timeout, .spin = options_.spin});
  shared_to_.resize(neighbours_.size());
  shared_from_.resize(neighbours_.size());
  return {};
}

/// Members that say they are where this one is, itself among them; none where memory may not be shared.
Result<std::vector<int>> GroupExchange::find_neighbours(Exchange& greeting) {
  const bool allowed = options_.shared_memory == SharedMemoryUse::kAllowed;
  const auto mine = padded(allowed ? sharing_scope() : std::string(), kScopeBytes);
  Round round(size());
  for (int member = 0; member < size(); ++member) {
    if (member == rank()) continue;
    round.say(member, mine);
    round.hear(member, kScopeBytes);
  }
  BF_TRY(round.run(greeting));
  if (mine[0] == std::byte(0)) return std::vector<int>{};
  std::vector<int> neighbours;
  for (int member = 0; member < size(); ++member) {
    if (member == rank() || std::ranges::equal(round.heard(member), mine)) neighbours.push_back(member);
  }
  return neighbours;
}

Result<std::optional<SharedMemory>> GroupExchange::offer_segment(Exchange& greeting,
                                                                 const std::vector<int>& neighbours) {
  const auto count = static_cast<int>(neighbours.size());
  auto memory = SharedMemory::create(SharedExchange::segment_bytes(count));
  const auto offer = memory ? SegmentOffer::create() : tl::unexpected(memory.error());
  if (!offer) log().info("members do not share memory: {}", offer.error().message);
  const auto name = padded(offer ? offer->name() : std::string(), kNameBytes);
  Round round(size());
  for (const int member : neighbours) {
    if (member != rank()) round.say(member, name);
  }
  BF_TRY(round.run(greeting));
  // Handed out only where all wait for it: nobody has to be waited for who will not come.
  BF_ASSIGN_OR_RETURN(const bool connected, all_agree(greeting, neighbours, offer.has_value()));
  if (!connected || !offer->hand_out(*memory, count - 1, after_ms(kPassTimeoutMs))) return std::nullopt;
  return std::optional<SharedMemory>(std::move(*memory));
}

Result<std::optional<SharedMemory>> GroupExchange::ask_for_segment(Exchange& greeting,
                                                                   const std::vector<int>& neighbours) {
  Round round(size());
  round.hear(neighbours.front(), kNameBytes);
  BF_TRY(round.run(greeting));
  std::string name(as_text(round.heard(neighbours.front())));
  name.resize(std::min(name.find('\0'), name.size()));
  const auto request = SegmentRequest::connect(name);
  BF_ASSIGN_OR_RETURN(const bool connected, all_agree(greeting, neighbours, request.has_value()));
  if (!connected) return std::nullopt;
  auto memory =
      request->take(SharedExchange::segment_bytes(static_cast<int>(neighbours.size())), after_ms(kPassTimeoutMs));
  if (!memory) log().info("members do not share memory: {}", memory.error().message);
  return memory ? std::optional<SharedMemory>(std::move(*memory)) : std::nullopt;
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
