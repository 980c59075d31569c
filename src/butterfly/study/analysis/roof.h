// The least time that a process's machine needs for some work, from the peaks that were measured there. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "butterfly/study/read/recorded_run.h"

namespace butterfly::study {

/// "q4_0"; empty for trace::kNoType and numbers that are no type.
std::string type_name(std::uint8_t type);

/// FLOPs per second that all threads reach with weights of `type`; empty: floats. 0: unknown.
double peak_flops(const Process& process, std::string_view type);

/// Bytes per second. 0: unknown.
double peak_bandwidth(const Process& process);

/// Levels of caches that are known by their rates, nearest first.
inline constexpr int kCacheLevels = 3;

/// Both peaks, and what they mean for one operation.
struct Roof {
  double flops_per_s = 0.0, bytes_per_s = 0.0;
  std::array<double, kCacheLevels> cache_bytes_per_s{};  // 0: unknown

  /// The same, where the bytes came out of that level of caches.
  Roof in_cache(int level) const {
    return {.flops_per_s = flops_per_s, .bytes_per_s = cache_bytes_per_s[static_cast<std::size_t>(level)]};
  }

  /// 0: unknown.
  double ridge() const { return bytes_per_s > 0.0 ? flops_per_s / bytes_per_s : 0.0; }
  /// Seconds that the work takes at least; 0: unknown.
  double least_s(double flops, double bytes) const;
};
Roof roof_of(const Process& process, std::string_view type);

}  // namespace butterfly::study
