#include "butterfly/machine/emulation/emulation.h"

#include <sys/prctl.h>

#include <cerrno>
#include <ctime>

namespace butterfly {
namespace {

constexpr std::uint64_t kNsPerS = 1'000'000'000;

std::uint64_t read_clock(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * kNsPerS + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

EmulationClock system_clock_of_this_thread() {
  return {.wall_ns = [] { return read_clock(CLOCK_MONOTONIC); },
          .processor_ns = [] { return read_clock(CLOCK_THREAD_CPUTIME_ID); },
          .sleep_until =
              [](std::uint64_t wall_ns) {
                thread_local const int precise = prctl(PR_SET_TIMERSLACK, 1);  // 50 us late otherwise
                (void)precise;
                const timespec until{.tv_sec = static_cast<time_t>(wall_ns / kNsPerS),
                                     .tv_nsec = static_cast<long>(wall_ns % kNsPerS)};
                while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
                }
              }};
}

void Emulation::begin() {
  if (!active()) return;
  wall_ns_ = clock_.wall_ns() - late_ns_;
  late_ns_ = 0;
  processor_ns_ = clock_.processor_ns();
}

void Emulation::catch_up() {
  if (!active()) return;
  const std::uint64_t processor_ns = clock_.processor_ns();
  const auto work_ns = static_cast<std::uint64_t>(static_cast<double>(processor_ns - processor_ns_) / speed_);
  wall_ns_ += work_ns;
  worked_ns_ += work_ns;
  processor_ns_ = processor_ns;
  if (clock_.wall_ns() < wall_ns_) clock_.sleep_until(wall_ns_);
  const std::uint64_t now = clock_.wall_ns();
  late_ns_ = now > wall_ns_ ? now - wall_ns_ : 0;
}

}  // namespace butterfly
