#include "butterfly/machine/usage/process_usage.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <string_view>

#include "butterfly/base/descriptor.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr std::array kWindowsS{1.0, 10.0, 60.0};
constexpr std::chrono::milliseconds kInterval{250};  // a window is longer than asked for by this at most

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

std::uint64_t resident_bytes() {
  const Descriptor file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got <= 0) return 0;
  // "size resident shared ...", in pages.
  const std::string_view line(text.data(), static_cast<std::size_t>(got));
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return 0;
  std::uint64_t pages = 0;
  std::from_chars(line.data() + space + 1, line.data() + line.size(), pages);
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

ProcessUsage measure_usage() {
  ProcessUsage usage;
  usage.at_s = static_cast<double>(trace::now_ns()) * 1e-9;
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) == 0) usage.cpu_s = seconds(used.ru_utime) + seconds(used.ru_stime);
  usage.memory_bytes = resident_bytes();
  usage.received_bytes = trace::read(trace::Counter::kWireBytesReceived);
  usage.sent_bytes = trace::read(trace::Counter::kWireBytesSent);
  return usage;
}

void UsageHistory::add(const ProcessUsage& sample) {
  samples_.push_back(sample);
  // The second one is old enough for the longest window: the first is not needed.
  while (samples_.size() > 2 && sample.at_s - samples_[1].at_s >= kWindowsS.back()) samples_.pop_front();
}

std::vector<UsageWindow> UsageHistory::windows(const ProcessUsage& now) const {
  std::vector<UsageWindow> windows;
  if (samples_.empty()) return windows;
  for (const double length : kWindowsS) {
    auto begin = samples_.begin();  // the newest sample that is old enough, else the oldest
    while (std::next(begin) != samples_.end() && now.at_s - std::next(begin)->at_s >= length) ++begin;
    const double passed = now.at_s - begin->at_s;
    UsageWindow window{.seconds = passed, .memory_bytes = now.memory_bytes};
    for (auto sample = begin; sample != samples_.end(); ++sample) {
      window.memory_bytes = std::max(window.memory_bytes, sample->memory_bytes);
    }
    const auto rate = [&](double from, double to) { return passed > 0.0 ? std::max(to - from, 0.0) / passed : 0.0; };
    window.cpu = rate(begin->cpu_s, now.cpu_s);
    window.busy = rate(begin->busy_s, now.busy_s);
    window.received_bytes_per_s =
        rate(static_cast<double>(begin->received_bytes), static_cast<double>(now.received_bytes));
    window.sent_bytes_per_s = rate(static_cast<double>(begin->sent_bytes), static_cast<double>(now.sent_bytes));
    windows.push_back(window);
  }
  return windows;
}

UsageMeter::UsageMeter(std::function<double()> busy_s)
    : busy_s_(std::move(busy_s)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

std::vector<UsageWindow> UsageMeter::windows() const {
  const ProcessUsage now = sample();
  const std::lock_guard lock(mutex_);
  return history_.windows(now);
}

ProcessUsage UsageMeter::sample() const {
  ProcessUsage usage = measure_usage();
  if (busy_s_) usage.busy_s = busy_s_();
  return usage;
}

void UsageMeter::run(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any pause;
  while (!stop.stop_requested()) {
    const ProcessUsage usage = sample();
    {
      const std::lock_guard lock(mutex_);
      history_.add(usage);
    }
    std::unique_lock lock(mutex);
    pause.wait_for(lock, stop, kInterval, [] { return false; });
  }
}

}  // namespace butterfly
