#include "butterfly/train/ranks/rank_control.h"

#include <algorithm>

#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/control/message_bytes.h"
#include "butterfly/train/ranks/ranks.pb.h"

namespace butterfly {
namespace {

constexpr int kMembersMax = kRankNumberMax + 1;

void store(const RankProcess& process, ranks::Member& message) {
  message.set_number(process.number);
  message.set_address(process.address);
}

void store(const RankMessage& said, ranks::Cause& message) {
  message.set_code(static_cast<std::uint32_t>(said.code));
  message.set_text(said.text);
}

void store(const RankMessage& said, ranks::RankMessage& message) {
  message.set_epoch(said.epoch.value);
  switch (said.kind) {
    case RankMessageKind::kHello:
      return store(said.members.front(), *message.mutable_hello());
    case RankMessageKind::kEpoch:
      for (const RankProcess& one : said.members) store(one, *message.mutable_begin()->add_members());
      return;
    case RankMessageKind::kAbandon:
      message.mutable_abandon();
      return;
    case RankMessageKind::kLost:
      return store(said, *message.mutable_lost());
    case RankMessageKind::kFailed:
      return store(said, *message.mutable_failed());
    case RankMessageKind::kEnd:
      message.mutable_end();
      return;
    case RankMessageKind::kTask:
      return store(*said.task, *message.mutable_task());
    case RankMessageKind::kWanted:
      message.mutable_wanted()->mutable_places()->Assign(said.wanted.begin(), said.wanted.end());
      return;
    case RankMessageKind::kReady:
      message.mutable_ready();
      return;
  }
}

Status read_member(const ranks::Member& message, RankMessage& said) {
  if (message.number() < 0 || message.number() > kRankNumberMax || message.address().empty()) {
    return make_error(ErrorCode::kProtocol, "rank {} at '{}', expected 0 to {} and an address", message.number(),
                      message.address(), kRankNumberMax);
  }
  said.members.push_back({.number = message.number(), .address = message.address()});
  return {};
}

Status read_members(const ranks::Members& message, RankMessage& said) {
  if (message.members().empty() || message.members_size() > kMembersMax) {
    return make_error(ErrorCode::kProtocol, "an epoch of {} ranks, expected 1 to {}", message.members_size(),
                      kMembersMax);
  }
  for (const ranks::Member& one : message.members()) BF_TRY(read_member(one, said));
  return {};
}

Status read_cause(const ranks::Cause& message, RankMessage& said) {
  if (message.code() > static_cast<std::uint32_t>(ErrorCode::kCancelled)) {
    return make_error(ErrorCode::kProtocol, "error code {} between ranks, the last one is {}", message.code(),
                      static_cast<int>(ErrorCode::kCancelled));
  }
  said.code = static_cast<ErrorCode>(message.code());
  said.text = message.text();
  return {};
}

Status read_wanted(const ranks::Wanted& message, RankMessage& said) {
  if (message.places_size() > kTaskTokensMax) {
    return make_error(ErrorCode::kProtocol, "a rank wants {} token files, the limit is {}", message.places_size(),
                      kTaskTokensMax);
  }
  said.wanted.assign(message.places().begin(), message.places().end());
  return {};
}

Status read(const ranks::RankMessage& message, RankMessage& said) {
  using Kind = RankMessageKind;
  const auto be = [&](Kind kind) {
    said.kind = kind;
    return Status{};
  };
  switch (message.body_case()) {
    case ranks::RankMessage::kHello:
      said.kind = Kind::kHello;
      return read_member(message.hello(), said);
    case ranks::RankMessage::kBegin:
      said.kind = Kind::kEpoch;
      return read_members(message.begin(), said);
    case ranks::RankMessage::kAbandon:
      return be(Kind::kAbandon);
    case ranks::RankMessage::kLost:
      said.kind = Kind::kLost;
      return read_cause(message.lost(), said);
    case ranks::RankMessage::kFailed:
      said.kind = Kind::kFailed;
      return read_cause(message.failed(), said);
    case ranks::RankMessage::kEnd:
      return be(Kind::kEnd);
    case ranks::RankMessage::kTask: {
      said.kind = Kind::kTask;
      BF_ASSIGN_OR_RETURN(said.task, read_rank_task(message.task()));
      return {};
    }
    case ranks::RankMessage::kWanted:
      said.kind = Kind::kWanted;
      return read_wanted(message.wanted(), said);
    case ranks::RankMessage::kReady:
      return be(Kind::kReady);
    case ranks::RankMessage::BODY_NOT_SET:
      return make_error(ErrorCode::kProtocol, "a message between ranks that says nothing which is known here");
  }
  return {};
}

}  // namespace

Result<RankMessage> parse_rank_message(ByteSpan bytes) {
  ranks::RankMessage message;
  if (!read_message(bytes, message)) {
    return make_error(ErrorCode::kProtocol, "{} bytes that are no message between ranks", bytes.size());
  }
  RankMessage said{.epoch = Epoch(message.epoch())};
  BF_TRY(read(message, said));
  return said;
}

Status RankControl::send(const RankMessage& message) {
  ranks::RankMessage said;
  store(message, said);
  BF_ASSIGN_OR_RETURN(auto meta, write_message(said, channel_->peer()));
  return channel_->send({.meta = std::move(meta)}, after_ms(5000));
}

Result<RankMessage> RankControl::receive(Deadline deadline) {
  BF_ASSIGN_OR_RETURN(const Message framed, channel_->receive(refuse_payload, deadline));
  if (const std::size_t bytes = framed.payload.bytes.size(); bytes > 0) {
    return tl::unexpected(refuse_payload(bytes).error());  // handed over between threads, where nobody asks
  }
  auto said = parse_rank_message(framed.meta);
  if (said) return said;
  return make_error(said.error().code, "{} sent: {}", channel_->peer(), said.error().message);
}

}  // namespace butterfly
