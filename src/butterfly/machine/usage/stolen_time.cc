#include "butterfly/machine/usage/stolen_time.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <fstream>

namespace butterfly {
std::optional<CpuTicks> read_cpu_ticks() {
  std::ifstream file("/proc/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return parse_cpu_ticks(line);
}

std::optional<CpuTicks> parse_cpu_ticks(std::string_view text) {
  enum Field { kUser, kNice, kSystem, kIdle, kIoWait, kIrq, kSoftIrq, kStolen, kFields };
  constexpr std::string_view kPrefix = "cpu ";
  if (!text.starts_with(kPrefix)) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  std::array<std::uint64_t, kFields> ticks{};
  for (std::uint64_t& field : ticks) {
    while (text.starts_with(' ')) text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), field);
    if (error != std::errc{}) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  // Time of guests of this machine is part of its user time already.
  return CpuTicks{.busy = ticks[kUser] + ticks[kNice] + ticks[kSystem] + ticks[kIrq] + ticks[kSoftIrq],
                  .stolen = ticks[kStolen]};
}

double stolen_share(const CpuTicks& begin, const CpuTicks& end) {
  if (end.stolen <= begin.stolen || end.busy < begin.busy) return 0.0;
  const auto stolen = static_cast<double>(end.stolen - begin.stolen);
  return stolen / (stolen + static_cast<double>(end.busy - begin.busy));
}

StolenTime::StolenTime() : begin_(read_cpu_ticks()) {}

double StolenTime::share() const {
  const auto end = read_cpu_ticks();
  return begin_ && end ? stolen_share(*begin_, *end) : 0.0;
}

std::string StolenTime::sentence() const {
  const double stolen = share();
  if (stolen < kWorthSaying) return {};
  return fmt::format("the host took {:.0f} % of the CPU time that was wanted on this machine", 100 * stolen);
}

}  // namespace butterfly
