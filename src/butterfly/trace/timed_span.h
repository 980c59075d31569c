// A span whose length its writer adds up, recorded or not: both come from the same two looks at the clock.
#pragma once

#include <cstdint>

#include "butterfly/trace/trace.h"

namespace butterfly::trace {

class TimedSpan {
 public:
  explicit TimedSpan(Zone zone, const Work& work = {}) : work_(work), begin_ns_(now_ns()), zone_(zone) {}

  /// For what is known only at the end.
  void set_work(const Work& work) { work_ = work; }

  /// Records it; its nanoseconds. Without this it is not recorded.
  std::uint64_t end() const {
    const std::uint64_t end_ns = now_ns();
    record(zone_, begin_ns_, end_ns, work_);
    return end_ns - begin_ns_;
  }
  double end_s() const { return static_cast<double>(end()) * 1e-9; }

 private:
  Work work_;
  std::uint64_t begin_ns_;
  Zone zone_;
};

/// Adds its length to a sum of seconds when it goes.
class AddedSpan {
 public:
  AddedSpan(Zone zone, double& seconds) : span_(zone), seconds_(seconds) {}
  ~AddedSpan() { seconds_ += span_.end_s(); }
  AddedSpan(const AddedSpan&) = delete;
  AddedSpan& operator=(const AddedSpan&) = delete;

 private:
  TimedSpan span_;
  double& seconds_;
};

}  // namespace butterfly::trace
