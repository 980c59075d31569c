#include "butterfly/machine/usage/recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <string>
#include <string_view>

#include "butterfly/base/descriptor.h"
#include "butterfly/machine/topology.h"
#include "butterfly/machine/usage/cpu_shortage.h"
#include "butterfly/machine/usage/process_usage.h"
#include "butterfly/machine/usage/stolen_time.h"

namespace butterfly {
namespace {

using trace::Sample;

constexpr int kDearEvery = 5;  // samples: what reads many or long files, or takes the processor

/// The third number of statm: resident pages of files and of shared memory.
std::uint64_t file_bytes() {
  const Descriptor file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got <= 0) return 0;
  std::string_view line(text.data(), static_cast<std::size_t>(got));
  for (int skipped = 0; skipped < 2; ++skipped) line.remove_prefix(std::min(line.find(' '), line.size() - 1) + 1);
  std::uint64_t pages = 0;
  std::from_chars(line.data(), line.data() + line.size(), pages);
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// A chain of dependent additions: its time follows the clock of the processor and nothing else.
double timed_loop_ns() {
  constexpr int kSteps = 20'000;
  std::uint64_t value = 1;
  const std::uint64_t begin = trace::now_ns();
  for (int i = 0; i < kSteps; ++i) asm volatile("add $1, %0" : "+r"(value));
  return static_cast<double>(trace::now_ns() - begin);
}

/// What a zone costs its thread now, while spans are recorded or not.
double zone_ns() {
  constexpr int kZones = 200;
  constexpr int kTimes = 20;  // the best of them: others may have taken the processor
  std::uint64_t best_ns = ~std::uint64_t{0};
  for (int time = 0; time < kTimes; ++time) {
    const std::uint64_t begin = trace::now_ns();
    for (int i = 0; i < kZones; ++i) const trace::Scope scope(trace::Zone::kMatmul, {.number = 1});
    best_ns = std::min(best_ns, trace::now_ns() - begin);
  }
  return static_cast<double>(best_ns) / kZones;
}

/// What is told by few and short files.
Sample sample_cheaply() {
  Sample sample{.at_ns = trace::now_ns(), .resident_bytes = resident_bytes(), .cpu_ns = process_cpu_ns()};
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) == 0) {
    sample.minor_faults = static_cast<std::uint64_t>(used.ru_minflt);
    sample.system_ns = static_cast<std::uint64_t>(used.ru_stime.tv_sec) * 1'000'000'000u +
                       static_cast<std::uint64_t>(used.ru_stime.tv_usec) * 1'000u;
  }
  sample.mapped_bytes = trace::held_beside_heap();
  sample.file_bytes = file_bytes();
  for (std::size_t i = 0; i < sample.held_bytes.size(); ++i) sample.held_bytes[i] = held(static_cast<trace::Owner>(i));
  for (std::size_t i = 0; i < sample.counters.size(); ++i) sample.counters[i] = read(static_cast<trace::Counter>(i));
  return sample;
}

void sample_machine(Sample& sample) {
  const auto ticks = read_cpu_ticks();
  if (!ticks) return;
  const std::uint64_t tick_ns = 1'000'000'000u / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  sample.machine_busy_ns = ticks->busy * tick_ns;
  sample.machine_stolen_ns = ticks->stolen * tick_ns;
}

/// Samples between two whole ones got what changes with time by a straight line: a sum that stood still for some
/// samples and then leapt would be more than the machine has, over a short time.
void fill_between(std::vector<Sample>& samples, std::size_t whole, std::size_t next) {
  const Sample &first = samples[whole], &last = samples[next];
  const double all = static_cast<double>(last.at_ns - first.at_ns);
  for (std::size_t i = whole + 1; i < next && all > 0.0; ++i) {
    Sample& one = samples[i];
    const double part = static_cast<double>(one.at_ns - first.at_ns) / all;
    const auto between = [part](std::uint64_t a, std::uint64_t b) {
      return b > a ? a + static_cast<std::uint64_t>(part * static_cast<double>(b - a)) : b;
    };
    one.machine_busy_ns = between(first.machine_busy_ns, last.machine_busy_ns);
    one.machine_stolen_ns = between(first.machine_stolen_ns, last.machine_stolen_ns);
    one.run_queue_ns = between(first.run_queue_ns, last.run_queue_ns);
  }
}

}  // namespace

Sample sample_process() {
  Sample sample = sample_cheaply();
  sample_machine(sample);
  return sample;
}

Recorder::Recorder(RecorderOptions options) : options_(options), begin_ns_(trace::now_ns()) {
  trace::set_fact("trace.zone_off_ns", zone_ns());
  trace::set_recording(true);
  trace::set_fact("trace.zone_ns", zone_ns());
  static_cast<void>(trace::drain());  // these, and what an earlier recorder left
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Recorder::~Recorder() {
  trace::set_recording(false);
}

void Recorder::run(const std::stop_token& stop) {
  std::mutex of_wake;
  std::condition_variable_any wake;
  std::unique_lock lock(of_wake);
  const std::uint64_t begun_ns = trace::now_ns();
  std::uint64_t sampled_ns = 0;
  bool was_paused = false;
  while (!stop.stop_requested()) {
    // Each look takes a core from those that compute: seldom while the rings have room for much more.
    constexpr std::size_t kFew = trace::kRingSpans / 8;
    const int look_ms = drain() < kFew ? 3 * options_.drain_ms : options_.drain_ms;
    // A run of a tenth of a second has a peak of memory, too: samples are close at first.
    const std::uint64_t age_ms = (trace::now_ns() - begun_ns) / 1'000'000u;
    const int apart_ms =
        static_cast<int>(std::clamp<std::uint64_t>(age_ms / 50, 1, static_cast<std::uint64_t>(options_.sample_ms)));
    const int wait_ms = std::min(look_ms, apart_ms);
    const bool paused = !trace::recording();  // for what is no part of the run
    if (was_paused && !paused) {
      const std::lock_guard shared(mutex_);
      samples_since_dear_ = kDearEvery;  // what the machine did meanwhile is not told of the time after it
    }
    was_paused = paused;
    if (!paused && trace::now_ns() - sampled_ns >= static_cast<std::uint64_t>(apart_ms) * 1'000'000u) {
      sampled_ns = trace::now_ns();
      sample();
    }
    wake.wait_for(lock, stop, std::chrono::milliseconds(wait_ms), [] { return false; });
  }
}

std::size_t Recorder::drain() {
  const std::lock_guard lock(mutex_);
  trace::Drained drained = trace::drain();
  lost_ += drained.lost;
  spans_.insert(spans_.end(), drained.spans.begin(), drained.spans.end());
  while (spans_.size() > options_.spans_max) {
    spans_.pop_front();
    ++dropped_;
  }
  return drained.spans.size();
}

void Recorder::sample() {
  Sample sample = sample_cheaply();
  const std::lock_guard lock(mutex_);
  if (samples_.empty() || ++samples_since_dear_ >= kDearEvery) {
    samples_since_dear_ = 0;
    sample_machine(sample);
    sample.run_queue_ns = run_queue_ns();
    sample.loop_ns = timed_loop_ns();
    const struct mallinfo2 heap = ::mallinfo2();
    sample.heap_bytes = heap.uordblks + heap.hblkhd;
    sample.heap_free_bytes = heap.fordblks;
    samples_.push_back(sample);
    fill_between(samples_, last_whole_, samples_.size() - 1);
    last_whole_ = samples_.size() - 1;
  } else {
    const Sample& last = samples_.back();
    sample.machine_busy_ns = last.machine_busy_ns;
    sample.machine_stolen_ns = last.machine_stolen_ns;
    sample.run_queue_ns = last.run_queue_ns;
    sample.heap_bytes = last.heap_bytes;
    sample.heap_free_bytes = last.heap_free_bytes;
    samples_.push_back(sample);
  }
}

trace::Recording Recorder::take() {
  drain();
  {
    const std::lock_guard lock(mutex_);
    samples_since_dear_ = kDearEvery;  // the last one is whole
  }
  sample();
  const std::lock_guard lock(mutex_);
  trace::Recording recording{.facts = {}, .begin_ns = begin_ns_, .end_ns = trace::now_ns()};
  for (trace::Fact& fact : trace::facts()) recording.facts[std::move(fact.name)] = std::move(fact.value);
  recording.facts.try_emplace("cpus", fmt::format("{}", ::sysconf(_SC_NPROCESSORS_ONLN)));
  recording.facts.try_emplace("cpus.usable", fmt::format("{}", usable_threads()));
  recording.lost = std::exchange(lost_, 0);
  recording.dropped = std::exchange(dropped_, 0);
  recording.spans.assign(spans_.begin(), spans_.end());
  std::ranges::sort(recording.spans, [](const trace::Span& a, const trace::Span& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  recording.samples = std::move(samples_);
  samples_.clear();
  last_whole_ = 0;
  spans_.clear();
  begin_ns_ = recording.end_ns;
  return recording;
}

}  // namespace butterfly
