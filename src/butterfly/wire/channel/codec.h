// Lossless compression of payloads on their way: the bytes of equal significance of all elements put side by side, then
// LZ4 or zstd. Packed bytes come from a peer: what they claim is checked before anything is allocated.
// A PayloadCodec keeps scratch memory and belongs to one thread at a time.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "butterfly/wire/channel/channel.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace butterfly {

inline constexpr std::array kCodecs{Codec::kLz4, Codec::kZstd};

/// "none", "lz4", "zstd".
std::string_view to_string(Codec codec);

/// "off", "auto", "lz4", "zstd", and back; nothing for other names.
std::string_view to_string(Compression mode);
std::optional<Compression> parse_compression(std::string_view name);

/// How a payload was packed.
struct Packing {
  Codec codec = Codec::kNone;
  int element_bytes = 1;  // 1, 2 or 4
};

/// No packed payload says that it becomes larger by more than this factor: a peer pays for the memory that it asks for.
inline constexpr std::uint64_t kExpansionMax = 32;

/// Before the compressed bytes: the size of the payload.
inline constexpr std::size_t kPackedHeadBytes = 8;

class PayloadCodec {
 public:
  PayloadCodec() = default;

  /// `payload` packed: its size in kPackedHeadBytes, then what the codec made of it. Nothing where that would not be
  /// smaller, would be too small (kExpansionMax), or memory is short: then it travels as it is.
  std::optional<Payload> pack(ByteSpan payload, const Packing& packing);

  /// The payload again, in memory of `allocator` (null: the heap). Errors: those of unpacked_size() and unpack_into();
  /// whatever the allocator says.
  Result<Payload> unpack(ByteSpan packed, const Packing& packing, const PayloadAllocator& allocator,
                         std::uint64_t bytes_max);

  /// What follows a packed payload's head, into as many bytes as the head says. Errors: kProtocol when it is not what
  /// the codec wrote; kNoMemory.
  Status unpack_into(ByteSpan compressed, const Packing& packing, MutableByteSpan payload);

 private:
  bool decompress(Codec codec, ByteSpan in, MutableByteSpan out);
  MutableByteSpan scratch(std::size_t bytes);

  std::shared_ptr<ZSTD_CCtx_s> compressing_;  // shared_ptr for its deleter: the type is known in codec.cc alone
  std::shared_ptr<ZSTD_DCtx_s> decompressing_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
};

/// The size that the head of a packed payload says, of which `compressed_bytes` follow. Errors: kProtocol where it is
/// over `bytes_max`, more than kExpansionMax allows, or not more than what travels.
Result<std::uint64_t> unpacked_size(std::span<const std::byte, kPackedHeadBytes> head, std::uint64_t compressed_bytes,
                                    std::uint64_t bytes_max);

/// out[plane * n + i] = in[i * element_bytes + plane] for the n whole elements, then the rest as it is. Sizes are
/// equal.
void shuffle_bytes(ByteSpan in, int element_bytes, MutableByteSpan out);
void unshuffle_bytes(ByteSpan in, int element_bytes, MutableByteSpan out);

}  // namespace butterfly
