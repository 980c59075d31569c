// A thread that runs operations one after the other while its owner computes: buckets of gradients are reduced in the
// order in which they were submitted, which is the same on every member. submit() and wait_all() from one thread at a
// time. Operations that could wait long end when the Collectives that they use are aborted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "butterfly/base/result.h"

namespace butterfly {

class CollectiveQueue {
 public:
  /// Errors: kIo, when no thread can be started.
  static Result<std::unique_ptr<CollectiveQueue>> create();
  /// Waits for the operation that runs; those that have not begun never will.
  ~CollectiveQueue();
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  /// Never waits. What the operation uses stays as it is until it has run. Returns its number, from 1.
  std::uint64_t submit(std::function<Status()> operation);

  /// Returns when the operation of this number has run: the first error since the last wait_all(), which stays.
  Status wait(std::uint64_t operation);

  /// Returns when all that was submitted has run or been left out: the first error since the last call, after which
  /// operations were left out until this call.
  Status wait_all();

 private:
  CollectiveQueue() = default;
  void run();

  std::mutex mutex_;  // everything that follows but the thread
  std::condition_variable changed_;
  std::deque<std::function<Status()>> waiting_;
  bool busy_ = false;  // one runs, outside the lock
  std::uint64_t submitted_ = 0, done_ = 0;
  bool ending_ = false;
  Status outcome_;
  std::thread thread_;
};

}  // namespace butterfly
