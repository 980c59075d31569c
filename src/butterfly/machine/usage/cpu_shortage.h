// Whether this process got the CPUs that it wanted: what others took of them is no fault of its own speed, nor of what
// was predicted for it. Thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "butterfly/machine/usage/stolen_time.h"

namespace butterfly {

/// Of all threads of this process since it began; 0 where the system does not say.
std::uint64_t process_cpu_ns();

/// Nanoseconds that the threads which this process has now waited for a CPU; 0 where the system does not say.
std::uint64_t run_queue_ns();

/// "some avg10=... total=MICROSECONDS" of /proc/pressure/cpu: the time in which some thread of the machine waited for a
/// CPU. 0 where the text is something else.
std::uint64_t parse_pressure_us(std::string_view text);

/// Over the last 10 seconds hardly any thread of the machine waited for a CPU; true where the system does not say.
bool machine_is_quiet();

class CpuShortage {
 public:
  /// Begins to measure.
  CpuShortage();

  /// Since then, 0 to 1: the share of the time in which threads of this process wanted a CPU and had none, or what the
  /// host took, where that is more.
  double share() const;

  /// The same where other processes of this machine work for this one: of any thread of the machine.
  double share_of_machine() const;

 private:
  StolenTime stolen_;
  std::uint64_t begin_ns_, cpu_ns_, waited_ns_, pressure_us_;
};

}  // namespace butterfly
