#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <list>

#include "butterfly/wire/channel/refusals.h"
#include "butterfly/wire/enrolment/enrolment.h"

namespace butterfly {
namespace {

/// One connection, from TLS to the last byte of the answer.
class Client {
 public:
  enum class Verdict { kWait, kMember, kRefuse, kGone };

  Client(std::unique_ptr<ByteStream> stream, std::string peer, Deadline deadline)
      : stream_(std::move(stream)), peer_(std::move(peer)), deadline_(deadline) {}

  int fd() const { return stream_->fd(); }
  short event() const { return event_; }
  Deadline deadline() const { return deadline_; }
  const std::string& peer() const { return peer_; }
  const std::string& reason() const { return reason_; }
  const std::string& member() const { return member_; }

  Verdict advance(Authority& authority, const IssueOptions& issue) {
    if (phase_ == Phase::kTls) {
      const IoResult result = stream_->handshake();
      if (result.state == IoResult::State::kAgain) return wait(result);
      if (result.state != IoResult::State::kMoved) return broken(result);
      identity_ = stream_->peer();
      phase_ = Phase::kHeader;
      incoming_.resize(identity_ ? kEnrolHeaderBytes : std::tuple_size_v<TokenSecret>);
    }
    while (phase_ != Phase::kAnswer) {
      const MutableByteSpan buffer = MutableByteSpan(incoming_).subspan(filled_);
      const IoResult result = stream_->receive(std::span(&buffer, 1));
      if (result.state == IoResult::State::kAgain) return wait(result);
      if (result.state != IoResult::State::kMoved) return broken(result);
      filled_ += result.bytes;
      if (filled_ < incoming_.size()) continue;
      if (const Status status = understand(authority, issue); !status) return refuse(status.error().message);
    }
    return answer();
  }

 private:
  enum class Phase { kTls, kHeader, kBody, kAnswer };

  Verdict wait(const IoResult& result) {
    event_ = result.event;
    return Verdict::kWait;
  }
  Verdict refuse(std::string reason) {
    reason_ = std::move(reason);
    return Verdict::kRefuse;
  }
  Verdict broken(const IoResult& result) {
    return refuse(result.state == IoResult::State::kEnd ? "closed the connection" : stream_->failure(result));
  }

  /// What was asked for is there. A client without a token or a certificate gets no further than the first line.
  Status understand(Authority& authority, const IssueOptions& issue) {
    if (phase_ == Phase::kHeader) {
      if (!identity_ && filled_ == std::tuple_size_v<TokenSecret>) {
        TokenSecret secret{};
        std::copy_n(incoming_.begin(), secret.size(), secret.begin());
        BF_TRY(authority.check_token(secret));
        incoming_.resize(kEnrolHeaderBytes);
        return {};
      }
      BF_ASSIGN_OR_RETURN(header_, decode_enrol_header(std::span(incoming_).first<kEnrolHeaderBytes>()));
      incoming_.assign(header_.name_bytes + std::size_t{header_.request_bytes}, std::byte{0});
      filled_ = 0;
      phase_ = Phase::kBody;
      return {};
    }
    const std::string name(as_text(ByteSpan(incoming_).first(header_.name_bytes)));
    const ByteSpan request = ByteSpan(incoming_).subspan(header_.name_bytes);
    const auto files =
        identity_ ? authority.renew(*identity_, request, issue) : authority.enrol(header_.secret, name, request, issue);
    EnrolReplyHeader reply{.refused = !files, .sizes = {}};
    std::vector<std::string> parts;
    if (files) {
      parts = {files->certificate, files->authorities, files->revocations};
      member_ = identity_ ? identity_->name : name;
    } else {
      reason_ = files.error().message;  // told too: a client that came so far had the token
      parts = {reason_};
    }
    for (std::size_t i = 0; i < parts.size(); ++i) reply.sizes[i] = static_cast<std::uint32_t>(parts[i].size());
    const EnrolReplyHeaderBytes bytes = encode_enrol_reply_header(reply);
    outgoing_.assign(bytes.begin(), bytes.end());
    for (const std::string& part : parts)
      outgoing_.insert(outgoing_.end(), as_bytes(part).begin(), as_bytes(part).end());
    phase_ = Phase::kAnswer;
    return {};
  }

  Verdict answer() {
    while (sent_ < outgoing_.size()) {
      const ByteSpan rest = ByteSpan(outgoing_).subspan(sent_);
      const IoResult result = stream_->send(std::span(&rest, 1));
      if (result.state == IoResult::State::kAgain) return wait(result);
      if (result.state != IoResult::State::kMoved) return broken(result);
      sent_ += result.bytes;
    }
    return member_.empty() ? Verdict::kRefuse : Verdict::kMember;
  }

  std::unique_ptr<ByteStream> stream_;
  const std::string peer_;
  const Deadline deadline_;
  Phase phase_ = Phase::kTls;
  short event_ = POLLIN;
  std::optional<NodeIdentity> identity_;  // of a client that has a certificate
  EnrolHeader header_;
  std::vector<std::byte> incoming_, outgoing_;
  std::size_t filled_ = 0, sent_ = 0;
  std::string reason_, member_;
};

class Server final : public EnrolmentServer {
 public:
  Server(EnrolmentOptions options, Authority authority, std::shared_ptr<const Credentials> credentials,
         Descriptor socket, Descriptor bell, std::string address)
      : options_(std::move(options)),
        authority_(std::move(authority)),
        credentials_(std::move(credentials)),
        socket_(std::move(socket)),
        bell_(std::move(bell)),
        address_(std::move(address)) {}

  std::string address() const override { return address_; }

  Status run(std::stop_token stop) override {
    const std::stop_callback wake(stop, [this] { ring(bell_); });
    while (!stop.stop_requested() && (options_.members == 0 || members_ < options_.members)) BF_TRY(progress());
    return {};
  }

 private:
  Status progress() {
    std::vector<pollfd> fds{{.fd = bell_.get(), .events = POLLIN, .revents = 0},
                            {.fd = socket_.get(), .events = POLLIN, .revents = 0}};
    Deadline wake = std::min(after_ms(60'000), refusals_.next_flush());
    for (const Client& client : clients_) {
      fds.push_back({.fd = client.fd(), .events = client.event(), .revents = 0});
      wake = std::min(wake, client.deadline());
    }
    BF_TRY(poll_until(fds, wake));
    refusals_.flush();
    std::size_t index = 2;
    for (auto it = clients_.begin(); it != clients_.end(); ++index) {
      it = (fds[index].revents != 0 && step(*it)) || expire(*it) ? clients_.erase(it) : std::next(it);
    }
    return fds[1].revents != 0 ? accept_waiting() : Status();
  }

  bool step(Client& client) {
    switch (client.advance(authority_, options_.issue)) {
      case Client::Verdict::kWait:
        return false;
      case Client::Verdict::kRefuse:
        refusals_.refuse(client.peer(), client.reason());
        return true;
      case Client::Verdict::kMember:
        ++members_;
        if (options_.on_member) options_.on_member(client.member(), client.peer());
        return true;
      case Client::Verdict::kGone:
        return true;
    }
    return true;
  }

  bool expire(const Client& client) {
    if (std::chrono::steady_clock::now() < client.deadline()) return false;
    refusals_.refuse(client.peer(), "silent, or too slow, until its deadline");
    return true;
  }

  Status accept_waiting() {
    SocketAddress peer;
    peer.length = sizeof(peer.storage);
    Descriptor fd(::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.length,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      const bool exhausted = errno == EMFILE || errno == ENFILE;
      if (exhausted && clients_.empty()) {
        return make_error(ErrorCode::kIo, "{} cannot accept: {}", address_, system_message(errno));
      }
      if (exhausted) clients_.pop_front();
      return {};
    }
    if (clients_.size() >= static_cast<std::size_t>(options_.clients_max)) {
      refusals_.refuse(clients_.front().peer(), "gave way to newer clients");
      clients_.pop_front();
    }
    // Revocations and rotations count from the moment they are made.
    const auto context = credentials_->enrolment_context();
    if (!context) {  // files that are being replaced at this moment, for example
      refusals_.refuse(to_string(peer), context.error().message);
      return {};
    }
    BF_ASSIGN_OR_RETURN(auto stream, make_tls_stream(std::move(fd), *context, StreamSide::kServer));
    clients_.emplace_back(std::move(stream), to_string(peer),
                          std::chrono::steady_clock::now() + options_.client_timeout);
    return {};
  }

  const EnrolmentOptions options_;
  Authority authority_;
  const std::shared_ptr<const Credentials> credentials_;
  const Descriptor socket_;
  const Descriptor bell_;
  const std::string address_;
  std::list<Client> clients_;  // oldest first
  Refusals refusals_{address_};
  int members_ = 0;
};

}  // namespace

Result<std::unique_ptr<EnrolmentServer>> EnrolmentServer::create(const EnrolmentOptions& options) {
  BF_ASSIGN_OR_RETURN(Authority authority, Authority::open(options.folder));
  BF_TRY(authority.republish());  // a revocation may have been cut short
  BF_ASSIGN_OR_RETURN(auto credentials, Credentials::load(options.folder));
  BF_ASSIGN_OR_RETURN(const auto resolved, resolve(options.address, after_ms(10'000)));
  BF_ASSIGN_OR_RETURN(Descriptor socket, listen_on(resolved.front(), options.address));
  BF_ASSIGN_OR_RETURN(Descriptor bell, make_bell());
  BF_ASSIGN_OR_RETURN(const SocketAddress bound, bound_address(socket));
  return std::make_unique<Server>(options, std::move(authority), std::move(credentials), std::move(socket),
                                  std::move(bell), to_string(bound));
}

}  // namespace butterfly
