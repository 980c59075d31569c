// Whether the host of a virtual machine took its CPUs away for a while: then what was measured meanwhile says less
// about the program than about its neighbours. Reads /proc/stat twice. Not thread-safe: one measurement belongs to one
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace butterfly {

/// The first line of /proc/stat, in clock ticks of all CPUs since the machine started.
struct CpuTicks {
  std::uint64_t busy = 0;    // neither idle nor stolen
  std::uint64_t stolen = 0;  // wanted here, and given to another guest of the host
};

/// Nothing where the text is no such line, or is one of a kernel that does not count stolen time.
std::optional<CpuTicks> parse_cpu_ticks(std::string_view text);

/// Now; nothing where the system does not say.
std::optional<CpuTicks> read_cpu_ticks();

/// Of the CPU time that was wanted between two looks, the share that the host took; 0 where none was wanted.
double stolen_share(const CpuTicks& begin, const CpuTicks& end);

class StolenTime {
 public:
  /// Begins to measure.
  StolenTime();

  /// Since then, 0 to 1; 0 where the system does not say.
  double share() const;

  /// A smaller share is ordinary, and nobody needs to be told.
  static constexpr double kWorthSaying = 0.02;

  /// "the host took 7 % of the CPU time that was wanted here"; empty below kWorthSaying.
  std::string sentence() const;

 private:
  std::optional<CpuTicks> begin_;
};

}  // namespace butterfly
