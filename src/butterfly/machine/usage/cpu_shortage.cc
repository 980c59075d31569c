#include "butterfly/machine/usage/cpu_shortage.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <string>

#include "butterfly/base/descriptor.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

/// The second number of schedstat: nanoseconds that a thread waited on a run queue.
std::uint64_t run_queue_ns_of(const char* thread) {
  const std::string path = fmt::format("/proc/self/task/{}/schedstat", thread);
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got <= 0) return 0;
  const std::string_view line(text.data(), static_cast<std::size_t>(got));
  const std::size_t space = line.find(' ');
  std::uint64_t waited = 0;
  if (space != std::string_view::npos) std::from_chars(line.data() + space + 1, line.data() + line.size(), waited);
  return waited;
}

std::string pressure_line() {
  std::ifstream file("/proc/pressure/cpu");
  std::string line;
  return std::getline(file, line) ? line : std::string();
}

std::uint64_t pressure_us() {
  return parse_pressure_us(pressure_line());
}

std::uint64_t grown(std::uint64_t before, std::uint64_t now) {
  return now > before ? now - before : 0;
}

}  // namespace

std::uint64_t process_cpu_ns() {
  timespec time{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return 0;
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
}

std::uint64_t run_queue_ns() {
  DIR* folder = ::opendir("/proc/self/task");
  if (folder == nullptr) return 0;
  std::uint64_t sum = 0;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.') sum += run_queue_ns_of(entry->d_name);
  }
  ::closedir(folder);
  return sum;
}

std::uint64_t parse_pressure_us(std::string_view text) {
  constexpr std::string_view kTotal = "total=";
  const std::size_t at = text.find(kTotal);
  std::uint64_t total_us = 0;
  if (!text.starts_with("some ") || at == std::string_view::npos) return 0;
  std::from_chars(text.data() + at + kTotal.size(), text.data() + text.size(), total_us);
  return total_us;
}

bool machine_is_quiet() {
  constexpr std::string_view kLately = "avg10=";
  constexpr double kQuietPercent = 10.0;
  const std::string line = pressure_line();
  const std::size_t at = line.find(kLately);
  double percent = 0.0;
  if (at != std::string::npos) std::from_chars(line.data() + at + kLately.size(), line.data() + line.size(), percent);
  return percent < kQuietPercent;
}

CpuShortage::CpuShortage()
    : begin_ns_(trace::now_ns()), cpu_ns_(process_cpu_ns()), waited_ns_(run_queue_ns()), pressure_us_(pressure_us()) {}

double CpuShortage::share() const {
  const auto waited = static_cast<double>(grown(waited_ns_, run_queue_ns()));
  const auto ran = static_cast<double>(grown(cpu_ns_, process_cpu_ns()));
  return std::max(waited > 0.0 ? waited / (waited + ran) : 0.0, stolen_.share());
}

double CpuShortage::share_of_machine() const {
  const auto seconds = 1e-9 * static_cast<double>(trace::now_ns() - begin_ns_);
  const double pressure = 1e-6 * static_cast<double>(grown(pressure_us_, pressure_us()));
  // A thread that waits shares a CPU with at least one other.
  return std::max(seconds > 0.0 ? std::min(pressure / seconds, 1.0) / 2.0 : 0.0, share());
}

}  // namespace butterfly
