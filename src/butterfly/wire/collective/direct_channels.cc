#include "butterfly/wire/collective/direct_channels.h"

#include <cstring>

#include "butterfly/wire/collective/collectives.h"

namespace butterfly {
namespace {

constexpr std::size_t kEarlyMax = 4096;  // messages that nobody has asked for yet

Status copy(int member, std::uint64_t label, ByteSpan from, MutableByteSpan room) {
  if (from.size() != room.size()) {
    return make_error(ErrorCode::kProtocol, "member {} sent {} bytes with label {} where {} were due", member,
                      from.size(), label, room.size());
  }
  if (!room.empty() && from.data() != room.data()) std::memcpy(room.data(), from.data(), room.size());
  return {};
}

}  // namespace

Status Collectives::send(int /*to*/, std::uint64_t /*label*/, ByteSpan /*data*/) {
  return make_error(ErrorCode::kUnsupported, "these collectives send to all members alone");
}
Status Collectives::receive(int /*from*/, std::uint64_t /*label*/, MutableByteSpan /*data*/) {
  return make_error(ErrorCode::kUnsupported, "these collectives receive from all members alone");
}

DirectChannels::DirectChannels(std::vector<std::shared_ptr<Channel>> members, Epoch epoch,
                               std::chrono::milliseconds member_timeout)
    : members_(std::move(members)), epoch_(epoch), member_timeout_(member_timeout) {}

Status DirectChannels::send(int member, std::uint64_t label, ByteSpan data) {
  Message message{.type = kDirectMessage, .epoch = epoch_, .tag = label};
  // Lent: send_borrowed() only reads.
  message.payload.bytes = {const_cast<std::byte*>(data.data()), data.size()};
  return members_[static_cast<std::size_t>(member)]->send_borrowed(std::move(message));
}

Status DirectChannels::receive(int member, std::uint64_t label, MutableByteSpan room) {
  if (const auto early = early_.find({member, label}); early != early_.end()) {
    const Payload payload = std::move(early->second);
    early_.erase(early);
    return copy(member, label, payload.bytes, room);
  }
  const Deadline deadline = std::chrono::steady_clock::now() + member_timeout_;
  // What is due next has this size most of the time, and is read to where it belongs.
  const auto place = [&](std::uint64_t bytes) -> Result<Payload> {
    if (bytes == room.size()) return Payload{.owner = {}, .bytes = room};
    return allocate_payload(bytes);
  };
  for (;;) {
    BF_ASSIGN_OR_RETURN(const Message message, members_[static_cast<std::size_t>(member)]->receive(place, deadline));
    if (message.type != kDirectMessage || message.epoch != epoch_) {
      return make_error(ErrorCode::kProtocol,
                        "member {} sent a message of type {} and epoch {} where one of type {} and epoch {} was due",
                        member, message.type, message.epoch.value, kDirectMessage, epoch_.value);
    }
    if (message.tag == label) return copy(member, label, message.payload.bytes, room);
    BF_TRY(keep(member, message.tag, message.payload.bytes));
  }
}

Status DirectChannels::keep(int member, std::uint64_t label, ByteSpan bytes) {
  if (early_.size() == kEarlyMax) {
    return make_error(ErrorCode::kProtocol, "member {} sent message {} that nobody waits for", member, kEarlyMax + 1);
  }
  BF_ASSIGN_OR_RETURN(Payload payload, allocate_payload(bytes.size()));
  if (!bytes.empty()) std::memcpy(payload.bytes.data(), bytes.data(), bytes.size());
  if (early_.emplace(std::pair(member, label), std::move(payload)).second) return {};
  return make_error(ErrorCode::kProtocol, "member {} sent two messages with label {}", member, label);
}

}  // namespace butterfly
