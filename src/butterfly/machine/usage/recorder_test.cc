#include "butterfly/machine/usage/recorder.h"

#include <gtest/gtest.h>

#include <thread>

namespace butterfly {
namespace {

TEST(Recorder, TakesEverySpanOnceAndSamplesBesides) {
  trace::reset();
  Recorder recorder({.sample_ms = 1, .drain_ms = 1});
  constexpr int kSpans = 3 * static_cast<int>(trace::kRingSpans) / 2;
  for (int i = 0; i < kSpans; ++i) {
    const trace::Scope scope(trace::Zone::kQkv);
    if (i % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  trace::hold(trace::Owner::kWeights, 1 << 20);
  trace::set_fact("role", std::string("test"));
  const trace::Recording recording = recorder.take();
  EXPECT_EQ(recording.spans.size() + recording.lost, static_cast<std::size_t>(kSpans));
  EXPECT_GT(recording.spans.size(), 0u);
  EXPECT_TRUE(std::ranges::is_sorted(recording.spans, {}, &trace::Span::begin_ns));
  ASSERT_FALSE(recording.samples.empty());
  const trace::Sample& last = recording.samples.back();
  EXPECT_GT(last.resident_bytes, 1u << 20);
  EXPECT_GT(last.cpu_ns, 0u);
  EXPECT_EQ(last.held_bytes[static_cast<std::size_t>(trace::Owner::kWeights)], 1u << 20);
  EXPECT_GT(recording.samples.front().loop_ns, 0.0);
  EXPECT_EQ(recording.fact("role"), "test");
  EXPECT_GE(recording.number("cpus"), 1.0);
  EXPECT_TRUE(recorder.take().spans.empty());
}

TEST(Recorder, DropsTheOldestSpansAndCountsThem) {
  trace::reset();
  Recorder recorder({.spans_max = 5, .sample_ms = 1000, .drain_ms = 1000});
  for (std::uint32_t i = 0; i < 8; ++i) trace::record(trace::Zone::kQkv, i, i, {.number = i});
  const trace::Recording recording = recorder.take();
  ASSERT_EQ(recording.spans.size(), 5u);
  EXPECT_EQ(recording.spans.front().work.number, 3u);
  EXPECT_EQ(recording.dropped + recording.lost, 3u);
}

TEST(Recorder, TheMachineNeverWorksLongerThanItsTime) {
  trace::reset();
  Recorder recorder({.sample_ms = 1, .drain_ms = 1});
  const std::jthread busy([](const std::stop_token& stop) {
    while (!stop.stop_requested()) trace::now_ns();
  });
  const auto rest = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  rest(30);
  trace::set_recording(false);
  rest(600);
  trace::set_recording(true);
  rest(60);
  const trace::Recording recording = recorder.take();
  ASSERT_GT(recording.samples.size(), 8u);
  constexpr std::uint64_t kTicks = 50'000'000;  // what is counted in ticks comes late
  const double cpus = recording.number("cpus");
  for (std::size_t i = 1; i < recording.samples.size(); ++i) {
    const trace::Sample &before = recording.samples[i - 1], &after = recording.samples[i];
    const double most = cpus * static_cast<double>(after.at_ns - before.at_ns);
    EXPECT_LE(after.machine_busy_ns - before.machine_busy_ns, static_cast<std::uint64_t>(most) + kTicks)
        << "sample " << i << " of " << recording.samples.size();
  }
}

TEST(Recorder, NobodyRecordsAfterItsEnd) {
  trace::reset();
  { const Recorder recorder; }
  EXPECT_FALSE(trace::recording());
}

}  // namespace
}  // namespace butterfly
