#include "butterfly/wire/enrolment/tls_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "butterfly/wire/channel/spin.h"
#include "butterfly/wire/enrolment/certificates.h"
#include "butterfly/wire/enrolment/openssl.h"

namespace butterfly {
namespace {

constexpr std::size_t kRecordBytesMax = 16'384;                               // TLS's own limit
constexpr std::size_t kRecordBytes = std::min(kRecordBytesMax, kIoBytesMax);  // what we put into one
constexpr std::size_t kReadAheadBytes = 4 * (kRecordBytesMax + 256);          // ciphertext taken in one call

// --- The socket, as OpenSSL sees it. Its own socket BIO would raise SIGPIPE. ---

/// What a BIO knows: the socket, and whether the peer may be answered yet.
struct Socket {
  int fd = -1;
  bool mute = false;  // nothing that could be a TLS client has spoken: it is not answered, not even by an alert
  std::atomic<std::uint64_t> writes{0};
};

int bio_write(BIO* bio, const char* data, int bytes) {
  auto* socket = static_cast<Socket*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (socket->mute) return bytes;
  const auto count = std::min(static_cast<std::size_t>(bytes), kIoBytesMax);
  const ssize_t moved = ::send(socket->fd, data, count, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_write(bio);
  if (moved > 0) socket->writes.fetch_add(1, std::memory_order_relaxed);
  return static_cast<int>(moved);
}

int bio_read(BIO* bio, char* data, int bytes) {
  auto* socket = static_cast<Socket*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const auto count = std::min(static_cast<std::size_t>(bytes), kIoBytesMax);
  const ssize_t moved = ::recv(socket->fd, data, count, MSG_DONTWAIT);
  if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(bio);
  if (moved == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(moved);
}

long bio_control(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* socket_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "butterfly socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    BIO_meth_set_create(made, [](BIO* bio) {
      BIO_set_init(bio, 1);
      return 1;
    });
    return made;
  }();
  return method;
}

/// A client hello was understood: from here on the peer is answered.
int on_client_hello(SSL* ssl, int* /*alert*/, void* /*argument*/) {
  static_cast<Socket*>(BIO_get_data(SSL_get_wbio(ssl)))->mute = false;
  return SSL_CLIENT_HELLO_SUCCESS;
}

/// The mutex of an SSL object is held for microseconds: waking a sleeper would cost more than waiting awake.
class Turn {
 public:
  explicit Turn(std::mutex& mutex) : lock_(mutex, std::try_to_lock) {
    for (int i = 0; !lock_.owns_lock() && i < 200; ++i) {
      relax_cpu();
      static_cast<void>(lock_.try_lock());
    }
    if (!lock_.owns_lock()) lock_.lock();
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

/// Half a sentence for what OpenSSL reports; the verification of the peer's certificate says more than the alert.
std::string describe_failure(SSL* ssl, bool in_handshake) {
  const unsigned long code = ERR_peek_last_error();
  const int reason = ERR_GET_REASON(code);
  if (in_handshake && reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    return describe_refused_certificate(SSL_get_verify_result(ssl));
  }
  switch (reason) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return "it has no certificate";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_ENCRYPTED_LENGTH_TOO_LONG:
    case SSL_R_BAD_RECORD_TYPE:
      if (in_handshake) return "it does not speak TLS";
      break;
    case SSL_R_UNSUPPORTED_PROTOCOL:
      return "it speaks an older TLS than 1.3";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "it says that our certificate is of another cluster";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "it says that our certificate has expired";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
      return "it says that our certificate was revoked";
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return "it asks for a certificate";
    default:
      break;
  }
  const char* text = ERR_reason_error_string(code);
  return fmt::format("TLS: {}", text != nullptr ? text : "unknown failure");
}

/// Whether one side was not content with the other's certificate. Everything else that ends a handshake may be damage.
bool tells_of_refusal(unsigned long code) {
  switch (ERR_GET_REASON(code)) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_NO_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return true;
    default:
      return false;
  }
}

class TlsStream final : public ByteStream {
 public:
  TlsStream(Descriptor fd, TlsContext context, SslPtr ssl, StreamSide side)
      : ByteStream(std::move(fd)),
        context_(std::move(context)),
        ssl_(std::move(ssl)),
        socket_{.fd = this->fd(), .mute = side == StreamSide::kServer} {
    BIO* bio = BIO_new(socket_method());
    BIO_set_data(bio, &socket_);
    SSL_set_bio(ssl_.get(), bio, bio);
    if (side == StreamSide::kServer) {
      SSL_set_accept_state(ssl_.get());
    } else {
      SSL_set_connect_state(ssl_.get());
    }
  }

  IoResult handshake() override {
    const Turn turn(entering_);
    if (ended_.state != IoResult::State::kMoved) return ended_;
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result != 1) return classify(result);
    complete_ = true;
    return {};
  }

  IoResult receive(std::span<const MutableByteSpan> buffers) override {
    // Looking again must not take the SSL object from the sender: what is not in the socket is nowhere.
    if (dry_ && !socket_readable()) return {.state = IoResult::State::kAgain, .event = POLLIN};
    std::size_t total = 0;
    for (MutableByteSpan buffer : buffers) {
      while (!buffer.empty()) {
        std::size_t moved = 0;
        const IoResult result = read_record(buffer, moved);
        dry_ = result.state == IoResult::State::kAgain && result.event == POLLIN;
        if (result.state != IoResult::State::kMoved) return total > 0 ? IoResult{.bytes = total} : result;
        total += moved;
        buffer = buffer.subspan(moved);
      }
    }
    return {.bytes = total};
  }

  IoResult send(std::span<const ByteSpan> buffers) override {
    std::array<ByteSpan, 3> rest{};
    std::ranges::copy(buffers, rest.begin());
    std::size_t total = 0;
    for (;;) {
      const ByteSpan record = next_record(rest);
      if (record.empty()) return {.bytes = total};
      const IoResult result = write_record(record);
      if (result.state != IoResult::State::kMoved) return total > 0 ? IoResult{.bytes = total} : result;
      total += record.size();
      std::size_t skip = record.size();
      for (ByteSpan& piece : rest) {
        const std::size_t skipped = std::min(skip, piece.size());
        piece = piece.subspan(skipped);
        skip -= skipped;
      }
    }
  }

  std::string failure(const IoResult& result) const override {
    if (result.error != 0) return fmt::format("{}", system_message(result.error));
    const Turn turn(entering_);
    return failure_;
  }

  bool damaged(const IoResult& result) const override {
    const Turn turn(entering_);
    if (refused_) return false;
    // A server that hangs up before it has seen our certificate has not refused us: damaged bytes are no TLS to it.
    if (!complete_ || result.error == ECONNRESET) return true;
    return result.state == IoResult::State::kFailed && result.error == 0;
  }

  std::optional<NodeIdentity> peer() const override {
    const Turn turn(entering_);
    const X509Ptr certificate(SSL_get1_peer_certificate(ssl_.get()));
    return certificate ? read_identity(certificate.get()) : std::nullopt;
  }

  StreamCopies copies() const override {
    return {.staged_bytes = staged_bytes_,
            .sealed_bytes = sealed_bytes_,
            .opened_bytes = opened_bytes_,
            .writes = socket_.writes};
  }

 private:
  bool socket_readable() const {
    char byte = 0;
    const ssize_t seen = ::recv(fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return seen >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  IoResult read_record(MutableByteSpan buffer, std::size_t& moved) {
    const Turn turn(entering_);
    if (ended_.state != IoResult::State::kMoved) return ended_;
    ERR_clear_error();
    const int result = SSL_read_ex(ssl_.get(), buffer.data(), std::min(buffer.size(), kIoBytesMax), &moved);
    if (result != 1) return classify(result);
    opened_bytes_.fetch_add(moved, std::memory_order_relaxed);
    return {};
  }

  /// The bytes of the next record: a large piece as it lies, small ones put together. The same for the same rest, as
  /// OpenSSL wants of a repeated call.
  ByteSpan next_record(std::span<const ByteSpan> rest) {
    const auto first = std::ranges::find_if(rest, [](ByteSpan piece) { return !piece.empty(); });
    if (first == rest.end()) return {};
    const bool alone = std::all_of(first + 1, rest.end(), [](ByteSpan piece) { return piece.empty(); });
    if (alone || first->size() >= kRecordBytes) return first->first(std::min(first->size(), kRecordBytes));
    staging_.resize(kRecordBytes);
    std::size_t filled = 0;
    for (auto piece = first; piece != rest.end(); ++piece) {
      const std::size_t bytes = std::min(piece->size(), kRecordBytes - filled);
      if (bytes > 0) std::memcpy(staging_.data() + filled, piece->data(), bytes);
      filled += bytes;
    }
    staged_bytes_.fetch_add(filled, std::memory_order_relaxed);
    return ByteSpan(staging_).first(filled);
  }

  IoResult write_record(ByteSpan record) {
    const Turn turn(entering_);
    if (ended_.state != IoResult::State::kMoved) return ended_;
    ERR_clear_error();
    std::size_t moved = 0;
    const int result = SSL_write_ex(ssl_.get(), record.data(), record.size(), &moved);
    if (result != 1) return classify(result);
    sealed_bytes_.fetch_add(moved, std::memory_order_relaxed);
    return {};
  }

  /// After a call that did not succeed; entering_ is held.
  IoResult classify(int result) {
    const int error = errno;
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return {.state = IoResult::State::kAgain, .event = POLLIN};
      case SSL_ERROR_WANT_WRITE:
        return {.state = IoResult::State::kAgain, .event = POLLOUT};
      case SSL_ERROR_ZERO_RETURN:
        ended_ = {.state = IoResult::State::kEnd};
        break;
      case SSL_ERROR_SYSCALL:
        ended_ = {.state = error == 0 ? IoResult::State::kEnd : IoResult::State::kFailed, .error = error};
        break;
      default:
        refused_ = tells_of_refusal(ERR_peek_last_error());
        failure_ = describe_failure(ssl_.get(), !complete_);
        ended_ = {.state = IoResult::State::kFailed};
    }
    ERR_clear_error();
    return ended_;
  }

  const TlsContext context_;
  mutable std::mutex entering_;  // guards ssl_ and the five below
  const SslPtr ssl_;
  Socket socket_;
  IoResult ended_{};  // once not kMoved, every call answers it
  std::string failure_;
  bool complete_ = false;  // the handshake
  bool refused_ = false;   // because of a certificate

  bool dry_ = false;                // the receiver's: TLS holds no complete record, the socket had no more
  std::vector<std::byte> staging_;  // the sender's
  std::atomic<std::uint64_t> staged_bytes_{0}, sealed_bytes_{0}, opened_bytes_{0};
};

}  // namespace

Result<TlsContext> make_tls_context(StreamSide side) {
  TlsContext context(SSL_CTX_new(side == StreamSide::kServer ? TLS_server_method() : TLS_client_method()),
                     SSL_CTX_free);
  SSL_CTX* raw = context.get();
  if (raw == nullptr || SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(raw, TLS1_3_VERSION) != 1 ||
      // 128-bit first: 256 would cost a third more time per byte and protect against nobody we know of.
      SSL_CTX_set_ciphersuites(raw, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") !=
          1 ||
      SSL_CTX_set1_groups_list(raw, "X25519:P-256") != 1) {
    return make_error(ErrorCode::kIo, "cannot set up TLS 1.3: {}", take_openssl_error());
  }
  // No tickets and no cache: nothing can be resumed, so every connection proves who it is, and nothing can be replayed.
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(raw, 0);
  // A connection that ends without TLS's goodbye is an end like any other: frames say themselves whether they are
  // whole.
  SSL_CTX_set_options(
      raw, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(raw, 1);
  SSL_CTX_set_default_read_buffer_len(raw, kReadAheadBytes);
  if (side == StreamSide::kServer) SSL_CTX_set_client_hello_cb(raw, on_client_hello, nullptr);
  return context;
}

Result<std::unique_ptr<ByteStream>> make_tls_stream(Descriptor fd, const TlsContext& context, StreamSide side) {
  SslPtr ssl(SSL_new(context.get()));
  if (!ssl) return make_error(ErrorCode::kIo, "cannot begin TLS: {}", take_openssl_error());
  return std::make_unique<TlsStream>(std::move(fd), context, std::move(ssl), side);
}

}  // namespace butterfly
