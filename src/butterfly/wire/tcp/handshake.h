// The server's part of a connection that has not introduced itself yet: TLS, hello, reply, and who may open what.
// Driven by a Listener's poll loop; nothing here blocks. Not thread-safe.
#pragma once

#include "butterfly/wire/channel/byte_stream.h"

namespace butterfly {

class ServerHandshake {
 public:
  enum class Verdict { kWait, kWelcome, kRefuse, kGone };

  ServerHandshake(std::unique_ptr<ByteStream> stream, std::string peer, Deadline deadline, bool authenticated);

  /// Goes on with what has arrived. kWait: poll(fd(), event()). kRefuse: reason() says why. kGone: the client left
  /// after it was answered with our version.
  Verdict advance();

  int fd() const { return stream_->fd(); }
  short event() const { return event_; }
  Deadline deadline() const { return deadline_; }
  const std::string& peer() const { return peer_; }
  const std::string& reason() const { return reason_; }

  /// Why it is not finished at its deadline.
  std::string unfinished() const;

  /// After kWelcome.
  Introduction take_introduction() { return std::move(introduction_); }
  std::unique_ptr<ByteStream> take_stream() { return std::move(stream_); }
  std::string node() const { return identity_ ? identity_->name : std::string(); }

 private:
  enum class Phase { kTls, kHello, kLeaving };

  Verdict refuse(std::string reason);
  Verdict finish_tls();
  Verdict read_hello();
  Verdict answer_and_refuse(std::string reason);
  Verdict refuse_hello(const Error& error);
  Verdict drain();
  bool send_reply();

  std::unique_ptr<ByteStream> stream_;
  const std::string peer_;
  const Deadline deadline_;
  const bool authenticated_;
  Phase phase_;
  short event_ = POLLIN;
  HelloBytes hello_{};
  std::size_t filled_ = 0;
  bool spoke_ = false;
  std::optional<NodeIdentity> identity_;
  Introduction introduction_;
  std::string reason_;
};

}  // namespace butterfly
