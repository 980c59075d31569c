// What a channel does to its payloads before they travel: decides, tries codecs on samples, packs. Used by the sending
// thread alone.
#pragma once

#include "butterfly/wire/channel/codec.h"
#include "butterfly/wire/tcp/break_even.h"

namespace butterfly {

class PackingSender {
 public:
  explicit PackingSender(const CompressionOptions& options)
      : element_bytes_(options.element_bytes), break_even_(options.mode) {}

  /// How `payload` was packed, in place; Codec::kNone where it travels as it is. `fd`: the connection, which knows how
  /// fast it is.
  Packing pack(Payload& payload, int fd);

 private:
  static constexpr std::size_t kSampleBytes = 64 * 1024;

  void probe(ByteSpan payload, int fd);
  double link_bytes_per_s(int fd);

  const int element_bytes_;
  BreakEven break_even_;
  PayloadCodec codec_;
  std::uint64_t receiver_limited_us_ = 0;
};

}  // namespace butterfly
