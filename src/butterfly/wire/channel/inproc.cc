#include "butterfly/wire/channel/inproc.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/spin.h"
#include "butterfly/wire/channel/stats.h"

namespace butterfly {
namespace {

/// One direction.
class Queue {
 public:
  explicit Queue(std::size_t messages_max) : messages_max_(messages_max) {}

  enum class Outcome { kDone, kClosed, kTimeout };

  Outcome push(Message message, Deadline deadline) {
    std::unique_lock lock(mutex_);
    const bool in_time =
        changed_.wait_until(lock, deadline, [&] { return closed_ || messages_.size() < messages_max_; });
    if (closed_) return Outcome::kClosed;
    if (!in_time) return Outcome::kTimeout;
    append(std::move(message));
    return Outcome::kDone;
  }

  /// However many there are.
  Outcome push_at_once(Message message) {
    std::lock_guard lock(mutex_);
    if (closed_) return Outcome::kClosed;
    append(std::move(message));
    return Outcome::kDone;
  }

  Outcome pop(Message& message, Deadline deadline, std::chrono::microseconds spin, StatsCounters& stats) {
    if (!ready_.load(std::memory_order_acquire)) wait_for_message(deadline, spin, stats);
    std::lock_guard lock(mutex_);
    if (messages_.empty()) return closed_ ? Outcome::kClosed : Outcome::kTimeout;
    message = std::move(messages_.front());
    messages_.pop_front();
    ready_.store(closed_ || !messages_.empty(), std::memory_order_release);
    changed_.notify_all();
    return Outcome::kDone;
  }

  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    ready_.store(true, std::memory_order_release);
    changed_.notify_all();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }

  void drop_messages() {
    std::deque<Message> dropped;  // payloads are freed after the lock
    std::lock_guard lock(mutex_);
    dropped.swap(messages_);
  }

 private:
  void append(Message message) {
    messages_.push_back(std::move(message));
    ready_.store(true, std::memory_order_release);
    changed_.notify_all();
  }

  void wait_for_message(Deadline deadline, std::chrono::microseconds spin, StatsCounters& stats) {
    const auto end = spin_end(spin, deadline);
    while (std::chrono::steady_clock::now() < end) {
      relax_cpu();
      if (ready_.load(std::memory_order_acquire)) {
        stats.waited(Wait::kSpun);
        return;
      }
    }
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return closed_ || !messages_.empty(); });
    stats.waited(Wait::kBlocked);
  }

  const std::size_t messages_max_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  bool closed_ = false;
  std::atomic<bool> ready_{false};  // pop() would not wait: the spinning side reads this without the mutex
};

struct Link {
  explicit Link(std::size_t messages_max) : forth(messages_max), back(messages_max) {}
  Queue forth;
  Queue back;
};

class InprocChannel final : public Channel {
 public:
  InprocChannel(std::shared_ptr<Link> link, Queue& out, Queue& in, const InprocOptions& options, std::string peer)
      : link_(std::move(link)), out_(out), in_(in), options_(options), peer_(std::move(peer)) {}
  ~InprocChannel() override { close(); }

  Status send(Message message, Deadline deadline) override {
    const std::uint64_t bytes = message.meta.size() + message.payload.bytes.size();
    const trace::Scope scope(trace::Zone::kSend, {.number = 1, .bytes = bytes});
    BF_TRY(check_limits(message, options_.limits));
    switch (out_.push(std::move(message), deadline)) {
      case Queue::Outcome::kClosed:
        return make_error(ErrorCode::kUnavailable, "the channel to {} is closed", peer_);
      case Queue::Outcome::kTimeout:
        return make_error(ErrorCode::kTimeout, "{} did not take a message before the deadline", peer_);
      case Queue::Outcome::kDone:
        break;
    }
    stats_.sent(bytes);
    return {};
  }

  Status send_borrowed(Message message) override {
    const std::uint64_t bytes = message.meta.size() + message.payload.bytes.size();
    const trace::Scope scope(trace::Zone::kSend, {.number = 1, .bytes = bytes});
    BF_TRY(check_limits(message, options_.limits));
    BF_ASSIGN_OR_RETURN(message.payload, copy_payload(message.payload));
    if (out_.push_at_once(std::move(message)) == Queue::Outcome::kClosed) {
      return make_error(ErrorCode::kUnavailable, "the channel to {} is closed", peer_);
    }
    stats_.sent(bytes);
    return {};
  }

  bool broken() const override { return in_.closed() || out_.closed(); }

  Result<Message> receive(const PayloadAllocator& /*allocator*/, Deadline deadline) override {
    Message message;
    switch (in_.pop(message, deadline, options_.spin, stats_)) {
      case Queue::Outcome::kClosed:
        return make_error(ErrorCode::kUnavailable, "the channel to {} is closed", peer_);
      case Queue::Outcome::kTimeout:
        return make_error(ErrorCode::kTimeout, "no message from {} before the deadline", peer_);
      case Queue::Outcome::kDone:
        break;
    }
    const std::uint64_t bytes = message.meta.size() + message.payload.bytes.size();
    const trace::Scope scope(trace::Zone::kReceive, {.number = 1, .bytes = bytes});  // handed over: no time, but bytes
    stats_.received(bytes);
    return message;
  }

  void close() override {
    out_.close();
    in_.close();
    in_.drop_messages();  // ours to read no more; what we sent stays readable for the peer
  }

  ChannelStats stats() const override { return stats_.read(); }
  std::string peer() const override { return peer_; }

 private:
  // Both ends outlive in no fixed order, so the queues belong to both.
  std::shared_ptr<Link> link_;
  Queue& out_;
  Queue& in_;
  const InprocOptions options_;
  const std::string peer_;
  StatsCounters stats_;
};

}  // namespace

std::pair<ChannelPtr, ChannelPtr> make_inproc_pair(const InprocOptions& options) {
  auto link = std::make_shared<Link>(static_cast<std::size_t>(options.queue_messages_max));
  auto first = std::make_unique<InprocChannel>(link, link->forth, link->back, options, options.second_name);
  auto second = std::make_unique<InprocChannel>(link, link->back, link->forth, options, options.first_name);
  return {std::move(first), std::move(second)};
}

}  // namespace butterfly
