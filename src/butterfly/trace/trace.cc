#include "butterfly/trace/trace.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "butterfly/base/check.h"

namespace butterfly::trace {
namespace {

constexpr std::size_t kZones = static_cast<std::size_t>(Zone::kCount);
constexpr std::size_t kCounters = static_cast<std::size_t>(Counter::kCount);

constexpr std::array<std::string_view, kZones> kZoneNames{
    "kernel.attention", "kernel.elementwise", "kernel.matmul", "model.load",   "model.pack",
    "stage.compute",    "stage.step",         "stage.wait",    "text.decode",  "text.encode",
    "wire.receive",     "wire.send",          "infer.sample",  "infer.decode", "infer.prefill"};

constexpr std::array<std::string_view, kCounters> kCounterNames{
    "kernel.flops",          "kernel.weight_bytes", "tensor.pool_allocations", "tensor.pool_hits",
    "wire.bytes_received",   "wire.bytes_sent",     "wire.messages_received",  "wire.messages_sent",
    "wire.stale_messages",   "wire.waits_blocked",  "wire.waits_spun",         "infer.tokens_decoded",
    "infer.tokens_prefilled"};

// One writer, the owning thread: a load and a store, no locked instruction.
void increase(std::atomic<std::uint64_t>& sum, std::uint64_t amount) {
  sum.store(sum.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

/// One thread's events. Never freed: when its thread ends the next new thread writes on where it stopped.
///
/// Slot i % kRingSpans holds span i. The writer raises `started`, fills the slot, raises `written`. A reader copies
/// the slots of [written - kRingSpans, written), then looks at `started`. Stores to a slot are releases and loads
/// from it acquires, so a reader that saw a part of span i also sees started > i and drops the span it replaced.
struct Ring {
  struct Slot {
    std::atomic<std::uint64_t> begin_ns{0};
    std::atomic<std::uint64_t> end_ns{0};
    std::atomic<std::uint64_t> detail_thread_zone{0};  // 32, 24 and 8 bits
  };
  struct Total {
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> total_ns{0};
  };

  std::atomic<std::uint64_t> started{0};
  std::atomic<std::uint64_t> written{0};
  std::array<Total, kZones> totals;
  std::array<std::atomic<std::uint64_t>, kCounters> counters{};
  std::array<Slot, kRingSpans> slots;
  std::uint32_t thread = 0;
  bool in_use = true;    // guarded by registry_mutex
  Ring* next = nullptr;  // written before the ring is published

  void push(Zone zone, std::uint64_t begin_ns, std::uint64_t end_ns, std::uint32_t detail) {
    const std::uint64_t index = written.load(std::memory_order_relaxed);
    started.store(index + 1, std::memory_order_relaxed);
    Slot& slot = slots[index % kRingSpans];
    slot.begin_ns.store(begin_ns, std::memory_order_release);
    slot.end_ns.store(end_ns, std::memory_order_release);
    slot.detail_thread_zone.store(
        (std::uint64_t{detail} << 32) | (std::uint64_t{thread & 0xffffffu} << 8) | static_cast<std::uint64_t>(zone),
        std::memory_order_release);
    written.store(index + 1, std::memory_order_release);
  }

  void copy_to(std::vector<Span>& spans) const {
    const std::uint64_t end = written.load(std::memory_order_acquire);
    const std::uint64_t begin = end > kRingSpans ? end - kRingSpans : 0;
    const std::size_t first = spans.size();
    for (std::uint64_t index = begin; index < end; ++index) {
      const Slot& slot = slots[index % kRingSpans];
      Span span;
      span.begin_ns = slot.begin_ns.load(std::memory_order_acquire);
      span.end_ns = slot.end_ns.load(std::memory_order_acquire);
      const std::uint64_t packed = slot.detail_thread_zone.load(std::memory_order_acquire);
      span.detail = static_cast<std::uint32_t>(packed >> 32);
      span.thread = static_cast<std::uint32_t>(packed >> 8) & 0xffffffu;
      span.zone = static_cast<Zone>(packed & 0xffu);
      spans.push_back(span);
    }
    const std::uint64_t now = started.load(std::memory_order_relaxed);
    const std::uint64_t oldest_whole = now > kRingSpans ? now - kRingSpans : 0;
    const std::uint64_t torn = std::clamp(oldest_whole, begin, end) - begin;
    spans.erase(spans.begin() + static_cast<std::ptrdiff_t>(first),
                spans.begin() + static_cast<std::ptrdiff_t>(first + torn));
  }

  void clear() {
    started.store(0, std::memory_order_relaxed);
    written.store(0, std::memory_order_relaxed);
    for (Total& total : totals) {
      total.count.store(0, std::memory_order_relaxed);
      total.total_ns.store(0, std::memory_order_relaxed);
    }
    for (auto& counter : counters) counter.store(0, std::memory_order_relaxed);
  }
};

std::mutex registry_mutex;
std::atomic<Ring*> all_rings{nullptr};  // a list that only grows, read without the mutex
std::uint32_t threads_seen = 0;         // guarded by registry_mutex

thread_local Ring* own_ring = nullptr;

void give_back(void* ring) {
  const std::lock_guard lock(registry_mutex);
  static_cast<Ring*>(ring)->in_use = false;
  own_ring = nullptr;
}

/// Calls give_back at a thread's end. A thread_local object would do, but where memory is short the C library ends the
/// process when it is to remember its destructor; this just does not give the ring back.
pthread_key_t thread_end() {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    BF_CHECK(pthread_key_create(&made, give_back) == 0);
    return made;
  }();
  return key;
}

Ring* take_ring() {
  const std::lock_guard lock(registry_mutex);
  Ring* ring = all_rings.load(std::memory_order_relaxed);
  while (ring != nullptr && ring->in_use) ring = ring->next;
  if (ring == nullptr) {
    ring = new Ring;
    ring->next = all_rings.load(std::memory_order_relaxed);
    all_rings.store(ring, std::memory_order_release);
  }
  ring->in_use = true;
  ring->thread = threads_seen++;
  return ring;
}

Ring& this_thread() {
  if (own_ring == nullptr) [[unlikely]] {
    own_ring = take_ring();
    static_cast<void>(pthread_setspecific(thread_end(), own_ring));
  }
  return *own_ring;
}

template <typename Visit>
void for_each_ring(const Visit& visit) {
  for (Ring* ring = all_rings.load(std::memory_order_acquire); ring != nullptr; ring = ring->next) visit(*ring);
}

}  // namespace

std::string_view to_string(Zone zone) {
  return zone < Zone::kCount ? kZoneNames[static_cast<std::size_t>(zone)] : "?";
}

std::string_view to_string(Counter counter) {
  return counter < Counter::kCount ? kCounterNames[static_cast<std::size_t>(counter)] : "?";
}

void add(Counter counter, std::uint64_t amount) {
  increase(this_thread().counters[static_cast<std::size_t>(counter)], amount);
}

std::uint64_t read(Counter counter) {
  std::uint64_t sum = 0;
  for_each_ring([&](const Ring& ring) {
    sum += ring.counters[static_cast<std::size_t>(counter)].load(std::memory_order_relaxed);
  });
  return sum;
}

void record(Zone zone, std::uint64_t begin_ns, std::uint64_t end_ns, std::uint32_t detail) {
  Ring& ring = this_thread();
  Ring::Total& total = ring.totals[static_cast<std::size_t>(zone)];
  increase(total.count, 1);
  increase(total.total_ns, end_ns - begin_ns);
  ring.push(zone, begin_ns, end_ns, detail);
}

std::array<ZoneTotal, kZones> totals() {
  std::array<ZoneTotal, kZones> sums{};
  for_each_ring([&](const Ring& ring) {
    for (std::size_t zone = 0; zone < kZones; ++zone) {
      sums[zone].count += ring.totals[zone].count.load(std::memory_order_relaxed);
      sums[zone].total_ns += ring.totals[zone].total_ns.load(std::memory_order_relaxed);
    }
  });
  return sums;
}

std::vector<Span> snapshot() {
  std::vector<Span> spans;
  for_each_ring([&](const Ring& ring) { ring.copy_to(spans); });
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  return spans;
}

void reset() {
  for_each_ring([](Ring& ring) { ring.clear(); });
}

}  // namespace butterfly::trace
