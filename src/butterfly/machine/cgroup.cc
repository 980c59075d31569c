#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>

#include "butterfly/base/read_file.h"
#include "butterfly/machine/topology.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

/// Empty where there is no such file.
std::string read_text(const fs::path& path) {
  return read_file(path.string(), kAnySize).value_or("");
}

/// The number at the start of the text; nothing for "max", an absent file or no number.
std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

/// The number after "key " at the start of a line.
std::optional<std::uint64_t> number_of(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(key + " ", 0) == 0) return number(std::string_view(line).substr(key.size() + 1));
  }
  return std::nullopt;
}

template <typename T>
void keep_smaller(std::optional<T>& kept, T value) {
  kept = kept ? std::min(*kept, value) : value;
}

/// The names under which one version of control groups keeps the same facts.
struct MemoryFiles {
  const char* limit;
  const char* used;
  const char* cache_key;
};
constexpr MemoryFiles kMemoryV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr MemoryFiles kMemoryV2{"memory.max", "memory.current", "inactive_file"};

void read_memory(const fs::path& group, const MemoryFiles& files, CgroupLimits& limits) {
  const auto limit = number(read_text(group / files.limit));
  // Version 1 writes "no limit" as the largest multiple of a page.
  if (!limit || *limit > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / 2) return;
  keep_smaller(limits.memory_bytes, *limit);
  const std::uint64_t used = number(read_text(group / files.used)).value_or(0);
  const std::uint64_t cache = number_of(read_text(group / "memory.stat"), files.cache_key).value_or(0);
  const std::uint64_t held = used - std::min(used, cache);
  keep_smaller(limits.available_memory_bytes, *limit - std::min(*limit, held));
}

void read_cpu(const fs::path& group, CgroupLimits& limits) {
  // Version 2: "quota period" or "max period" in one file; version 1: two files, quota -1 for none.
  const std::string both = read_text(group / "cpu.max");
  auto quota = number(both);
  const std::size_t space = both.find(' ');
  auto period = space == std::string::npos ? std::nullopt : number(std::string_view(both).substr(space + 1));
  if (both.empty()) {
    quota = number(read_text(group / "cpu.cfs_quota_us"));
    period = number(read_text(group / "cpu.cfs_period_us"));
  }
  if (quota && period && *quota > 0 && *period > 0) {
    keep_smaller(limits.cpus, static_cast<double>(*quota) / static_cast<double>(*period));
  }
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& membership, const std::filesystem::path& root) {
  CgroupLimits limits;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    // "4:memory:/a/b" in version 1, "0::/a/b" in version 2.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const bool unified = controllers == ",,";
    const bool memory = unified || controllers.find(",memory,") != std::string::npos;
    const bool cpu = unified || controllers.find(",cpu,") != std::string::npos;
    if (!memory && !cpu) continue;
    const fs::path mount = unified ? root : root / (memory ? "memory" : "cpu");
    // Limits bind at every level. In a container the path may name a place outside: the mount itself then counts.
    fs::path group = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
    for (;;) {
      const fs::path place = mount / group;
      if (memory) read_memory(place, unified ? kMemoryV2 : kMemoryV1, limits);
      if (cpu) read_cpu(place, limits);
      if (group.empty() || group == group.parent_path()) break;
      group = group.parent_path();
    }
  }
  return limits;
}

}  // namespace butterfly
