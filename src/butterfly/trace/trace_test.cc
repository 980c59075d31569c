#include "butterfly/trace/trace.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "butterfly/trace/held.h"
#include "butterfly/trace/timed_span.h"

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
  void SetUp() override {
    reset();
    set_recording(true);
  }
  void TearDown() override { set_recording(false); }
};

template <typename Enum>
std::set<std::string_view> names_of() {
  std::set<std::string_view> names;
  for (int i = 0; i < static_cast<int>(Enum::kCount); ++i) names.insert(to_string(static_cast<Enum>(i)));
  return names;
}

TEST_F(Trace, AnOperationBeginsWhereTheSpanBeforeItEndedUnlessTimePassed) {
  const auto spin = [](std::uint64_t ns) {
    for (const std::uint64_t end = now_ns() + ns; now_ns() < end;) {
    }
  };
  {
    const Scope phase(Zone::kPhaseForward);
    { const Scope first(Zone::kNorm); }
    { const Scope second(Zone::kQkv); }
    spin(2 * kAdjacentNs);
    { const Scope third(Zone::kRotary); }
    { const Scope wait(Zone::kWaitTurn); }
  }
  const std::vector<Span> spans = drain().spans;
  ASSERT_EQ(spans.size(), 5U);
  const Span &first = spans[0], &second = spans[1], &third = spans[2], &wait = spans[3], &phase = spans[4];
  EXPECT_GE(third.begin_ns, second.end_ns + 2 * kAdjacentNs);
  EXPECT_GT(wait.begin_ns, third.end_ns) << "others' time is no operation's";
  // Where the test was held up in between they are apart, and then by more than that.
  EXPECT_TRUE(first.begin_ns == phase.begin_ns || first.begin_ns >= phase.begin_ns + kAdjacentNs);
  EXPECT_TRUE(second.begin_ns == first.end_ns || second.begin_ns >= first.end_ns + kAdjacentNs);
}

TEST_F(Trace, EveryZoneCounterAndOwnerHasItsOwnName) {
  EXPECT_EQ(names_of<Zone>().size(), static_cast<std::size_t>(Zone::kCount));
  EXPECT_EQ(names_of<Counter>().size(), static_cast<std::size_t>(Counter::kCount));
  EXPECT_EQ(names_of<Owner>().size(), static_cast<std::size_t>(Owner::kCount));
  EXPECT_FALSE(names_of<Zone>().contains("") || names_of<Counter>().contains("") || names_of<Owner>().contains(""));
  EXPECT_EQ(to_string(Zone::kStepTurn), "turn");
  EXPECT_EQ(to_string(Zone::kHead), "lm_head");
  EXPECT_EQ(to_string(Zone::kCompress), "compress");
  EXPECT_EQ(to_string(Zone::kEvaluate), "evaluate");
  EXPECT_EQ(to_string(Counter::kTrainTokens), "train.tokens");
  EXPECT_EQ(to_string(Owner::kBuffers), "buffers");
  EXPECT_EQ(kind_of(Zone::kStepTrain), ZoneKind::kStep);
  EXPECT_EQ(kind_of(Zone::kSend), ZoneKind::kCommunication);
  EXPECT_EQ(kind_of(Zone::kWaitRequest), ZoneKind::kWait);
  EXPECT_TRUE(is_matmul(Zone::kQkv) && is_matmul(Zone::kMatmul));
  EXPECT_FALSE(is_matmul(Zone::kLayer) || is_matmul(Zone::kAttention));
}

TEST_F(Trace, ASpanKeepsEveryField) {
  const Work work{.number = 0xdeadbeefu,
                  .in = 0xfffffff1u,
                  .out = 0xfffffff2u,
                  .flops = ~std::uint64_t{0} - 3,
                  .bytes = (std::uint64_t{1} << 48) - 5,
                  .type = 3,
                  .pass = Pass::kRecompute};
  record(Zone::kSend, 100, 130, work);
  const std::vector<Span> spans = drain().spans;
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].begin_ns, 100u);
  EXPECT_EQ(spans[0].end_ns, 130u);
  EXPECT_EQ(spans[0].work.number, work.number);
  EXPECT_EQ(spans[0].work.in, work.in);
  EXPECT_EQ(spans[0].work.out, work.out);
  EXPECT_EQ(spans[0].work.flops, work.flops);
  EXPECT_EQ(spans[0].work.bytes, work.bytes);
  EXPECT_EQ(spans[0].work.type, work.type);
  EXPECT_EQ(spans[0].work.pass, work.pass);
  EXPECT_EQ(spans[0].zone, Zone::kSend);
}

TEST_F(Trace, NothingIsWrittenWhileNobodyRecords) {
  set_recording(false);
  record(Zone::kSend, 1, 2, {});
  {
    const Scope begun_before(Zone::kStepTrain);
    set_recording(true);
  }
  EXPECT_TRUE(drain().spans.empty());
  { const Scope scope(Zone::kStepTrain); }
  EXPECT_EQ(drain().spans.size(), 1u);
}

TEST_F(Trace, NestedScopesLieInsideEachOther) {
  {
    const Scope step(Zone::kStepDecode, {.number = 7});
    Scope compute(Zone::kQkv, {.number = 3});
    compute.set_work({.number = 4, .flops = 5});
  }
  const std::vector<Span> spans = drain().spans;
  ASSERT_EQ(spans.size(), 2u);
  const Span& compute = spans[0];  // ended first
  const Span& step = spans[1];
  EXPECT_EQ(step.work.number, 7u);
  EXPECT_EQ(compute.work.number, 4u);
  EXPECT_EQ(compute.work.flops, 5u);
  EXPECT_LE(step.begin_ns, compute.begin_ns);
  EXPECT_LE(compute.end_ns, step.end_ns);
  EXPECT_LE(compute.begin_ns, compute.end_ns);
}

TEST_F(Trace, EachSpanIsDrainedOnceAndOverwrittenOnesAreCounted) {
  const auto write = [](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) record(Zone::kQkv, i, i + 2, {.number = static_cast<std::uint32_t>(i)});
  };
  write(0, 5);
  EXPECT_EQ(drain().spans.size(), 5u);
  EXPECT_TRUE(drain().spans.empty());
  constexpr std::uint64_t kWritten = kRingSpans + 3;
  write(5, 5 + kWritten);
  const Drained drained = drain();
  ASSERT_EQ(drained.spans.size(), kRingSpans);
  EXPECT_EQ(drained.lost, 3u);
  EXPECT_EQ(drained.spans.front().work.number, 8u);
  EXPECT_EQ(drained.spans.back().work.number, 4 + kWritten);
}

TEST_F(Trace, ThreadsHaveNumbersOfTheirOwnAndSumsCoverAllOfThem) {
  constexpr int kThreads = 4;
  std::atomic<int> recorded{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      record(Zone::kWaitStep, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(i) + 1, {});
      add(Counter::kWireBytesSent, 1000);
      recorded.fetch_add(1);
      while (recorded.load() < kThreads) std::this_thread::yield();  // all alive at once
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::uint32_t> numbers;
  for (const Span& span : drain().spans) numbers.insert(span.thread);
  EXPECT_EQ(numbers.size(), static_cast<std::size_t>(kThreads));
  EXPECT_EQ(read(Counter::kWireBytesSent), 1000u * kThreads);
  EXPECT_EQ(read(Counter::kWireBytesReceived), 0u);
}

TEST_F(Trace, ThreadAfterAnEndedThreadKeepsItsSpansAndGetsANewNumber) {
  for (std::uint64_t i = 0; i < 3; ++i) std::thread([i] { record(Zone::kLoadModel, i, i, {}); }).join();
  const std::vector<Span> spans = drain().spans;
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_NE(spans[0].thread, spans[1].thread);
  EXPECT_NE(spans[1].thread, spans[2].thread);
}

TEST_F(Trace, ThreadNumbersBeyondAByteAreKept) {
  for (int i = 0; i < 300; ++i) std::thread([] { record(Zone::kLoadModel, 0, 0, {.bytes = 7}); }).join();
  std::set<std::uint32_t> numbers;
  do {
    const std::vector<Span> spans = drain().spans;
    for (const Span& span : spans) numbers.insert(span.thread);
    if (spans.empty()) break;
  } while (true);
  EXPECT_GT(*numbers.rbegin(), 255u);
}

TEST_F(Trace, MemoryByOwnerIsASumAndFactsKeepTheirLastValue) {
  hold(Owner::kWeights, 100);
  hold(Owner::kKvCache, 30);
  hold(Owner::kWeights, -40);
  EXPECT_EQ(held(Owner::kWeights), 60u);
  EXPECT_EQ(held(Owner::kKvCache), 30u);
  EXPECT_EQ(held(Owner::kGradients), 0u);
  set_fact("b", 2.5);
  set_fact("a", std::string("x"));
  set_fact("b", 3.0);
  const std::vector<Fact> known = facts();
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[0].value, "x");
  EXPECT_EQ(known[1].value, "3");
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
    record(Zone::kQkv, 0, 1, {});
    after_first = allocations.load();
    for (std::uint64_t i = 0; i < 2 * kRingSpans; ++i) {
      const Scope scope(Zone::kQkv);
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
      record(Zone::kReceive, i, 3 * i, {.number = static_cast<std::uint32_t>(i), .flops = 5 * i});
      // A reader that is slower, as in a sanitizer, would find every span overwritten: it has a moment now and then.
      if (i % (16 * kRingSpans) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  // With short rings (BUTTERFLY_TINY) this meets many spans half written.
  std::uint64_t seen = 0;
  for (const auto begin = std::chrono::steady_clock::now();
       seen < 400'000 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(5);) {
    for (const Span& span : drain().spans) {
      ++seen;
      ASSERT_EQ(span.end_ns, 3 * span.begin_ns);
      ASSERT_EQ(span.work.flops, 5 * span.begin_ns);
      ASSERT_EQ(span.work.number, static_cast<std::uint32_t>(span.begin_ns));
      ASSERT_EQ(span.zone, Zone::kReceive);
    }
  }
  EXPECT_GT(seen, 0U);
}

TEST_F(Trace, WhatIsHeldIsGivenBackOnce) {
  {
    Held a(Owner::kWeights, 100);
    Held b(Owner::kBuffers, 7);
    const Held c(std::move(a));
    b = Held(Owner::kGradients, 20);
    EXPECT_EQ(held(Owner::kWeights), 100U);
    EXPECT_EQ(held(Owner::kBuffers), 0U);
    EXPECT_EQ(held(Owner::kGradients), 20U);
  }
  EXPECT_EQ(held(Owner::kWeights) + held(Owner::kGradients), 0U);
}

TEST_F(Trace, ATimedSpanIsAsLongAsItSays) {
  double seconds = 0.0;
  { const AddedSpan span(Zone::kCompress, seconds); }
  TimedSpan span(Zone::kAllReduce);
  span.set_work({.bytes = 12});
  const std::uint64_t length_ns = span.end();
  const std::vector<Span> spans = drain().spans;
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(static_cast<double>(spans[0].end_ns - spans[0].begin_ns) * 1e-9, seconds);
  EXPECT_EQ(spans[1].end_ns - spans[1].begin_ns, length_ns);
  EXPECT_EQ(spans[1].work.bytes, 12U);
}

TEST_F(Trace, AForkedProcessForgetsWhatItsParentDid) {
  record(Zone::kSend, 1, 2, {});
  add(Counter::kTrainTokens, 5);
  hold(Owner::kWeights, 9);
  hold_beside_heap(9);
  set_fact("model.name", "kept");
  name_thread("parent");
  pid_t pid = 0;
  {
    ForkLock lock;
    pid = ::fork();
    if (pid == 0) lock.forget_parent();
  }
  if (pid == 0) {
    set_recording(true);
    record(Zone::kReceive, 3, 4, {});
    const std::vector<Span> spans = drain().spans;
    const bool own = spans.size() == 1 && spans[0].zone == Zone::kReceive;
    const bool fresh = read(Counter::kTrainTokens) == 0 && held(Owner::kWeights) == 0 && held_beside_heap() == 0;
    ::_exit(own && fresh && facts().size() == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(drain().spans.size(), 1U);
  EXPECT_EQ(held(Owner::kWeights), 9U);
}

}  // namespace
}  // namespace butterfly::trace
