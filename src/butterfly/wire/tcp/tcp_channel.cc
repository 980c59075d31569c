#include "butterfly/wire/tcp/tcp_channel.h"

#include <system_error>

#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/spin.h"

namespace butterfly {

TcpOptions for_role(TcpOptions options, ConnectionRole role) {
  if (role != ConnectionRole::kData) options.packed = PackedPayloads::kRefused;
  return options;
}

TcpChannel::TcpChannel(std::unique_ptr<ByteStream> stream, std::string peer, const TcpOptions& options)
    : stream_(std::move(stream)), peer_(std::move(peer)), options_(options), reader_(options.limits, options.packed) {}

TcpChannel::~TcpChannel() {
  close();
  if (sender_.joinable()) sender_.join();
}

void TcpChannel::close() {
  if (closed_.exchange(true)) return;
  ::shutdown(stream_->fd(), SHUT_RDWR);  // wakes every poll on this socket, here and at the peer
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

tl::unexpected<Error> TcpChannel::closed_error() const {
  return make_error(ErrorCode::kUnavailable, "the channel to {} is closed", peer_);
}

tl::unexpected<Error> TcpChannel::peer_gone(const IoResult& result) const {
  if (closed_) return closed_error();
  if (result.state == IoResult::State::kEnd) {
    return make_error(ErrorCode::kUnavailable, "{} closed the connection{}", peer_,
                      reader_.in_message() ? " in the middle of a message" : "");
  }
  return make_error(ErrorCode::kUnavailable, "the connection to {} broke: {}", peer_, stream_->failure(result));
}

Result<TcpChannel::PollEvent> TcpChannel::write(Outgoing& outgoing) {
  while (outgoing.sent < outgoing.bytes()) {
    std::array<ByteSpan, 3> pieces{ByteSpan(outgoing.header), ByteSpan(outgoing.message.meta),
                                   ByteSpan(outgoing.message.payload.bytes)};
    std::size_t skip = outgoing.sent;
    for (ByteSpan& piece : pieces) {
      const std::size_t skipped = std::min(skip, piece.size());
      piece = piece.subspan(skipped);
      skip -= skipped;
    }
    const IoResult result = stream_->send(pieces);
    if (result.state == IoResult::State::kAgain) return result.event;
    if (result.state != IoResult::State::kMoved) {
      if (closed_) return closed_error();
      return make_error(ErrorCode::kUnavailable, "the connection to {} broke: {}", peer_, stream_->failure(result));
    }
    outgoing.sent += result.bytes;
  }
  stats_.sent(outgoing.bytes());
  return PollEvent{0};
}

TcpChannel::Outgoing TcpChannel::frame(Message message) {
  Packing packing;
  if (packing_) {
    const std::size_t before = message.payload.bytes.size();
    const trace::Scope scope(trace::Zone::kCompress, {.number = 1, .bytes = before});
    packing = packing_->pack(message.payload, stream_->fd());
    if (packing.codec != Codec::kNone) stats_.packed(packing.codec, before - message.payload.bytes.size());
  }
  const FrameHeader header{.type = message.type,
                           .epoch = message.epoch,
                           .tag = message.tag,
                           .meta_bytes = static_cast<std::uint32_t>(message.meta.size()),
                           .payload_bytes = message.payload.bytes.size(),
                           .body_checksum = body_checksum(message.meta, message.payload.bytes),
                           .packing = packing};
  return {.header = encode_frame_header(header), .message = std::move(message)};
}

Status TcpChannel::send(Message message, Deadline deadline) {
  trace::Scope scope(trace::Zone::kSend);
  BF_TRY(check_limits(message, options_.limits));
  Outgoing outgoing = frame(std::move(message));
  scope.set_work({.number = 1, .bytes = outgoing.bytes()});

  std::unique_lock lock(mutex_);
  const auto queue_max = static_cast<std::size_t>(options_.queue_messages_max);
  const bool in_time =
      changed_.wait_until(lock, deadline, [&] { return closed_ || send_failure_ || queue_.size() < queue_max; });
  if (send_failure_) return tl::unexpected(*send_failure_);
  if (closed_) return closed_error();
  if (!in_time) return make_error(ErrorCode::kTimeout, "{} did not take a message before the deadline", peer_);
  if (queue_.empty()) {
    // The sender thread rests while the queue is empty, and there is one sending caller: the socket is ours.
    lock.unlock();
    auto progress = write(outgoing);
    if (progress && *progress == 0) return {};
    lock.lock();
    if (!progress) {
      send_failure_ = progress.error();
      return tl::unexpected(std::move(progress).error());
    }
  }
  return enqueue(std::move(outgoing), lock);
}

Status TcpChannel::send_borrowed(Message message) {
  trace::Scope scope(trace::Zone::kSend);
  BF_TRY(check_limits(message, options_.limits));
  Outgoing outgoing = frame(std::move(message));
  scope.set_work({.number = 1, .bytes = outgoing.bytes()});

  std::unique_lock lock(mutex_);
  if (send_failure_) return tl::unexpected(*send_failure_);
  if (closed_) return closed_error();
  if (queue_.empty()) {
    lock.unlock();  // as in send()
    const auto progress = write(outgoing);
    if (progress && *progress == 0) return {};
    lock.lock();
    if (!progress) {
      send_failure_ = progress.error();
      return tl::unexpected(progress.error());
    }
  }
  if (const Status kept = keep_payload(outgoing); !kept) {
    if (outgoing.sent > 0) send_failure_ = kept.error();
    return kept;
  }
  return enqueue(std::move(outgoing), lock);
}

/// Before a borrowed payload goes back to its owner: what is left of it is copied.
Status TcpChannel::keep_payload(Outgoing& outgoing) {
  Message& message = outgoing.message;
  const std::size_t in_front = outgoing.header.size() + message.meta.size();
  const std::size_t sent = outgoing.sent > in_front ? outgoing.sent - in_front : 0;
  kept_bytes_.fetch_add(message.payload.bytes.size() - sent, std::memory_order_relaxed);
  BF_ASSIGN_OR_RETURN(message.payload, copy_payload(message.payload, sent));
  return {};
}

StreamCopies TcpChannel::copies() const {
  StreamCopies copies = stream_->copies();
  copies.kept_bytes = kept_bytes_.load(std::memory_order_relaxed);
  return copies;
}

std::chrono::milliseconds TcpChannel::unacknowledged() {
  const std::lock_guard lock(ack_mutex_);
  return ack_watch_.owed(acknowledgements(stream_->fd()), std::chrono::steady_clock::now());
}

bool TcpChannel::broken() const {
  if (closed_) return true;
  pollfd look{.fd = stream_->fd(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&look, 1, 0) > 0;  // nothing else was asked for: its end, a reset or an error
}

Status TcpChannel::enqueue(Outgoing outgoing, std::unique_lock<std::mutex>& /*held*/) {
  if (closed_) return closed_error();
  if (!sender_.joinable()) {
    try {
      sender_ = std::thread([this] { run_sender(); });
    } catch (const std::system_error& error) {
      return make_error(ErrorCode::kIo, "cannot start a thread to send to {}: {}", peer_, error.what());
    }
  }
  queue_.push_back(std::move(outgoing));
  changed_.notify_all();
  return {};
}

void TcpChannel::run_sender() {
  for (;;) {
    Outgoing* front = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || !queue_.empty(); });
      if (closed_) return;
      front = &queue_.front();  // a deque's elements stay where they are while others are pushed behind
    }
    auto progress = write(*front);
    Status waited;
    if (progress && *progress != 0) waited = wait_for(*progress);
    if (!progress || !waited) {
      // What the peer said before it went away can still be received: the channel is not closed here.
      std::lock_guard lock(mutex_);
      send_failure_ = progress ? waited.error() : progress.error();
      changed_.notify_all();
      return;
    }
    if (*progress != 0) continue;
    Outgoing finished;  // its payload is freed after the lock
    std::lock_guard lock(mutex_);
    finished = std::move(queue_.front());
    queue_.pop_front();
    changed_.notify_all();
  }
}

Status TcpChannel::wait_for(short event) {
  // How long a message may wait is the caller's business (send() and its deadline); close() ends this wait.
  pollfd wait{.fd = stream_->fd(), .events = event, .revents = 0};
  BF_TRY(poll_until(std::span(&wait, 1), after_ms(1000)));
  if (closed_) return closed_error();
  return {};
}

Result<Message> TcpChannel::receive(const PayloadAllocator& allocator, Deadline deadline) {
  std::uint64_t begin_ns = trace::recording() ? trace::now_ns() : 0;
  constexpr std::size_t kReadBytesUnseen = 64 * 1024;  // of what is there already, whatever the deadline says
  std::size_t read_bytes = 0;
  bool waiting = false;
  bool blocked = false;
  Deadline spin_until;
  for (;;) {
    if (closed_) return closed_error();
    // Waiting for the first byte is no receiving: who waits tells of it.
    if (begin_ns != 0 && waiting && read_bytes == 0) begin_ns = trace::now_ns();
    const auto buffers = reader_.wanted();
    const IoResult result = stream_->receive(buffers);
    if (result.state == IoResult::State::kMoved) {
      if (std::exchange(waiting, false)) stats_.waited(std::exchange(blocked, false) ? Wait::kBlocked : Wait::kSpun);
      auto message = reader_.advance(result.bytes, allocator);
      if (!message) {
        close();  // the stream cannot be followed any further
        message.error().message = fmt::format("{}: {}", peer_, message.error().message);
        return tl::unexpected(std::move(message).error());
      }
      if (!*message) {
        read_bytes += result.bytes;
        if (read_bytes <= kReadBytesUnseen || std::chrono::steady_clock::now() < deadline) continue;
        return make_error(ErrorCode::kTimeout, "a message from {} was not complete at the deadline", peer_);
      }
      const std::uint64_t bytes =
          kFrameHeaderBytes + (*message)->meta.size() + (*message)->payload.bytes.size() - reader_.bytes_saved();
      stats_.received(bytes);
      if (begin_ns != 0) trace::record(trace::Zone::kReceive, begin_ns, trace::now_ns(), {.number = 1, .bytes = bytes});
      return std::move(**message);
    }
    if (result.state != IoResult::State::kAgain) return peer_gone(result);
    if (!std::exchange(waiting, true)) spin_until = spin_end(options_.spin, deadline);
    if (std::chrono::steady_clock::now() < spin_until) {
      relax_cpu();
      continue;
    }
    blocked = true;
    pollfd wait{.fd = stream_->fd(), .events = result.event, .revents = 0};
    BF_ASSIGN_OR_RETURN(const int ready, poll_until(std::span(&wait, 1), deadline));
    if (ready == 0) {
      if (waiting) stats_.waited(Wait::kBlocked);
      return make_error(ErrorCode::kTimeout, "no message from {} before the deadline", peer_);
    }
  }
}

}  // namespace butterfly
