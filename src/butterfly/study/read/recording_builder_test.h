// Recordings made by hand. Times are microseconds.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "butterfly/study/read/recorded_run.h"
#include "butterfly/trace/recording.h"

namespace butterfly::study {

class RecordingBuilder {
 public:
  explicit RecordingBuilder(const std::string& role = "train") {
    recording_.facts = {{"role", role},
                        {"boot_id", "boot"},
                        {"host", "here"},
                        {"pid", "1"},
                        {"cpus", "4"},
                        {"threads", "4"},
                        {"peak.fp32_gflops", "100"},
                        {"peak.int8_gops", "200"},
                        {"peak.memory_gb_per_s", "10"}};
  }

  RecordingBuilder& fact(const std::string& name, const std::string& value) {
    recording_.facts[name] = value;
    return *this;
  }
  RecordingBuilder& span(trace::Zone zone, double begin_us, double end_us, const trace::Work& work = {},
                         std::uint32_t thread = 0) {
    recording_.spans.push_back(
        {.begin_ns = ns(begin_us), .end_ns = ns(end_us), .work = work, .thread = thread, .zone = zone});
    recording_.end_ns = std::max(recording_.end_ns, ns(end_us));
    return *this;
  }
  /// A quiet machine: four threads that compute all the time, memory that stays.
  RecordingBuilder& sample(double at_us, const trace::Sample& more = {}) {
    trace::Sample sample = more;
    sample.at_ns = ns(at_us);
    if (sample.resident_bytes == 0) sample.resident_bytes = std::uint64_t{100} << 20;
    if (sample.cpu_ns == 0) sample.cpu_ns = 4 * ns(at_us);
    if (sample.machine_busy_ns == 0) sample.machine_busy_ns = 4 * ns(at_us);
    if (sample.loop_ns == 0.0) sample.loop_ns = 5000;
    recording_.samples.push_back(sample);
    return *this;
  }
  trace::Recording build() const { return recording_; }

 private:
  static std::uint64_t ns(double us) { return static_cast<std::uint64_t>(us * 1000 + 0.5); }

  trace::Recording recording_;
};

inline RecordedRun run_of(const std::vector<RecordingBuilder>& builders) {
  std::vector<trace::Recording> recordings;
  std::vector<std::string> files;
  for (const RecordingBuilder& builder : builders) {
    recordings.push_back(builder.build());
    files.push_back(fmt::format("{}.bftrace", files.size()));
  }
  return align(std::move(recordings), files);
}

/// `steps` training steps of 1000 us, 900 of which are forward (300) and backward (600), all in good matmuls.
inline RecordingBuilder good_training(int steps = 60, double step_us = 1000) {
  RecordingBuilder builder;
  using trace::Zone;
  for (int i = 0; i < steps; ++i) {
    const double at = i * step_us;
    builder.sample(at);
    builder.span(Zone::kStepTrain, at, at + step_us, {.number = static_cast<std::uint32_t>(i)});
    builder.span(Zone::kPhaseForward, at, at + 0.3 * step_us);
    // 80 % of the peak of 100 GFLOP/s, and far above the ridge of 10 FLOPs a byte.
    const auto work = [&](double us) {
      return trace::Work{.number = 4096,
                         .in = 64,
                         .out = 64,
                         .flops = static_cast<std::uint64_t>(us * 80'000),
                         .bytes = static_cast<std::uint64_t>(us * 800),
                         .type = 0};
    };
    builder.span(Zone::kLayer, at, at + 0.3 * step_us);
    builder.span(Zone::kQkv, at, at + 0.1 * step_us, work(0.1 * step_us));
    builder.span(Zone::kGateUp, at + 0.1 * step_us, at + 0.3 * step_us, work(0.2 * step_us));
    builder.span(Zone::kPhaseBackward, at + 0.3 * step_us, at + 0.9 * step_us);
    trace::Work back = work(0.55 * step_us);
    back.pass = trace::Pass::kWeightGradient;
    builder.span(Zone::kGateUp, at + 0.3 * step_us, at + 0.85 * step_us, back);
    builder.span(Zone::kPhaseOptimizer, at + 0.9 * step_us, at + step_us);
    builder.span(Zone::kUpdate, at + 0.9 * step_us, at + step_us, {.bytes = static_cast<std::uint64_t>(500 * step_us)});
  }
  builder.sample(steps * step_us);
  return builder;
}

}  // namespace butterfly::study
