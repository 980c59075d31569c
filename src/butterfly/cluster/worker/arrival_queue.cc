#include "butterfly/cluster/worker/arrival_queue.h"

#include <utility>

namespace butterfly {

void ArrivalQueue::deliver(Arrival arrival) {
  std::lock_guard lock(mutex_);
  if (closed_ || waiting_.size() >= kWaitingMax) return;
  waiting_.push_back(std::move(arrival));
  changed_.notify_all();
}

Result<Arrival> ArrivalQueue::accept(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool woken =
      changed_.wait_until(lock, deadline, [this] { return closed_ || interrupted_ || !waiting_.empty(); });
  if (closed_) return make_error(ErrorCode::kCancelled, "the session of these connections has ended");
  if (std::exchange(interrupted_, false)) return make_error(ErrorCode::kCancelled, "the wait was interrupted");
  if (!woken) return make_error(ErrorCode::kTimeout, "no connection arrived before the deadline");
  Arrival arrival = std::move(waiting_.front());
  waiting_.pop_front();
  return arrival;
}

void ArrivalQueue::interrupt() {
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  changed_.notify_all();
}

void ArrivalQueue::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  waiting_.clear();
  changed_.notify_all();
}

}  // namespace butterfly
