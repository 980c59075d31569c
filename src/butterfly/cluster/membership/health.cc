#include "butterfly/cluster/membership/health.h"

#include <algorithm>
#include <atomic>

namespace butterfly {

void Health::watch(std::shared_ptr<Channel> channel) {
  std::lock_guard lock(mutex_);
  if (failure_ || retired_) channel->close();
  channels_.push_back(std::move(channel));
}

void Health::fail(Error error) {
  {
    std::lock_guard lock(mutex_);
    if (failure_ || retired_) return;
    failure_ = std::move(error);
    for (const auto& channel : channels_) channel->close();
    changed_.notify_all();
  }
  if (on_failure_) on_failure_();
}

void Health::suspect(Error error) {
  std::lock_guard lock(mutex_);
  if (failure_ || suspicion_ || retired_) return;
  suspicion_ = std::move(error);
  suspicion_due_ = std::chrono::steady_clock::now() + kSettle;
  changed_.notify_all();
}

std::optional<Error> Health::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

Error Health::explain(const Error& seen) {
  std::unique_lock lock(mutex_);
  const Deadline deadline = std::chrono::steady_clock::now() + 2 * kSettle;
  changed_.wait_until(lock, deadline, [&] { return failure_ || retired_; });
  return failure_.value_or(seen);
}

void Health::attend(Deadline until) {
  std::unique_lock lock(mutex_);
  while (!retired_ && std::chrono::steady_clock::now() < until) {
    const bool pending = suspicion_ && !failure_;
    if (pending && std::chrono::steady_clock::now() >= suspicion_due_) {
      Error cause = *suspicion_;
      lock.unlock();
      fail(std::move(cause));
      lock.lock();
      continue;
    }
    changed_.wait_until(lock, pending ? std::min(until, suspicion_due_) : until);
  }
}

void Health::retire() {
  std::lock_guard lock(mutex_);
  retired_ = true;
  changed_.notify_all();
}

namespace {

class PipelineChannel final : public Channel {
 public:
  PipelineChannel(std::shared_ptr<Channel> channel, std::shared_ptr<Health> health)
      : channel_(std::move(channel)), health_(std::move(health)) {}
  ~PipelineChannel() override { channel_->close(); }

  Status send(Message message, Deadline deadline) override {
    Status status = channel_->send(std::move(message), deadline);
    if (!status && status.error().code == ErrorCode::kUnavailable && !closed_) {
      return tl::unexpected(health_->explain(status.error()));
    }
    return status;
  }

  Status send_borrowed(Message message) override { return channel_->send_borrowed(std::move(message)); }
  bool broken() const override { return channel_->broken(); }

  Result<Message> receive(const PayloadAllocator& allocator, Deadline deadline) override {
    auto message = channel_->receive(allocator, deadline);
    if (!message && message.error().code == ErrorCode::kUnavailable && !closed_) {
      return tl::unexpected(health_->explain(message.error()));
    }
    return message;
  }

  void compress(const CompressionOptions& options) override { channel_->compress(options); }

  void close() override {
    closed_ = true;
    channel_->close();
  }

  ChannelStats stats() const override { return channel_->stats(); }
  std::string peer() const override { return channel_->peer(); }

 private:
  const std::shared_ptr<Channel> channel_;  // also the session's, which closes it on failure
  const std::shared_ptr<Health> health_;    // also the session's; it must answer as long as either lives
  std::atomic<bool> closed_{false};         // by its user, who needs no explanation
};

}  // namespace

ChannelPtr make_pipeline_channel(std::shared_ptr<Channel> channel, std::shared_ptr<Health> health) {
  return std::make_unique<PipelineChannel>(std::move(channel), std::move(health));
}

}  // namespace butterfly
