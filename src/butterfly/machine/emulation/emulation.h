// A slower machine, played by this one: after its work a thread sleeps for as long as the slower one would still have
// computed. Counts the thread's processor time, so that several emulated nodes may share a core without slowing each
// other down, as long as their speeds add up to less than the cores. For nodes that compute with one thread.
#pragma once

#include <cstdint>
#include <functional>

namespace butterfly {

/// What emulation reads and does; tests give their own.
struct EmulationClock {
  std::function<std::uint64_t()> wall_ns;
  std::function<std::uint64_t()> processor_ns;  // of the calling thread
  std::function<void(std::uint64_t wall_ns)> sleep_until;
};
EmulationClock system_clock_of_this_thread();

class Emulation {
 public:
  /// `speed` times as fast as this machine, in (0, 1]; 1 emulates nothing.
  explicit Emulation(double speed = 1.0, EmulationClock clock = system_clock_of_this_thread())
      : speed_(speed), clock_(std::move(clock)) {}

  bool active() const { return speed_ < 1.0; }

  /// Work begins now.
  void begin();

  /// Returns when the work since begin(), or since the last call, would be done at that speed. Being late, after
  /// sleeping too long or for want of a core, is made up for by the next call.
  void catch_up();

  /// What the work up to the last catch_up() took at that speed, all together.
  std::uint64_t worked_ns() const { return worked_ns_; }

 private:
  double speed_;
  EmulationClock clock_;
  std::uint64_t wall_ns_ = 0;
  std::uint64_t processor_ns_ = 0;
  std::uint64_t worked_ns_ = 0;
  std::uint64_t late_ns_ = 0;  // at the end of the last piece of work
};

}  // namespace butterfly
