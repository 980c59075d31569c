#include "butterfly/wire/exchange/segment_passing.h"

#include <algorithm>
#include <array>
#include <string>

#include "butterfly/base/log.h"
#include "butterfly/wire/exchange/shared_segment.h"

namespace butterfly {
namespace {

constexpr std::size_t kNameBytes = 64;  // of an offer, padded
constexpr std::int64_t kPassTimeoutMs = 2000;

}  // namespace

void MemberRound::hear(int member, std::size_t bytes) {
  auto& answer = answers_[static_cast<std::size_t>(member)];
  answer.resize(bytes);
  from_[static_cast<std::size_t>(member)] = answer;
}

std::vector<std::byte> padded(std::string_view text, std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  std::ranges::copy(as_bytes(text.substr(0, bytes)), result.begin());
  return result;
}

Result<bool> all_agree(Exchange& exchange, const std::vector<int>& members, bool mine) {
  const std::array<std::byte, 1> word{std::byte(mine ? 1 : 0)};
  MemberRound round(exchange.size());
  for (const int member : members) {
    if (member == exchange.rank()) continue;
    round.say(member, word);
    round.hear(member, word.size());
  }
  BF_TRY(round.run(exchange));
  return mine && std::ranges::all_of(members, [&](int member) {
           return member == exchange.rank() || round.heard(member)[0] == std::byte(1);
         });
}

Result<bool> give_memory(Exchange& exchange, const std::vector<int>& members, int descriptor) {
  const auto offer = SegmentOffer::create();
  if (!offer) log().info("members do not share memory: {}", offer.error().message);
  const bool offered = offer && descriptor >= 0;
  const auto name = padded(offered ? offer->name() : std::string(), kNameBytes);
  MemberRound round(exchange.size());
  for (const int member : members) {
    if (member != exchange.rank()) round.say(member, name);
  }
  BF_TRY(round.run(exchange));
  // Handed out only where all wait for it: nobody has to be waited for who will not come.
  BF_ASSIGN_OR_RETURN(const bool connected, all_agree(exchange, members, offered));
  if (!connected) return false;
  return offer->hand_out(descriptor, static_cast<int>(members.size()) - 1, after_ms(kPassTimeoutMs)).has_value();
}

Result<std::optional<SharedMemory>> take_memory(Exchange& exchange, const std::vector<int>& members, int owner,
                                                std::uint64_t bytes) {
  MemberRound round(exchange.size());
  round.hear(owner, kNameBytes);
  BF_TRY(round.run(exchange));
  std::string name(as_text(round.heard(owner)));
  name.resize(std::min(name.find('\0'), name.size()));
  const auto request = SegmentRequest::connect(name);
  BF_ASSIGN_OR_RETURN(const bool connected, all_agree(exchange, members, request.has_value()));
  if (!connected) return std::nullopt;
  auto memory = request->take(bytes, after_ms(kPassTimeoutMs));
  if (!memory) log().info("members do not share memory: {}", memory.error().message);
  return memory ? std::optional<SharedMemory>(std::move(*memory)) : std::nullopt;
}

}  // namespace butterfly
