// What this process uses of its machine: CPU time, memory, network, sampled a few times a second and told as rates over
// the last 1, 10 and 60 seconds. The history is a plain value, not thread-safe; the meter owns a thread and is
// thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace butterfly {

/// Sums since the process began, at one moment.
struct ProcessUsage {
  double at_s = 0.0;                                 // on the steady clock
  double cpu_s = 0.0;                                // of all threads together
  double busy_s = 0.0;                               // that it says it worked for others
  std::uint64_t memory_bytes = 0;                    // resident now
  std::uint64_t received_bytes = 0, sent_bytes = 0;  // over connections of `wire`
};

/// The same over a span of time that ends now.
struct UsageWindow {
  double seconds = 0.0;            // less than asked for while the process is younger
  double cpu = 0.0;                // CPUs, 1 is one thread that computes all the time
  double busy = 0.0;               // share of the time
  std::uint64_t memory_bytes = 0;  // the most that was resident
  double received_bytes_per_s = 0.0, sent_bytes_per_s = 0.0;
};

/// Bytes of this process that are resident in memory, without an allocation; 0 where the system does not tell.
std::uint64_t resident_bytes();

/// This process, now; `busy_s` stays 0.
ProcessUsage measure_usage();

class UsageHistory {
 public:
  /// Samples come in order of time; those that no window needs any more are dropped.
  void add(const ProcessUsage& sample);

  /// Over the last 1, 10 and 60 seconds up to `now`; none before the first sample.
  std::vector<UsageWindow> windows(const ProcessUsage& now) const;

 private:
  std::deque<ProcessUsage> samples_;
};

class UsageMeter {
 public:
  /// `busy_s` is called from the meter's thread and from windows(); null: the process says nothing of its work.
  explicit UsageMeter(std::function<double()> busy_s = {});

  std::vector<UsageWindow> windows() const;

 private:
  ProcessUsage sample() const;
  void run(const std::stop_token& stop);

  const std::function<double()> busy_s_;
  mutable std::mutex mutex_;
  UsageHistory history_;
  std::jthread thread_;
};

}  // namespace butterfly
