// Whether compressing the next payload of a connection saves time: from what the codecs did to samples of the actual
// payloads and from how fast the link takes bytes. A calculation: it measures nothing itself. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>

#include "butterfly/wire/channel/channel.h"

namespace butterfly {

/// What one codec did to a sample.
struct CodecCost {
  double seconds_per_byte = 0;  // of the payload, to compress and to decompress
  double saved = 0;             // the share of the bytes that need not travel, 0 to 1
};

class BreakEven {
 public:
  static constexpr std::uint64_t kPayloadBytesMin = 8192;  // smaller ones pay for the call, not for the bytes
  static constexpr std::uint64_t kFirstProbes = 3;         // payloads in a row, after the first has shown the link
  static constexpr std::uint64_t kPauseMin = 64, kPauseMax = 4096;  // payloads between later probes
  static constexpr double kMargin = 1.25;  // gain over cost from which compression begins; it ends below 1

  explicit BreakEven(Compression mode) : mode_(mode) {}

  /// Counts a payload; true where the codecs shall be tried on it and observe() be told. Fewer and fewer while nothing
  /// pays: n payloads are probed about 10 + n / 4096 times.
  bool probe_is_due(std::uint64_t payload_bytes);

  /// What a probe found, with the link's bytes per second as they were measured, 0 where that is not known.
  void observe(const std::array<CodecCost, 2>& costs_of_codecs, double link_bytes_per_s);  // in kCodecs' order

  /// For a payload of this many bytes: the codec that was asked for, or the one that saves most time.
  Codec choose(std::uint64_t payload_bytes) const {
    return payload_bytes < kPayloadBytesMin ? Codec::kNone : fixed_or_best();
  }

 private:
  Codec fixed_or_best() const;

  Compression mode_;
  Codec best_ = Codec::kNone;
  std::array<CodecCost, 2> costs_{};  // moving averages
  double link_bytes_per_s_ = 0;       // likewise
  std::uint64_t payloads_ = 0;        // large ones
  std::uint64_t next_probe_ = 1;
  std::uint64_t probes_ = 0;
  std::uint64_t pause_ = kPauseMin;
};

}  // namespace butterfly
