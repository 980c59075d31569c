#include "butterfly/trace/trace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <set>
#include <thread>
#include <vector>

namespace {
std::atomic<std::uint64_t> allocations{0};
}  // namespace

// Every allocation of this test program is counted. Not inlined: the compiler would see new meet free and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace butterfly::trace {
namespace {

class Trace : public testing::Test {
 protected:
  void SetUp() override { reset(); }
};

ZoneTotal total_of(Zone zone) {
  return totals()[static_cast<std::size_t>(zone)];
}

TEST_F(Trace, EveryZoneAndCounterHasItsOwnName) {
  std::set<std::string_view> names;
  for (int i = 0; i < static_cast<int>(Zone::kCount); ++i) names.insert(to_string(static_cast<Zone>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Zone::kCount));
  EXPECT_EQ(names.count(""), 0u);
  names.clear();
  for (int i = 0; i < static_cast<int>(Counter::kCount); ++i) names.insert(to_string(static_cast<Counter>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Counter::kCount));
  EXPECT_EQ(names.count(""), 0u);
  EXPECT_EQ(to_string(Zone::kKernelMatmul), "kernel.matmul");
  EXPECT_EQ(to_string(Zone::kInferPrefill), "infer.prefill");
  EXPECT_EQ(to_string(Counter::kWireBytesSent), "wire.bytes_sent");
  EXPECT_EQ(to_string(Counter::kInferTokensPrefilled), "infer.tokens_prefilled");
}

TEST_F(Trace, RecordKeepsEveryFieldOfASpan) {
  record(Zone::kWireSend, 100, 130, 0xdeadbeefu);
  const std::vector<Span> spans = snapshot();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].begin_ns, 100u);
  EXPECT_EQ(spans[0].end_ns, 130u);
  EXPECT_EQ(spans[0].detail, 0xdeadbeefu);
  EXPECT_EQ(spans[0].zone, Zone::kWireSend);
  EXPECT_EQ(total_of(Zone::kWireSend).count, 1u);
  EXPECT_EQ(total_of(Zone::kWireSend).total_ns, 30u);
  EXPECT_EQ(total_of(Zone::kWireReceive).count, 0u);
}

TEST_F(Trace, NestedScopesLieInsideEachOther) {
  {
    const Scope step(Zone::kStageStep, 7);
    const Scope compute(Zone::kStageCompute, 3);
  }
  const std::vector<Span> spans = snapshot();
  ASSERT_EQ(spans.size(), 2u);
  const bool step_first = spans[0].zone == Zone::kStageStep;
  const Span& step = spans[step_first ? 0 : 1];
  const Span& compute = spans[step_first ? 1 : 0];
  EXPECT_EQ(step.zone, Zone::kStageStep);
  EXPECT_EQ(step.detail, 7u);
  EXPECT_EQ(compute.zone, Zone::kStageCompute);
  EXPECT_EQ(compute.detail, 3u);
  EXPECT_LE(step.begin_ns, compute.begin_ns);
  EXPECT_LE(compute.end_ns, step.end_ns);
  EXPECT_LE(compute.begin_ns, compute.end_ns);
}

TEST_F(Trace, SnapshotIsOrderedByBegin) {
  record(Zone::kTextEncode, 30, 40, 0);
  record(Zone::kTextEncode, 10, 20, 0);
  record(Zone::kTextEncode, 20, 50, 0);
  const std::vector<Span> spans = snapshot();
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].begin_ns, 10u);
  EXPECT_EQ(spans[1].begin_ns, 20u);
  EXPECT_EQ(spans[2].begin_ns, 30u);
}

TEST_F(Trace, FullRingKeepsTheNewestAndTotalsKeepAll) {
  constexpr std::uint64_t kWritten = kRingSpans + kRingSpans / 2;
  for (std::uint64_t i = 0; i < kWritten; ++i) record(Zone::kKernelMatmul, i, i + 2, static_cast<std::uint32_t>(i));
  const std::vector<Span> spans = snapshot();
  ASSERT_EQ(spans.size(), kRingSpans);
  EXPECT_EQ(spans.front().detail, kWritten - kRingSpans);
  EXPECT_EQ(spans.back().detail, kWritten - 1);
  EXPECT_EQ(total_of(Zone::kKernelMatmul).count, kWritten);
  EXPECT_EQ(total_of(Zone::kKernelMatmul).total_ns, 2 * kWritten);
}

TEST_F(Trace, ThreadsHaveNumbersOfTheirOwnAndSumsCoverAllOfThem) {
  constexpr int kThreads = 4;
  std::atomic<int> recorded{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      record(Zone::kStageWait, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(i) + 1, 0);
      add(Counter::kWireBytesSent, 1000);
      recorded.fetch_add(1);
      while (recorded.load() < kThreads) std::this_thread::yield();  // all alive at once
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::uint32_t> numbers;
  for (const Span& span : snapshot()) numbers.insert(span.thread);
  EXPECT_EQ(numbers.size(), static_cast<std::size_t>(kThreads));
  EXPECT_EQ(total_of(Zone::kStageWait).count, static_cast<std::uint64_t>(kThreads));
  EXPECT_EQ(read(Counter::kWireBytesSent), 1000u * kThreads);
  EXPECT_EQ(read(Counter::kWireBytesReceived), 0u);
}

TEST_F(Trace, ThreadAfterAnEndedThreadKeepsItsSpansAndGetsANewNumber) {
  for (std::uint64_t i = 0; i < 3; ++i) std::thread([i] { record(Zone::kModelLoad, i, i, 0); }).join();
  const std::vector<Span> spans = snapshot();
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_NE(spans[0].thread, spans[1].thread);
  EXPECT_NE(spans[1].thread, spans[2].thread);
}

TEST_F(Trace, FirstEventOfAThreadAllocatesAndNoLaterOneDoes) {
  std::uint64_t before_first = 0, after_first = 0, after_many = 0;
  std::atomic<bool> holding{false}, release{false};
  // Takes whatever ring is free, so that the thread below needs a new one: the control that counting works.
  std::vector<std::thread> holders;
  for (int i = 0; i < 8; ++i) {
    holders.emplace_back([&] {
      add(Counter::kKernelFlops, 1);
      holding = true;
      while (!release.load()) std::this_thread::yield();
    });
  }
  while (!holding.load() || read(Counter::kKernelFlops) < 8) std::this_thread::yield();
  std::thread([&] {
    before_first = allocations.load();
    record(Zone::kKernelMatmul, 0, 1, 0);
    after_first = allocations.load();
    for (std::uint64_t i = 0; i < 2 * kRingSpans; ++i) {
      const Scope scope(Zone::kKernelMatmul);
      add(Counter::kKernelFlops, 2);
    }
    after_many = allocations.load();
  }).join();
  release = true;
  for (std::thread& holder : holders) holder.join();
  EXPECT_GT(after_first, before_first);
  EXPECT_EQ(after_many, after_first);
}

TEST_F(Trace, SpansReadWhileBeingOverwrittenAreNeverTorn) {
  const std::jthread writer([](const std::stop_token& stop) {
    for (std::uint64_t i = 0; !stop.stop_requested(); ++i) {
      record(Zone::kWireReceive, i, 3 * i, static_cast<std::uint32_t>(i));
    }
  });
  // With short rings (BUTTERFLY_TINY) this meets many spans half written.
  for (std::uint64_t seen = 0; seen < 400'000;) {
    for (const Span& span : snapshot()) {
      ++seen;
      ASSERT_EQ(span.end_ns, 3 * span.begin_ns);
      ASSERT_EQ(span.detail, static_cast<std::uint32_t>(span.begin_ns));
      ASSERT_EQ(span.zone, Zone::kWireReceive);
    }
  }
}

}  // namespace
}  // namespace butterfly::trace
