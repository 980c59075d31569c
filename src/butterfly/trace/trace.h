// The write side of measurement: typed zones, counters, memory by owner. Always compiled in. Spans are written only
// while a recorder runs (set_recording); else a zone costs one load and a branch. Thread-safe: each thread writes a
// ring of its own, without a lock and without an allocation after its first event.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "butterfly/trace/zones.h"

namespace butterfly::trace {

/// Nanoseconds on the steady clock.
inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

void add(Counter counter, std::uint64_t amount);
std::uint64_t read(Counter counter);

/// `owner` holds this many bytes more, or fewer.
void hold(Owner owner, std::int64_t bytes);
std::uint64_t held(Owner owner);
/// Of what owners hold, bytes that malloc knows nothing of.
void hold_beside_heap(std::int64_t bytes);
std::uint64_t held_beside_heap();

/// Weights have no type here; element types are numbers of tensor/dtype.h.
inline constexpr std::uint8_t kNoType = 255;

/// What was done in a zone. A matmul multiplies [number, in] with [in, out].
struct Work {
  std::uint32_t number = 0;  // rows of an operation; what else it counts, the zone says
  std::uint32_t in = 0;
  std::uint32_t out = 0;
  std::uint64_t flops = 0;      // a multiplication and an addition count as two
  std::uint64_t bytes = 0;      // moved to or from memory, or the wire: counted from shapes
  std::uint8_t type = kNoType;  // of the weights
  Pass pass = Pass::kForward;
};

struct Span {
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
  Work work{};
  std::uint32_t thread = 0;  // small number in order of first event
  Zone zone = Zone::kCount;
};

inline std::atomic<bool> recording_now{false};

inline bool recording() {
  return recording_now.load(std::memory_order_relaxed);
}
void set_recording(bool on);

/// When a span of `zone` begins that is opened now. A layer or an operation begins where its thread opened or closed
/// its last span, if that is less than kAdjacentNs ago: what lies between them is its own arguments, and the recording.
std::uint64_t begin_of(Zone zone);
inline constexpr std::uint64_t kAdjacentNs = 500;

/// Writes one span to the calling thread's ring while recording; the oldest is overwritten when full.
void record(Zone zone, std::uint64_t begin_ns, std::uint64_t end_ns, const Work& work);

/// Measures from construction to destruction.
class Scope {
 public:
  explicit Scope(Zone zone, const Work& work = {}) : zone_(zone), on_(recording()) {
    if (on_) [[unlikely]] {
      work_ = work;
      begin_ns_ = begin_of(zone);
    }
  }
  ~Scope() {
    if (on_) [[unlikely]]
      record(zone_, begin_ns_, now_ns(), work_);
  }
  /// Ends now instead of at its destruction.
  void end() {
    if (on_) [[unlikely]]
      record(zone_, begin_ns_, now_ns(), work_);
    on_ = false;
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// For what is known only at the end; becomes the span's. Cheap while nobody records.
  void set_work(const Work& work) {
    if (on_) work_ = work;
  }
  void set_zone(Zone zone) { zone_ = zone; }
  /// Whether anybody records: what is dear to say need not be said else.
  bool on() const { return on_; }
  /// What never ended in earnest is not recorded.
  void drop() { on_ = false; }

 private:
  Work work_{};
  std::uint64_t begin_ns_ = 0;
  Zone zone_;
  bool on_;
};

/// What is known of the process for those who read its spans: "model.layers" = "16". The last value stays.
void set_fact(const std::string& name, const std::string& value);
void set_fact(const std::string& name, double value);
/// The fact "thread.N" about the calling thread, N its number in spans: "node 2". Nothing while nobody records.
void name_thread(const std::string& name);
struct Fact {
  std::string name, value;
};
std::vector<Fact> facts();  // by name

/// Takes spans out of the rings, each once, in the order in which each thread wrote them. One reader at a time.
struct Drained {
  std::vector<Span> spans;
  std::uint64_t lost = 0;  // overwritten before they were read
};
/// Spans written during the call may be missing, never torn; they come next time.
Drained drain();

/// Spans that a thread's ring holds before the oldest is overwritten.
#ifdef BUTTERFLY_TINY
inline constexpr std::size_t kRingSpans = 8;
#else
inline constexpr std::size_t kRingSpans = 16384;
#endif

/// Held by who calls fork(), over it: a recorder's thread could have a lock that nobody in the child would give back.
class ForkLock {
 public:
  ForkLock();
  ~ForkLock();
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;

  /// In the child, which is a process of its own: its parent's spans, counts and memory are forgotten; facts stay, but
  /// for the names of threads.
  void forget_parent();
};

/// For tests, while no other thread records: no spans, no counts, no facts, recording off.
void reset();

}  // namespace butterfly::trace
