#include "butterfly/wire/exchange/channel_exchange.h"

#include <algorithm>
#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/exchange/transfer_tag.h"

namespace butterfly {
namespace {

// Pieces of this size fill network packets well and stay in the cache between the kernel and the reader.
constexpr std::size_t kPieceBytes = 32 * 1024;
// Sent ahead of what came back, as each arrives half a round trip later: 1 Gbit/s over 8 ms one way, 10 over 0.8. With
// less, a line with latency rests between the pieces, whatever TCP's window is. What no socket takes is copied.
constexpr std::size_t kAheadBytes = 32 * kPieceBytes;

}  // namespace

ChannelExchange::ChannelExchange(int rank, std::vector<std::shared_ptr<Channel>> members,
                                 const ChannelExchangeOptions& options)
    : rank_(rank), members_(std::move(members)), options_(options), flows_(members_.size()) {
  BF_CHECK(rank >= 0 && rank < size(), "a rank beyond the members");
}

std::uint64_t ChannelExchange::tag(std::size_t bytes) const {
  return transfer_tag(sequence_, bytes);
}

Status ChannelExchange::exchange(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) {
  BF_TRY(begin(to, from));
  return finish();
}

Status ChannelExchange::begin(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) {
  BF_CHECK(to.size() == flows_.size() && from.size() == flows_.size(), "one buffer for each member");
  ++sequence_;
  const auto count = members_.size();
  for (std::size_t i = 1; i < count; ++i) {
    // Everybody begins with the next one, so that nobody is everybody's first.
    const std::size_t member = (static_cast<std::size_t>(rank_) + i) % count;
    flows_[member] = {.to = to[member], .from = from[member]};
    if (const Status sent = send_pieces(member); !sent) return give_up(sent.error());
  }
  return {};
}

Status ChannelExchange::finish() {
  const auto count = members_.size();
  // A piece from each member in turn. The member furthest behind always has its next pieces under way: all send ahead
  // of what they receive, and sending never waits. So none of them waits in a circle.
  for (bool complete = false; !complete;) {
    complete = true;
    for (std::size_t i = 1; i < count; ++i) {
      const std::size_t member = (static_cast<std::size_t>(rank_) + count - i) % count;
      Flow& flow = flows_[member];
      Status status;
      if (flow.received < flow.from.size()) status = receive_piece(member);
      if (status) status = send_pieces(member);
      if (!status) return give_up(status.error());
      complete = complete && flow.complete();
    }
  }
  return {};
}

Status ChannelExchange::send_pieces(std::size_t member) {
  Flow& flow = flows_[member];
  while (flow.sent < flow.to.size()) {
    const bool answered = flow.received == flow.from.size();  // nothing comes any more that could be waited for
    if (!answered && flow.sent >= flow.received + kAheadBytes) return {};
    const std::size_t bytes = std::min(kPieceBytes, flow.to.size() - flow.sent);
    Message message{.type = kExchangeMessage, .epoch = options_.epoch, .tag = tag(flow.to.size())};
    // Lent: send_borrowed() only reads.
    message.payload.bytes = {const_cast<std::byte*>(flow.to.data()) + flow.sent, bytes};
    BF_TRY(members_[member]->send_borrowed(std::move(message)));
    flow.sent += bytes;
  }
  return {};
}

Status ChannelExchange::receive_piece(std::size_t member) {
  Flow& flow = flows_[member];
  const MutableByteSpan wanted =
      flow.from.subspan(flow.received, std::min(kPieceBytes, flow.from.size() - flow.received));
  const auto in_place = [&](std::uint64_t bytes) -> Result<Payload> {
    if (bytes == wanted.size()) return Payload{.owner = {}, .bytes = wanted};
    return make_error(ErrorCode::kProtocol, "member {} sent {} bytes of an exchange where {} were due", member, bytes,
                      wanted.size());
  };
  trace::Scope waiting(trace::Zone::kWaitMembers);
  BF_ASSIGN_OR_RETURN(const Message message,
                      members_[member]->receive(in_place, std::chrono::steady_clock::now() + options_.member_timeout));
  waiting.end();
  BF_TRY(check(member, message, wanted));
  // Between threads the payload is the sender's own.
  if (message.payload.bytes.data() != wanted.data()) {
    std::memcpy(wanted.data(), message.payload.bytes.data(), wanted.size());
  }
  flow.received += wanted.size();
  return {};
}

Status ChannelExchange::check(std::size_t member, const Message& message, MutableByteSpan wanted) const {
  const std::uint64_t expected = tag(flows_[member].from.size());
  if (message.type != kExchangeMessage || message.epoch != options_.epoch) {
    return make_error(ErrorCode::kProtocol,
                      "member {} sent a message of type {} and epoch {} in an exchange of epoch {}", member,
                      message.type, message.epoch.value, options_.epoch.value);
  }
  if (message.tag != expected || message.payload.bytes.size() != wanted.size()) {
    return make_error(ErrorCode::kProtocol, "member {} sent {} bytes in exchange {}, {} were due in exchange {}",
                      member, size_of_transfer(message.tag), sequence_of_transfer(message.tag),
                      size_of_transfer(expected), sequence_of_transfer(expected));
  }
  return {};
}

Status ChannelExchange::give_up(const Error& error) {
  abort();
  return tl::unexpected(error);
}

void ChannelExchange::abort() {
  for (const auto& channel : members_) {
    if (channel) channel->close();
  }
}

}  // namespace butterfly
