#include "butterfly/wire/tcp/handshake.h"

#include <sys/socket.h>

namespace butterfly {

ServerHandshake::ServerHandshake(std::unique_ptr<ByteStream> stream, std::string peer, Deadline deadline,
                                 bool authenticated)
    : stream_(std::move(stream)),
      peer_(std::move(peer)),
      deadline_(deadline),
      authenticated_(authenticated),
      phase_(authenticated ? Phase::kTls : Phase::kHello) {}

ServerHandshake::Verdict ServerHandshake::refuse(std::string reason) {
  reason_ =
      identity_ ? fmt::format("{} '{}': {}", to_string(identity_->role), identity_->name, reason) : std::move(reason);
  return Verdict::kRefuse;
}

std::string ServerHandshake::unfinished() const {
  if (phase_ == Phase::kLeaving) return "was answered that its hello is wrong and did not leave";
  if (phase_ == Phase::kTls) return "silent, or too slow with TLS, until its deadline";
  return spoke_ ? "too slow with its hello until its deadline" : "silent until its deadline";
}

ServerHandshake::Verdict ServerHandshake::advance() {
  if (phase_ == Phase::kTls) {
    if (const Verdict verdict = finish_tls(); phase_ == Phase::kTls) return verdict;
  }
  return phase_ == Phase::kLeaving ? drain() : read_hello();
}

ServerHandshake::Verdict ServerHandshake::finish_tls() {
  const IoResult result = stream_->handshake();
  switch (result.state) {
    case IoResult::State::kAgain:
      event_ = result.event;
      return Verdict::kWait;
    case IoResult::State::kEnd:
      return refuse("closed the connection during TLS");
    case IoResult::State::kFailed:
      return refuse(stream_->failure(result));
    case IoResult::State::kMoved:
      break;
  }
  if (authenticated_) {
    identity_ = stream_->peer();
    if (!identity_) return refuse("its certificate names no node");
  }
  phase_ = Phase::kHello;
  return Verdict::kWait;
}

/// Reads on until the stream is dry: what TLS has decrypted already would wake no poll().
ServerHandshake::Verdict ServerHandshake::read_hello() {
  for (;;) {
    const MutableByteSpan buffer = MutableByteSpan(hello_).subspan(filled_);
    const IoResult result = stream_->receive(std::span(&buffer, 1));
    if (result.state == IoResult::State::kAgain) {
      event_ = result.event;
      return Verdict::kWait;
    }
    if (result.state == IoResult::State::kEnd) return refuse("closed the connection before its hello was complete");
    if (result.state == IoResult::State::kFailed) return refuse(stream_->failure(result));
    filled_ += result.bytes;
    spoke_ = true;
    if (filled_ < kHelloPrefixBytes) continue;
    const auto version = decode_hello_version(std::span(hello_).first<kHelloPrefixBytes>());
    if (!version) return refuse_hello(version.error());
    if (*version != kProtocolVersion) {
      return answer_and_refuse(fmt::format("speaks protocol {}, this program {}", *version, kProtocolVersion));
    }
    if (filled_ == kHelloBytes) break;
  }
  auto decoded = decode_hello(hello_);
  if (!decoded) return refuse_hello(decoded.error());
  if (identity_) {
    if (const Status allowed = may_open(*identity_, decoded->role); !allowed) return refuse(allowed.error().message);
  }
  if (!send_reply()) return refuse("does not take the reply to its hello");
  introduction_ = std::move(*decoded);
  return Verdict::kWelcome;
}

/// A hello that was damaged on its way is answered, so that its client tries again; strangers hear nothing.
ServerHandshake::Verdict ServerHandshake::refuse_hello(const Error& error) {
  const bool damaged = resembles_hello(std::span(hello_).first<kHelloPrefixBytes>());
  return damaged ? answer_and_refuse(error.message) : refuse(error.message);
}

ServerHandshake::Verdict ServerHandshake::answer_and_refuse(std::string reason) {
  reason_ = std::move(reason);
  if (!send_reply()) return Verdict::kRefuse;
  ::shutdown(stream_->fd(), SHUT_WR);
  phase_ = Phase::kLeaving;
  return drain();
}

/// Closing with unread bytes would reset the connection and might destroy the answer on its way: read to the end.
ServerHandshake::Verdict ServerHandshake::drain() {
  for (;;) {
    std::array<std::byte, 512> rest;
    const MutableByteSpan buffer(rest);
    const IoResult result = stream_->receive(std::span(&buffer, 1));
    if (result.state == IoResult::State::kMoved) continue;
    event_ = result.event;
    return result.state == IoResult::State::kAgain ? Verdict::kWait : Verdict::kGone;
  }
}

bool ServerHandshake::send_reply() {
  const HelloReplyBytes reply =
      encode_hello_reply(kProtocolVersion, filled_ == kHelloBytes ? ByteSpan(hello_) : ByteSpan());
  const ByteSpan bytes(reply);
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    // A fresh socket's buffer takes 16 bytes at once; a client that arranged otherwise is dropped.
    const ByteSpan rest = bytes.subspan(sent);
    const IoResult result = stream_->send(std::span(&rest, 1));
    if (result.state != IoResult::State::kMoved) return false;
    sent += result.bytes;
  }
  return true;
}

}  // namespace butterfly
