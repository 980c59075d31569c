#include "butterfly/wire/collective/piece_channels.h"

#include <cstring>

#include "butterfly/wire/exchange/transfer_tag.h"

namespace butterfly {

PieceChannels::PieceChannels(std::vector<std::shared_ptr<Channel>> members, Epoch epoch,
                             std::chrono::milliseconds member_timeout)
    : members_(std::move(members)), epoch_(epoch), member_timeout_(member_timeout) {}

void PieceChannels::begin(std::uint64_t operation_bytes) {
  tag_ = transfer_tag(++sequence_, operation_bytes);
}

Status PieceChannels::send(int member, ByteSpan piece) {
  Message message{.type = kPieceMessage, .epoch = epoch_, .tag = tag_};
  // Lent: send_borrowed() only reads.
  message.payload.bytes = {const_cast<std::byte*>(piece.data()), piece.size()};
  return members_[static_cast<std::size_t>(member)]->send_borrowed(std::move(message));
}

Result<Message> PieceChannels::receive(int member, MutableByteSpan room) {
  const auto wrong_size = [&](std::uint64_t bytes) {
    return make_error(ErrorCode::kProtocol, "member {} sent a piece of {} bytes where {} were due", member, bytes,
                      room.size());
  };
  const auto in_place = [&](std::uint64_t bytes) -> Result<Payload> {
    if (bytes != room.size()) return wrong_size(bytes);
    return Payload{.owner = {}, .bytes = room};
  };
  BF_ASSIGN_OR_RETURN(Message message, members_[static_cast<std::size_t>(member)]->receive(
                                           in_place, std::chrono::steady_clock::now() + member_timeout_));
  if (message.type != kPieceMessage || message.epoch != epoch_) {
    return make_error(ErrorCode::kProtocol,
                      "member {} sent a message of type {} and epoch {} in a collective of type {} and epoch {}",
                      member, message.type, message.epoch.value, kPieceMessage, epoch_.value);
  }
  if (message.tag != tag_) {
    return make_error(ErrorCode::kProtocol,
                      "member {} is in collective {} of {} bytes, this member in collective {} of {} bytes", member,
                      sequence_of_transfer(message.tag), size_of_transfer(message.tag), sequence_of_transfer(tag_),
                      size_of_transfer(tag_));
  }
  if (message.payload.bytes.size() != room.size()) return wrong_size(message.payload.bytes.size());
  return message;
}

Status PieceChannels::receive_into(int member, MutableByteSpan room) {
  BF_ASSIGN_OR_RETURN(const Message message, receive(member, room));
  if (!room.empty() && message.payload.bytes.data() != room.data()) {
    std::memcpy(room.data(), message.payload.bytes.data(), room.size());
  }
  return {};
}

void PieceChannels::close() {
  for (const auto& channel : members_) {
    if (channel) channel->close();
  }
}

}  // namespace butterfly
