#include "butterfly/wire/channel/frame.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/base/units.h"

namespace butterfly {
namespace {

constexpr std::uint32_t kFrameMagic = 0x4d524642;  // "BFRM"
constexpr std::size_t kChecksumOffset = 36;
constexpr std::size_t kHeardOffset = 10;
constexpr std::array<char, 8> kHelloMagic{'B', 'F', 'L', 'Y', 'w', 'i', 'r', 'e'};
constexpr std::array<char, 8> kReplyMagic{'B', 'F', 'L', 'Y', 'h', 'e', 'r', 'e'};

template <typename T>
void store(std::span<std::byte> bytes, std::size_t offset, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes[offset + i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
  }
}

template <typename T>
T load(ByteSpan bytes, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= std::to_integer<std::uint64_t>(bytes[offset + i]) << (8 * i);
  }
  return static_cast<T>(value);
}

/// At most one byte of the magic is another.
bool resembles(ByteSpan bytes, const std::array<char, 8>& magic) {
  std::size_t equal = 0;
  for (std::size_t i = 0; i < magic.size(); ++i) equal += bytes[i] == static_cast<std::byte>(magic[i]) ? 1 : 0;
  return equal + 1 >= magic.size();
}

/// Over the hello, and over what comes before the checksum in its answer.
std::uint32_t reply_checksum(ByteSpan hello, ByteSpan reply) {
  return crc32c(reply.first(kHeardOffset), crc32c(hello));
}

// Flags: the codec in bits 0 to 3, the binary logarithm of the element's bytes in bits 4 to 7.
std::uint16_t encode_packing(const Packing& packing) {
  if (packing.codec == Codec::kNone) return 0;
  const int logarithm = packing.element_bytes == 4 ? 2 : packing.element_bytes - 1;
  return static_cast<std::uint16_t>(static_cast<int>(packing.codec) | logarithm << 4);
}

Result<Packing> decode_packing(std::uint16_t flags) {
  const int codec = flags & 0xf;
  const int logarithm = flags >> 4;
  constexpr int kLastCodec = static_cast<int>(Codec::kZstd);
  if (codec > kLastCodec || logarithm > 2 || (codec == 0 && flags != 0)) {
    return make_error(ErrorCode::kProtocol,
                      "a frame has flags {:#06x}, this version knows codecs 0 to {} of elements of 1, 2 and 4 bytes",
                      flags, kLastCodec);
  }
  return Packing{.codec = static_cast<Codec>(codec), .element_bytes = 1 << logarithm};
}

}  // namespace

std::uint32_t body_checksum(ByteSpan meta, ByteSpan payload) {
  return crc32c(payload, crc32c(meta));
}

FrameHeaderBytes encode_frame_header(const FrameHeader& header) {
  FrameHeaderBytes bytes{};
  store(bytes, 0, kFrameMagic);
  store(bytes, 4, header.type);
  store(bytes, 6, encode_packing(header.packing));
  store(bytes, 8, header.epoch.value);
  store(bytes, 12, header.meta_bytes);
  store(bytes, 16, header.tag);
  store(bytes, 24, header.payload_bytes);
  store(bytes, 32, header.body_checksum);
  store(bytes, kChecksumOffset, crc32c(ByteSpan(bytes).first(kChecksumOffset)));
  return bytes;
}

Result<FrameHeader> decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                        const ChannelLimits& limits) {
  if (const auto magic = load<std::uint32_t>(bytes, 0); magic != kFrameMagic) {
    return make_error(ErrorCode::kProtocol, "a frame begins with {:#010x}, expected {:#010x}", magic, kFrameMagic);
  }
  const auto announced = load<std::uint32_t>(bytes, kChecksumOffset);
  if (const auto actual = crc32c(bytes.first(kChecksumOffset)); actual != announced) {
    return make_error(ErrorCode::kProtocol, "a frame header says its checksum is {:#010x}, it is {:#010x}", announced,
                      actual);
  }
  BF_ASSIGN_OR_RETURN(const Packing packing, decode_packing(load<std::uint16_t>(bytes, 6)));
  FrameHeader header{.type = load<std::uint16_t>(bytes, 4),
                     .epoch = Epoch(load<std::uint32_t>(bytes, 8)),
                     .tag = load<std::uint64_t>(bytes, 16),
                     .meta_bytes = load<std::uint32_t>(bytes, 12),
                     .payload_bytes = load<std::uint64_t>(bytes, 24),
                     .body_checksum = load<std::uint32_t>(bytes, 32),
                     .packing = packing};
  if (header.meta_bytes > limits.meta_bytes_max) {
    return make_error(ErrorCode::kProtocol, "a frame announces {} of meta data, the limit is {}",
                      format_bytes(header.meta_bytes), format_bytes(limits.meta_bytes_max));
  }
  if (header.payload_bytes > limits.payload_bytes_max) {
    return make_error(ErrorCode::kProtocol, "a frame announces a payload of {}, the limit is {}",
                      format_bytes(header.payload_bytes), format_bytes(limits.payload_bytes_max));
  }
  return header;
}

std::array<MutableByteSpan, 2> FrameReader::wanted() {
  if (header_filled_ < kFrameHeaderBytes) return {MutableByteSpan(header_).subspan(header_filled_), MutableByteSpan()};
  return {MutableByteSpan(message_.meta).subspan(meta_filled_), message_.payload.bytes.subspan(payload_filled_)};
}

Status FrameReader::begin_body(const PayloadAllocator& allocator) {
  BF_ASSIGN_OR_RETURN(decoded_, decode_frame_header(header_, limits_));
  if (packed() && packed_ == PackedPayloads::kRefused) {
    return make_error(ErrorCode::kProtocol, "a frame with a payload packed by {}, this connection takes none",
                      to_string(decoded_.packing.codec));
  }
  message_ = {.type = decoded_.type, .epoch = decoded_.epoch, .tag = decoded_.tag, .meta = {}, .payload = {}};
  message_.meta.resize(decoded_.meta_bytes);
  meta_filled_ = payload_filled_ = 0;
  const std::uint64_t bytes = decoded_.payload_bytes;
  if (packed()) {
    if (bytes <= kPackedHeadBytes) {
      return make_error(ErrorCode::kProtocol, "a packed payload has {} bytes, its size alone takes {}", bytes,
                        kPackedHeadBytes);
    }
    message_.payload.bytes = packed_head_;
    in_packed_head_ = true;
    return {};
  }
  if (bytes == 0) return {};
  BF_ASSIGN_OR_RETURN(message_.payload, allocator ? allocator(bytes) : allocate_payload(bytes));
  BF_CHECK(message_.payload.bytes.size() == bytes, "the allocator gave a buffer of another size");
  return {};
}

/// The size of the payload is here: the receiver says whether it wants that number of bytes before any of them is read.
Status FrameReader::begin_packed(const PayloadAllocator& allocator) {
  in_packed_head_ = false;
  payload_filled_ = 0;
  message_.payload = {};
  const std::uint64_t rest = decoded_.payload_bytes - kPackedHeadBytes;
  BF_ASSIGN_OR_RETURN(const std::uint64_t bytes, unpacked_size(packed_head_, rest, limits_.payload_bytes_max));
  BF_ASSIGN_OR_RETURN(unpacked_, allocator ? allocator(bytes) : allocate_payload(bytes));
  BF_CHECK(unpacked_.bytes.size() == bytes, "the allocator gave a buffer of another size");
  BF_ASSIGN_OR_RETURN(message_.payload, allocate_payload(rest));
  return {};
}

Result<std::optional<Message>> FrameReader::advance(std::size_t count, const PayloadAllocator& allocator) {
  auto message = go_on(count, allocator);
  if (!message) {
    message_ = {};
    unpacked_ = {};
  }
  return message;
}

Result<std::optional<Message>> FrameReader::go_on(std::size_t count, const PayloadAllocator& allocator) {
  if (header_filled_ < kFrameHeaderBytes) {
    header_filled_ += count;
    if (header_filled_ < kFrameHeaderBytes) return std::nullopt;
    BF_TRY(begin_body(allocator));
  } else {
    const std::size_t to_meta = std::min(count, message_.meta.size() - meta_filled_);
    meta_filled_ += to_meta;
    payload_filled_ += count - to_meta;
  }
  if (meta_filled_ < message_.meta.size() || payload_filled_ < message_.payload.bytes.size()) return std::nullopt;
  if (in_packed_head_) {
    BF_TRY(begin_packed(allocator));
    return std::nullopt;  // at least one byte is to come
  }
  return end_body();
}

Result<std::optional<Message>> FrameReader::end_body() {
  const ByteSpan head = packed() ? ByteSpan(packed_head_) : ByteSpan();
  const std::uint32_t actual = crc32c(message_.payload.bytes, crc32c(head, crc32c(message_.meta)));
  if (actual != decoded_.body_checksum) {
    return make_error(ErrorCode::kProtocol, "a message of {} arrived with checksum {:#010x}, its header says {:#010x}",
                      format_bytes(decoded_.meta_bytes + decoded_.payload_bytes), actual, decoded_.body_checksum);
  }
  bytes_saved_ = 0;
  if (packed()) {
    BF_TRY(codec_.unpack_into(message_.payload.bytes, decoded_.packing, unpacked_.bytes));
    bytes_saved_ = unpacked_.bytes.size() - decoded_.payload_bytes;
    message_.payload = std::exchange(unpacked_, {});
  }
  header_filled_ = 0;
  return std::optional<Message>(std::exchange(message_, {}));
}

SessionId make_session_id() {
  SessionId id{};
  const auto got = getrandom(id.data(), id.size(), 0);
  BF_CHECK(got == static_cast<ssize_t>(id.size()), "the operating system gives no random bytes");
  return id;
}

HelloBytes encode_hello(const Introduction& introduction, std::uint16_t version) {
  BF_CHECK(introduction.label.size() <= kLabelBytesMax);
  HelloBytes bytes{};
  std::memcpy(bytes.data(), kHelloMagic.data(), kHelloMagic.size());
  store(bytes, 8, version);
  store(bytes, 10, static_cast<std::uint16_t>(kHelloBytes));
  store(bytes, 12, static_cast<std::uint8_t>(introduction.role));
  store(bytes, 13, static_cast<std::uint8_t>(introduction.label.size()));
  std::ranges::copy(introduction.session, bytes.begin() + 16);
  std::ranges::copy(as_bytes(introduction.label), bytes.begin() + 32);
  return bytes;
}

Result<std::uint16_t> decode_hello_version(std::span<const std::byte, kHelloPrefixBytes> bytes) {
  if (std::memcmp(bytes.data(), kHelloMagic.data(), kHelloMagic.size()) != 0) {
    return make_error(ErrorCode::kProtocol, "the connection does not begin with a hello of this protocol");
  }
  return load<std::uint16_t>(bytes, 8);
}

Result<Introduction> decode_hello(std::span<const std::byte, kHelloBytes> bytes) {
  BF_ASSIGN_OR_RETURN(const std::uint16_t version, decode_hello_version(bytes.first<kHelloPrefixBytes>()));
  if (version != kProtocolVersion) {
    return make_error(ErrorCode::kProtocol, "a hello of protocol {}, this program speaks {}", version,
                      kProtocolVersion);
  }
  if (const auto size = load<std::uint16_t>(bytes, 10); size != kHelloBytes) {
    return make_error(ErrorCode::kProtocol, "a hello says it has {} bytes, expected {}", size, kHelloBytes);
  }
  const auto role = load<std::uint8_t>(bytes, 12);
  constexpr auto kLastRole = static_cast<std::uint8_t>(ConnectionRole::kProbe);
  if (role < 1 || role > kLastRole) {
    return make_error(ErrorCode::kProtocol, "a hello asks for role {}, known are 1 to {}", role, kLastRole);
  }
  const auto label_bytes = load<std::uint8_t>(bytes, 13);
  if (label_bytes > kLabelBytesMax) {
    return make_error(ErrorCode::kProtocol, "a hello has a label of {} bytes, the limit is {}", label_bytes,
                      kLabelBytesMax);
  }
  Introduction introduction{.role = static_cast<ConnectionRole>(role), .session = {}, .label = {}};
  std::copy_n(bytes.begin() + 16, introduction.session.size(), introduction.session.begin());
  introduction.label = as_text(ByteSpan(bytes).subspan(32, label_bytes));
  return introduction;
}

bool resembles_hello(std::span<const std::byte, kHelloPrefixBytes> bytes) {
  return resembles(bytes, kHelloMagic);
}

HelloReplyBytes encode_hello_reply(std::uint16_t version, ByteSpan heard) {
  HelloReplyBytes bytes{};
  std::memcpy(bytes.data(), kReplyMagic.data(), kReplyMagic.size());
  store(bytes, 8, version);
  if (!heard.empty()) store(bytes, kHeardOffset, reply_checksum(heard, bytes));
  return bytes;
}

bool was_damaged(const HelloBytes& said, const HelloReplyBytes& answer) {
  const auto checksum = load<std::uint32_t>(answer, kHeardOffset);
  return resembles(answer, kReplyMagic) && checksum != 0 && checksum != reply_checksum(said, answer);
}

Result<std::uint16_t> decode_hello_reply(std::span<const std::byte, kHelloReplyBytes> bytes) {
  if (std::memcmp(bytes.data(), kReplyMagic.data(), kReplyMagic.size()) != 0) {
    return make_error(ErrorCode::kProtocol, "the answer to the hello is not one of this protocol");
  }
  return load<std::uint16_t>(bytes, 8);
}

}  // namespace butterfly
