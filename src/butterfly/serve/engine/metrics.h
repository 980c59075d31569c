// Counts and times of a server, as Prometheus reads them. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/infer/scheduler/scheduler.h"

namespace butterfly {

class Histogram {
 public:
  explicit Histogram(std::vector<double> borders);
  void add(double value);
  /// name_bucket{le="..."}, name_sum, name_count; `labels` as "name=\"value\"" or nothing.
  void write(const std::string& name, const std::string& help, const std::string& labels, std::string& out) const;
  /// Below which this share of the values of the last minutes lies; 0 where there are none.
  double quantile(double share) const;

 private:
  const std::vector<double> borders_;
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  double sum_ = 0;
  std::vector<double> recent_;  // a ring
  std::size_t next_ = 0;
};

struct Metrics {
  static constexpr std::initializer_list<double> kLongTimes = {
      0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920};
  Histogram first_token_s{
      {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640}};
  Histogram token_s{{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}};
  Histogram gap_s{
      {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 40}};
  Histogram queue_s{kLongTimes}, prefill_s{kLongTimes}, decode_s{kLongTimes};
  Histogram request_s{{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920}};
  Histogram prompt_tokens{{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}};
  Histogram generated_tokens{{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000}};
  std::atomic<std::uint64_t> epochs{0};  // that began
  std::atomic<std::uint64_t> streams_resumed{0};
  std::atomic<std::uint64_t> regenerated{0};  // requests computed again, after a restart or for a reader that came back
  std::atomic<std::uint64_t> hang_ups{0};

  /// Answers by path and status.
  void count_request(const std::string& path, int status);
  void count_finished(const std::string& reason);

  /// All of it. `ready`: whether requests are computed now.
  std::string text(const SchedulerStats& stats, const std::string& model, bool ready, unsigned connections) const;

 private:
  void write_histograms(const std::string& model, std::string& out) const;
  void write_scheduler(const SchedulerStats& stats, const std::string& model, std::string& out) const;

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> requests_;
  std::map<std::string, std::uint64_t> finished_;
};

}  // namespace butterfly
