#include "butterfly/train/ranks/rank_control.h"

#include <sstream>

namespace butterfly {

namespace {

constexpr RankMessageKind kLast = RankMessageKind::kReady;

Result<Payload> refuse_payload(std::uint64_t bytes) {
  return make_error(ErrorCode::kProtocol, "ranks told each other {} bytes of payload, they say nothing so long", bytes);
}

}  // namespace

Status RankControl::send(const RankMessage& message) {
  Message frame{.type = static_cast<std::uint16_t>(message.kind),
                .epoch = message.epoch,
                .tag = static_cast<std::uint64_t>(message.code)};
  const ByteSpan text = as_bytes(message.text);
  frame.meta.assign(text.begin(), text.end());
  return channel_->send(std::move(frame), after_ms(5000));
}

Result<RankMessage> RankControl::receive(Deadline deadline) {
  BF_ASSIGN_OR_RETURN(const Message message, channel_->receive(refuse_payload, deadline));
  if (message.type < static_cast<std::uint16_t>(RankMessageKind::kHello) ||
      message.type > static_cast<std::uint16_t>(kLast)) {
    return make_error(ErrorCode::kProtocol, "{} sent a message of type {}, ranks know types 1 to {}", channel_->peer(),
                      message.type, static_cast<std::uint16_t>(kLast));
  }
  if (message.tag > static_cast<std::uint64_t>(ErrorCode::kCancelled)) {
    return make_error(ErrorCode::kProtocol, "{} sent error code {}, the last one is {}", channel_->peer(), message.tag,
                      static_cast<int>(ErrorCode::kCancelled));
  }
  if (const std::size_t bytes = message.payload.bytes.size(); bytes > 0) {
    return tl::unexpected(refuse_payload(bytes).error());  // handed over between threads, where nobody asks
  }
  return RankMessage{.kind = static_cast<RankMessageKind>(message.type),
                     .epoch = message.epoch,
                     .text = std::string(as_text(message.meta)),
                     .code = static_cast<ErrorCode>(message.tag)};
}

std::string members_text(const std::vector<RankProcess>& members) {
  std::string text;
  for (const RankProcess& member : members) text += fmt::format("{} {}\n", member.number, member.address);
  return text;
}

Result<std::vector<RankProcess>> parse_members(const std::string& text) {
  std::vector<RankProcess> members;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    RankProcess member;
    std::string more;
    if (!(words >> member.number >> member.address) || member.number < 0 || words >> more) {
      return make_error(ErrorCode::kProtocol, "'{}' is no rank and its address", line);
    }
    members.push_back(member);
  }
  if (members.empty()) return make_error(ErrorCode::kProtocol, "a list of ranks has none");
  return members;
}

}  // namespace butterfly
