#include "butterfly/infer/deployment/rebalance_queue.h"

namespace butterfly {

Result<std::string> RebalanceQueue::ask(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const std::uint64_t before = round_;
  ++waiting_;
  const bool came = answered_.wait_for(lock, patience, [&] { return closed_ || round_ != before; });
  --waiting_;
  if (closed_) return make_error(ErrorCode::kUnavailable, "the coordinator ends");
  if (came) return *outcome_;
  return make_error(ErrorCode::kUnavailable, "the coordinator measured no steps within {} ms: nothing to plan by",
                    patience.count());
}

bool RebalanceQueue::wanted() const {
  std::lock_guard lock(mutex_);
  return waiting_ > 0;
}

void RebalanceQueue::answer(const Result<std::string>& outcome) {
  std::lock_guard lock(mutex_);
  outcome_ = outcome;
  ++round_;
  answered_.notify_all();
}

void RebalanceQueue::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  answered_.notify_all();
}

}  // namespace butterfly
