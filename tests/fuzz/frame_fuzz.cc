// Frames and hellos from a hostile peer: whatever arrives, in pieces of any size, is refused or becomes messages
// within the limits, a header that is accepted is the one that would be written, and what was packed unpacks.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "butterfly/wire/channel/frame.h"

namespace {

using namespace butterfly;

constexpr ChannelLimits kLimits{.meta_bytes_max = 4096, .payload_bytes_max = 65'536};

void require(bool condition) {
  if (!condition) std::abort();
}

void read_stream(ByteSpan bytes, std::size_t piece) {
  FrameReader reader(kLimits);
  while (!bytes.empty()) {
    std::size_t moved = 0;
    for (const MutableByteSpan buffer : reader.wanted()) {
      const std::size_t count = std::min({buffer.size(), bytes.size(), piece - moved});
      if (count > 0) std::memcpy(buffer.data(), bytes.data(), count);
      bytes = bytes.subspan(count);
      moved += count;
    }
    require(moved > 0);
    const auto message = reader.advance(moved, {});
    if (!message) return;
    if (!*message) continue;
    require((*message)->meta.size() <= kLimits.meta_bytes_max);
    require((*message)->payload.bytes.size() <= kLimits.payload_bytes_max);
  }
}

/// The checksums guard from accidents, not from a peer: let the fuzzer past them.
void read_with_right_checksum(ByteSpan bytes, std::size_t piece) {
  if (bytes.size() < kFrameHeaderBytes) return;
  std::vector<std::byte> fixed(bytes.begin(), bytes.end());
  // The checksum of the body as it would be if the announced sizes were honest.
  std::uint32_t meta_bytes = 0;
  std::uint64_t payload_bytes = 0;
  std::memcpy(&meta_bytes, fixed.data() + 12, sizeof(meta_bytes));
  std::memcpy(&payload_bytes, fixed.data() + 24, sizeof(payload_bytes));
  const ByteSpan body = ByteSpan(fixed).subspan(kFrameHeaderBytes);
  const std::uint64_t body_bytes = meta_bytes + std::min<std::uint64_t>(payload_bytes, body.size());
  std::uint32_t checksum = crc32c(body.first(std::min<std::uint64_t>(body_bytes, body.size())));
  std::memcpy(fixed.data() + 32, &checksum, sizeof(checksum));
  checksum = crc32c(ByteSpan(fixed).first(kFrameHeaderBytes - 4));
  std::memcpy(fixed.data() + kFrameHeaderBytes - 4, &checksum, sizeof(checksum));
  const auto header = decode_frame_header(std::span(fixed).first<kFrameHeaderBytes>(), kLimits);
  if (header) require(std::ranges::equal(encode_frame_header(*header), ByteSpan(fixed).first(kFrameHeaderBytes)));
  read_stream(fixed, piece);
}

/// A packed payload of any bytes, and any bytes packed and unpacked.
void pack_and_unpack(ByteSpan bytes) {
  static PayloadCodec codec;
  for (const Codec kind : kCodecs) {
    for (const int element_bytes : {1, 2, 4}) {
      const Packing packing{kind, element_bytes};
      const auto unpacked = codec.unpack(bytes, packing, {}, kLimits.payload_bytes_max);
      if (unpacked) require(unpacked->bytes.size() <= kLimits.payload_bytes_max);
      const auto packed = codec.pack(bytes, packing);
      if (!packed) continue;
      const auto again = codec.unpack(packed->bytes, packing, {}, bytes.size());
      require(again && std::ranges::equal(again->bytes, bytes));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const std::size_t piece = data[0] == 0 ? std::size_t{1} << 20 : data[0];
  read_stream(bytes, piece);
  read_with_right_checksum(bytes, piece);
  pack_and_unpack(bytes);
  if (bytes.size() >= kHelloBytes) {
    const auto hello = decode_hello(bytes.first<kHelloBytes>());
    if (hello) require(hello->label.size() <= kLabelBytesMax);
  }
  if (bytes.size() >= kHelloReplyBytes) static_cast<void>(decode_hello_reply(bytes.first<kHelloReplyBytes>()));
  return 0;
}
