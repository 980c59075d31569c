// Records what this process does: takes spans out of the rings of its threads and samples its counters, its memory and
// its machine, a few times a second, from a thread of its own. At most one at a time. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "butterfly/trace/recording.h"

namespace butterfly {

struct RecorderOptions {
  std::uint64_t spans_max = 4'000'000;  // about 200 MB; the oldest are dropped, and counted
  int sample_ms = 20;
  int drain_ms = 5;
};

class Recorder {
 public:
  explicit Recorder(RecorderOptions options = {});
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// What was recorded up to now, and the facts; the recorder goes on with nothing in hand.
  trace::Recording take();

 private:
  void run(const std::stop_token& stop);
  std::size_t drain();  // how many spans
  void sample();

  const RecorderOptions options_;
  std::mutex mutex_;
  std::deque<trace::Span> spans_;
  std::vector<trace::Sample> samples_;
  int samples_since_dear_ = 0;
  std::size_t last_whole_ = 0;  // of samples_
  std::uint64_t begin_ns_ = 0, lost_ = 0, dropped_ = 0;
  std::jthread thread_;
};

/// The process and its machine now.
trace::Sample sample_process();

}  // namespace butterfly
