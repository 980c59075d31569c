#include "butterfly/wire/channel/codec.h"

#include <lz4.h>
#include <zstd.h>

#include <cstring>
#include <new>

#include "butterfly/base/check.h"
#include "butterfly/base/units.h"

namespace butterfly {
namespace {

constexpr int kZstdLevel = 1;  // higher ones cost more time than links of a cluster give back

template <std::size_t kElement>
void shuffle_elements(const std::byte* in, std::size_t count, std::byte* out) {
  for (std::size_t plane = 0; plane < kElement; ++plane) {
    for (std::size_t i = 0; i < count; ++i) out[plane * count + i] = in[i * kElement + plane];
  }
}

template <std::size_t kElement>
void unshuffle_elements(const std::byte* in, std::size_t count, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t plane = 0; plane < kElement; ++plane) out[i * kElement + plane] = in[plane * count + i];
  }
}

void copy_bytes(ByteSpan in, MutableByteSpan out) {
  if (!in.empty()) std::memcpy(out.data(), in.data(), in.size());
}

std::uint64_t read_size(ByteSpan head) {
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < kPackedHeadBytes; ++i) size |= std::to_integer<std::uint64_t>(head[i]) << (8 * i);
  return size;
}

std::size_t compress(Codec codec, ByteSpan in, MutableByteSpan out, ZSTD_CCtx_s* context) {
  if (codec == Codec::kLz4) {
    if (in.size() > LZ4_MAX_INPUT_SIZE) return 0;
    const int made = LZ4_compress_default(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()),
                                          static_cast<int>(in.size()), static_cast<int>(out.size()));
    return made > 0 ? static_cast<std::size_t>(made) : 0;
  }
  if (context == nullptr) return 0;
  const std::size_t made = ZSTD_compressCCtx(context, out.data(), out.size(), in.data(), in.size(), kZstdLevel);
  return ZSTD_isError(made) != 0 ? 0 : made;
}

}  // namespace

std::string_view to_string(Codec codec) {
  switch (codec) {
    case Codec::kNone:
      return "none";
    case Codec::kLz4:
      return "lz4";
    case Codec::kZstd:
      return "zstd";
  }
  return "unknown";
}

std::string_view to_string(Compression mode) {
  constexpr std::array<std::string_view, 4> kNames{"off", "auto", "lz4", "zstd"};
  return kNames[static_cast<std::size_t>(mode)];
}

std::optional<Compression> parse_compression(std::string_view name) {
  for (const Compression mode : {Compression::kOff, Compression::kAuto, Compression::kLz4, Compression::kZstd}) {
    if (name == to_string(mode)) return mode;
  }
  return std::nullopt;
}

void shuffle_bytes(ByteSpan in, int element_bytes, MutableByteSpan out) {
  const std::size_t count = in.size() / static_cast<std::size_t>(element_bytes);
  const std::size_t whole = count * static_cast<std::size_t>(element_bytes);
  if (element_bytes == 4) shuffle_elements<4>(in.data(), count, out.data());
  if (element_bytes == 2) shuffle_elements<2>(in.data(), count, out.data());
  if (element_bytes == 1) return copy_bytes(in, out);
  copy_bytes(in.subspan(whole), out.subspan(whole));
}

void unshuffle_bytes(ByteSpan in, int element_bytes, MutableByteSpan out) {
  const std::size_t count = in.size() / static_cast<std::size_t>(element_bytes);
  const std::size_t whole = count * static_cast<std::size_t>(element_bytes);
  if (element_bytes == 4) unshuffle_elements<4>(in.data(), count, out.data());
  if (element_bytes == 2) unshuffle_elements<2>(in.data(), count, out.data());
  if (element_bytes == 1) return copy_bytes(in, out);
  copy_bytes(in.subspan(whole), out.subspan(whole));
}

std::optional<Payload> PayloadCodec::pack(ByteSpan payload, const Packing& packing) {
  BF_CHECK(packing.codec != Codec::kNone);
  if (payload.size() <= kPackedHeadBytes + 1) return std::nullopt;
  if (packing.codec == Codec::kZstd && !compressing_) compressing_ = {ZSTD_createCCtx(), ZSTD_freeCCtx};
  ByteSpan in = payload;
  if (packing.element_bytes > 1) {
    const MutableByteSpan shuffled = scratch(payload.size());
    if (shuffled.empty()) return std::nullopt;
    shuffle_bytes(payload, packing.element_bytes, shuffled);
    in = shuffled;
  }
  // Room for less than the payload: a codec that needs more gives up early.
  auto packed = allocate_payload(payload.size() - 1);
  if (!packed) return std::nullopt;
  const std::size_t made = compress(packing.codec, in, packed->bytes.subspan(kPackedHeadBytes), compressing_.get());
  if (made == 0 || payload.size() / kExpansionMax >= made) return std::nullopt;
  for (std::size_t i = 0; i < kPackedHeadBytes; ++i) {
    packed->bytes[i] = static_cast<std::byte>(static_cast<std::uint64_t>(payload.size()) >> (8 * i) & 0xff);
  }
  packed->bytes = packed->bytes.first(kPackedHeadBytes + made);
  return std::move(*packed);
}

/// Memory that lives as long as the codec, unless it is large; its content is anything. Empty where there is none.
MutableByteSpan PayloadCodec::scratch(std::size_t bytes) {
  constexpr std::size_t kKeptBytesMax = std::size_t{16} << 20;
  if (bytes > scratch_bytes_ || scratch_bytes_ > kKeptBytesMax) {
    scratch_bytes_ = 0;
    scratch_.reset();
    scratch_.reset(new (std::nothrow) std::byte[bytes]);
    if (!scratch_) return {};
    scratch_bytes_ = bytes;
  }
  return {scratch_.get(), bytes};
}

bool PayloadCodec::decompress(Codec codec, ByteSpan in, MutableByteSpan out) {
  if (codec == Codec::kLz4) {
    if (in.size() > LZ4_MAX_INPUT_SIZE || out.size() > LZ4_MAX_INPUT_SIZE) return false;
    const int made = LZ4_decompress_safe(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()),
                                         static_cast<int>(in.size()), static_cast<int>(out.size()));
    return made >= 0 && static_cast<std::size_t>(made) == out.size();
  }
  if (!decompressing_) decompressing_ = {ZSTD_createDCtx(), ZSTD_freeDCtx};
  if (!decompressing_) return false;
  return ZSTD_decompressDCtx(decompressing_.get(), out.data(), out.size(), in.data(), in.size()) == out.size();
}

Result<std::uint64_t> unpacked_size(std::span<const std::byte, kPackedHeadBytes> head, std::uint64_t compressed_bytes,
                                    std::uint64_t bytes_max) {
  const std::uint64_t size = read_size(head);
  if (size > bytes_max) {
    return make_error(ErrorCode::kProtocol, "a packed payload announces {}, the limit is {}", format_bytes(size),
                      format_bytes(bytes_max));
  }
  if (size / kExpansionMax >= compressed_bytes) {
    return make_error(ErrorCode::kProtocol, "a packed payload of {} announces {}, more than {} times as much",
                      format_bytes(compressed_bytes), format_bytes(size), kExpansionMax);
  }
  if (size <= compressed_bytes + kPackedHeadBytes) {
    return make_error(ErrorCode::kProtocol, "a packed payload of {} announces {}, which is no more than that",
                      format_bytes(compressed_bytes), format_bytes(size));
  }
  return size;
}

Status PayloadCodec::unpack_into(ByteSpan compressed, const Packing& packing, MutableByteSpan payload) {
  const bool shuffled = packing.element_bytes > 1;
  const MutableByteSpan out = shuffled ? scratch(payload.size()) : payload;
  if (out.empty()) {
    return make_error(ErrorCode::kNoMemory, "{} to unpack a payload were not to be had", format_bytes(payload.size()));
  }
  if (!decompress(packing.codec, compressed, out)) {
    return make_error(ErrorCode::kProtocol, "a packed payload of {} does not unpack to {} by {}",
                      format_bytes(compressed.size()), format_bytes(payload.size()), to_string(packing.codec));
  }
  if (shuffled) unshuffle_bytes(out, packing.element_bytes, payload);
  return {};
}

Result<Payload> PayloadCodec::unpack(ByteSpan packed, const Packing& packing, const PayloadAllocator& allocator,
                                     std::uint64_t bytes_max) {
  if (packed.size() <= kPackedHeadBytes) {
    return make_error(ErrorCode::kProtocol, "a packed payload has {} bytes, its size alone takes {}", packed.size(),
                      kPackedHeadBytes);
  }
  const ByteSpan compressed = packed.subspan(kPackedHeadBytes);
  BF_ASSIGN_OR_RETURN(const std::uint64_t size,
                      unpacked_size(packed.first<kPackedHeadBytes>(), compressed.size(), bytes_max));
  BF_ASSIGN_OR_RETURN(Payload payload, allocator ? allocator(size) : allocate_payload(size));
  BF_CHECK(payload.bytes.size() == size, "the allocator gave a buffer of another size");
  BF_TRY(unpack_into(compressed, packing, payload.bytes));
  return payload;
}

}  // namespace butterfly
