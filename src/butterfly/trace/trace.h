// The write side of measurement: typed zones, counters, spans. Always compiled in; no allocation after a thread's
// first event; a zone costs two clock reads. Thread-safe: each thread writes its own ring, readers take snapshots.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace butterfly::trace {

/// What a span of time was spent on. Keep sorted by module.
enum class Zone : std::uint8_t {
  kKernelAttention,
  kKernelElementwise,
  kKernelMatmul,
  kModelLoad,
  kModelPack,
  kStageCompute,
  kStageStep,
  kStageWait,
  kTextDecode,
  kTextEncode,
  kWireReceive,
  kWireSend,
  kInferSample,
  kInferDecode,
  kInferPrefill,
  kCount
};

/// Monotonic sums.
enum class Counter : std::uint8_t {
  kKernelFlops,
  kKernelWeightBytes,
  kTensorPoolAllocations,
  kTensorPoolHits,
  kWireBytesReceived,
  kWireBytesSent,
  kWireMessagesReceived,
  kWireMessagesSent,
  kWireStaleMessages,
  kWireWaitsBlocked,
  kWireWaitsSpun,
  kInferTokensDecoded,
  kInferTokensPrefilled,
  kCount
};

std::string_view to_string(Zone zone);        // "kernel.matmul"
std::string_view to_string(Counter counter);  // "wire.bytes_sent"

/// Nanoseconds on the steady clock.
inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

void add(Counter counter, std::uint64_t amount);
std::uint64_t read(Counter counter);

/// Writes one span to the calling thread's ring; the oldest is overwritten when full.
void record(Zone zone, std::uint64_t begin_ns, std::uint64_t end_ns, std::uint32_t detail);

/// Measures from construction to destruction. `detail` is the zone's own number (layer, rows).
class Scope {
 public:
  explicit Scope(Zone zone, std::uint32_t detail = 0) : begin_ns_(now_ns()), detail_(detail), zone_(zone) {}
  ~Scope() { record(zone_, begin_ns_, now_ns(), detail_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::uint64_t begin_ns_;
  std::uint32_t detail_;
  Zone zone_;
};

struct Span {
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint32_t detail = 0;
  std::uint32_t thread = 0;  // small number in order of first event
  Zone zone = Zone::kCount;
};

struct ZoneTotal {
  std::uint64_t count = 0;
  std::uint64_t total_ns = 0;
};

/// Exact since the start of the process (or reset()), whatever the rings have overwritten.
std::array<ZoneTotal, static_cast<std::size_t>(Zone::kCount)> totals();

/// The spans still in the rings, by begin time. Spans written during the call may be missing, never torn.
std::vector<Span> snapshot();

/// Spans that a thread's ring holds before the oldest is overwritten.
#ifdef BUTTERFLY_TINY
inline constexpr std::size_t kRingSpans = 8;
#else
inline constexpr std::size_t kRingSpans = 16384;
#endif

/// For tests and benchmarks, while no other thread records.
void reset();

}  // namespace butterfly::trace
