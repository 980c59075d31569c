#include "butterfly/wire/collective/collective_queue.h"

#include <system_error>

#include "butterfly/trace/trace.h"

namespace butterfly {

Result<std::unique_ptr<CollectiveQueue>> CollectiveQueue::create() {
  std::unique_ptr<CollectiveQueue> queue(new CollectiveQueue());
  try {
    queue->thread_ = std::thread([raw = queue.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    return make_error(ErrorCode::kIo, "cannot start a thread for collectives: {}", error.what());
  }
  return queue;
}

CollectiveQueue::~CollectiveQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::uint64_t CollectiveQueue::submit(std::function<Status()> operation) {
  // The queue's thread may take the caller's CPU as it wakes.
  const trace::Scope scope(trace::Zone::kPhaseCommunication);
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(operation));
  changed_.notify_all();
  return ++submitted_;
}

Status CollectiveQueue::wait(std::uint64_t operation) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= operation; });
  return outcome_;
}

Status CollectiveQueue::wait_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !busy_; });
  return std::exchange(outcome_, Status{});
}

void CollectiveQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    const std::function<Status()> operation = std::move(waiting_.front());
    waiting_.pop_front();
    if (!outcome_) {
      ++done_;
      changed_.notify_all();
      continue;
    }
    busy_ = true;
    lock.unlock();
    Status status = operation();
    lock.lock();
    busy_ = false;
    ++done_;
    if (!status) outcome_ = std::move(status);
    changed_.notify_all();
  }
}

}  // namespace butterfly
