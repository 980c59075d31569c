#include "butterfly/trace/trace.h"

#include <pthread.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "butterfly/base/check.h"

namespace butterfly::trace {
namespace {

constexpr std::size_t kCounters = static_cast<std::size_t>(Counter::kCount);
constexpr std::size_t kOwners = static_cast<std::size_t>(Owner::kCount);

// One writer, the owning thread: a load and a store, no locked instruction.
void increase(std::atomic<std::uint64_t>& sum, std::uint64_t amount) {
  sum.store(sum.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

/// One thread's events. Never freed: when its thread ends the next new thread writes on where it stopped.
///
/// Slot i % kRingSpans holds span i. The writer raises `started`, fills the slot, raises `written`. A reader copies
/// the slots of [read, written), then looks at `started`. Stores to a slot are releases and loads from it acquires, so
/// a reader that saw a part of span i also sees started > i and drops the span it replaced.
struct Ring {
  using Words = std::array<std::atomic<std::uint64_t>, 6>;

  std::atomic<std::uint64_t> started{0};
  std::atomic<std::uint64_t> written{0};
  std::array<std::atomic<std::uint64_t>, kCounters> counters{};
  std::atomic<Words*> slots{nullptr};  // kRingSpans of them, from the first span on; never freed
  std::uint64_t read = 0;              // guarded by drain_mutex
  std::uint64_t border_ns = 0;         // when its thread opened or closed its last span
  std::uint32_t thread = 0;
  bool in_use = true;    // guarded by registry_mutex
  Ring* next = nullptr;  // written before the ring is published

  void push(Zone zone, std::uint64_t begin_ns, std::uint64_t end_ns, const Work& work) {
    Words* all = slots.load(std::memory_order_relaxed);
    if (all == nullptr) [[unlikely]] {
      all = new Words[kRingSpans]();
      slots.store(all, std::memory_order_release);
    }
    const std::uint64_t index = written.load(std::memory_order_relaxed);
    started.store(index + 1, std::memory_order_relaxed);
    Words& slot = all[index % kRingSpans];
    slot[0].store(begin_ns, std::memory_order_release);
    slot[1].store(end_ns, std::memory_order_release);
    slot[2].store((std::uint64_t{work.number} << 32) | (std::uint64_t{thread & 0xffu} << 24) |
                      (static_cast<std::uint64_t>(work.pass) << 16) | (std::uint64_t{work.type} << 8) |
                      static_cast<std::uint64_t>(zone),
                  std::memory_order_release);
    slot[3].store((std::uint64_t{work.in} << 32) | work.out, std::memory_order_release);
    slot[4].store(work.flops, std::memory_order_release);
    slot[5].store((std::uint64_t{thread >> 8} << 48) | (work.bytes & 0xffffffffffffu), std::memory_order_release);
    written.store(index + 1, std::memory_order_release);
  }

  static Span unpack(const Words& slot) {
    std::array<std::uint64_t, 6> words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = slot[i].load(std::memory_order_acquire);
    Span span;
    span.begin_ns = words[0];
    span.end_ns = words[1];
    span.work.number = static_cast<std::uint32_t>(words[2] >> 32);
    span.thread = static_cast<std::uint32_t>((words[2] >> 24) & 0xffu) | static_cast<std::uint32_t>(words[5] >> 48)
                                                                             << 8;
    span.work.pass = static_cast<Pass>((words[2] >> 16) & 0xffu);
    span.work.type = static_cast<std::uint8_t>((words[2] >> 8) & 0xffu);
    span.zone = static_cast<Zone>(words[2] & 0xffu);
    span.work.in = static_cast<std::uint32_t>(words[3] >> 32);
    span.work.out = static_cast<std::uint32_t>(words[3]);
    span.work.flops = words[4];
    span.work.bytes = words[5] & 0xffffffffffffu;
    return span;
  }

  /// Appends what is new; returns how many spans were overwritten unread.
  std::uint64_t take(std::vector<Span>& spans) {
    const Words* all = slots.load(std::memory_order_acquire);
    const std::uint64_t end = written.load(std::memory_order_acquire);
    if (all == nullptr || end == read) return 0;
    const std::uint64_t begin = std::max(read, end > kRingSpans ? end - kRingSpans : 0);
    const std::size_t first = spans.size();
    for (std::uint64_t index = begin; index < end; ++index) spans.push_back(unpack(all[index % kRingSpans]));
    const std::uint64_t now = started.load(std::memory_order_relaxed);
    const std::uint64_t oldest_whole = now > kRingSpans ? now - kRingSpans : 0;
    const std::uint64_t torn = std::clamp(oldest_whole, begin, end) - begin;
    spans.erase(spans.begin() + static_cast<std::ptrdiff_t>(first),
                spans.begin() + static_cast<std::ptrdiff_t>(first + torn));
    const std::uint64_t lost = begin - read + torn;
    read = end;
    return lost;
  }

  void clear() {
    started.store(0, std::memory_order_relaxed);
    written.store(0, std::memory_order_relaxed);
    read = 0;
    for (auto& counter : counters) counter.store(0, std::memory_order_relaxed);
  }
};

std::mutex drain_mutex;
std::array<std::atomic<std::int64_t>, kOwners> held_bytes{};
std::atomic<std::int64_t> mapped_bytes{0};
std::mutex facts_mutex;
std::map<std::string, std::string>& known_facts() {
  static std::map<std::string, std::string> known;
  return known;
}

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

void hold(Owner owner, std::int64_t bytes) {
  held_bytes[static_cast<std::size_t>(owner)].fetch_add(bytes, std::memory_order_relaxed);
}

std::uint64_t held(Owner owner) {
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, held_bytes[static_cast<std::size_t>(owner)].load(std::memory_order_relaxed)));
}

void hold_beside_heap(std::int64_t bytes) {
  mapped_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

std::uint64_t held_beside_heap() {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, mapped_bytes.load(std::memory_order_relaxed)));
}

void set_recording(bool on) {
  recording_now.store(on, std::memory_order_relaxed);
}

std::uint64_t begin_of(Zone zone) {
  Ring& ring = this_thread();
  const std::uint64_t now = now_ns();
  const bool may_follow = zone >= Zone::kLayer && zone <= Zone::kEmulation;
  if (!may_follow || now - ring.border_ns >= kAdjacentNs) ring.border_ns = now;
  return ring.border_ns;
}

void record(Zone zone, std::uint64_t begin_ns, std::uint64_t end_ns, const Work& work) {
  if (!recording()) return;
  Ring& ring = this_thread();
  ring.border_ns = std::max(ring.border_ns, end_ns);
  ring.push(zone, begin_ns, end_ns, work);
}

void set_fact(const std::string& name, const std::string& value) {
  const std::lock_guard lock(facts_mutex);
  known_facts()[name] = value;
}

void set_fact(const std::string& name, double value) {
  set_fact(name, fmt::format("{}", value));
}

void name_thread(const std::string& name) {
  if (recording()) set_fact(fmt::format("thread.{}", this_thread().thread), name);
}

std::vector<Fact> facts() {
  const std::lock_guard lock(facts_mutex);
  std::vector<Fact> all;
  for (const auto& [name, value] : known_facts()) all.push_back({name, value});
  return all;
}

Drained drain() {
  const std::lock_guard lock(drain_mutex);
  Drained drained;
  for_each_ring([&](Ring& ring) { drained.lost += ring.take(drained.spans); });
  return drained;
}

ForkLock::ForkLock() {
  drain_mutex.lock();
  registry_mutex.lock();
  facts_mutex.lock();
}

ForkLock::~ForkLock() {
  facts_mutex.unlock();
  registry_mutex.unlock();
  drain_mutex.unlock();
}

void ForkLock::forget_parent() {
  set_recording(false);
  for_each_ring([](Ring& ring) {
    ring.clear();
    ring.in_use = &ring == own_ring;  // the other threads are the parent's
  });
  for (auto& bytes : held_bytes) bytes.store(0, std::memory_order_relaxed);
  mapped_bytes.store(0, std::memory_order_relaxed);
  std::erase_if(known_facts(), [](const auto& fact) { return fact.first.starts_with("thread."); });
}

void reset() {
  set_recording(false);
  const std::lock_guard lock(drain_mutex);
  for_each_ring([](Ring& ring) { ring.clear(); });
  for (auto& bytes : held_bytes) bytes.store(0, std::memory_order_relaxed);
  mapped_bytes.store(0, std::memory_order_relaxed);
  const std::lock_guard facts_lock(facts_mutex);
  known_facts().clear();
}

}  // namespace butterfly::trace
