// Frames: how a Message lies on a byte stream, and how a connection begins. docs/formats/wire.md has the layout.
// Everything read here comes from a peer and is checked before anything is allocated. Not thread-safe: one reader
// per stream.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "butterfly/base/hash/crc32c.h"
#include "butterfly/wire/channel/channel.h"
#include "butterfly/wire/channel/codec.h"

namespace butterfly {

inline constexpr std::uint16_t kProtocolVersion = 18;

inline constexpr std::size_t kFrameHeaderBytes = 40;
using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

struct FrameHeader {
  std::uint16_t type = 0;
  Epoch epoch{};
  std::uint64_t tag = 0;
  std::uint32_t meta_bytes = 0;
  std::uint64_t payload_bytes = 0;  // as they travel
  std::uint32_t body_checksum = 0;  // CRC-32C of meta and payload, as they travel
  Packing packing{};
};

FrameHeaderBytes encode_frame_header(const FrameHeader& header);

/// Errors: kProtocol for a wrong magic, flag or checksum, or a size over the limits.
Result<FrameHeader> decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                        const ChannelLimits& limits);

/// What belongs into FrameHeader::body_checksum.
std::uint32_t body_checksum(ByteSpan meta, ByteSpan payload);

/// Whether a connection takes packed payloads: only those that carry tensors do.
enum class PackedPayloads : std::uint8_t { kAccepted, kRefused };

/// Builds messages from a stream that arrives in pieces of any size, each piece read straight to where it stays.
class FrameReader {
 public:
  explicit FrameReader(const ChannelLimits& limits, PackedPayloads packed = PackedPayloads::kAccepted)
      : limits_(limits), packed_(packed) {}

  /// Where the next bytes of the stream belong, in this order; at least one is not empty.
  std::array<MutableByteSpan, 2> wanted();

  /// `count` bytes were written to wanted(). A message when it is complete, its payload unpacked. After an error the
  /// stream is lost, and so is what was read of the message. The allocator is asked as soon as the size of the payload,
  /// unpacked, is known. Errors: kProtocol as for the header, for a body with another checksum, or for a packed payload
  /// where there must be none; those of PayloadCodec::unpack(); whatever the allocator says.
  Result<std::optional<Message>> advance(std::size_t count, const PayloadAllocator& allocator);

  /// How many bytes of the last message did not travel, because its payload was packed.
  std::uint64_t bytes_saved() const { return bytes_saved_; }

  /// Whether the stream stands inside a message.
  bool in_message() const { return header_filled_ > 0; }

 private:
  Result<std::optional<Message>> go_on(std::size_t count, const PayloadAllocator& allocator);
  Status begin_body(const PayloadAllocator& allocator);
  Status begin_packed(const PayloadAllocator& allocator);
  Result<std::optional<Message>> end_body();
  bool packed() const { return decoded_.packing.codec != Codec::kNone; }

  ChannelLimits limits_;
  PackedPayloads packed_;
  FrameHeaderBytes header_{};
  std::size_t header_filled_ = 0;
  std::size_t meta_filled_ = 0;
  std::size_t payload_filled_ = 0;
  std::uint64_t bytes_saved_ = 0;
  FrameHeader decoded_;  // once header_ is complete
  PayloadCodec codec_;
  std::array<std::byte, kPackedHeadBytes> packed_head_{};
  bool in_packed_head_ = false;  // that is what the payload's bytes are now
  Payload unpacked_;             // where the payload goes that is being read packed
  Message message_;
};

/// What a connection is for. Bulk transfers never share a connection with control messages.
enum class ConnectionRole : std::uint8_t {
  kControl = 1,  // a coordinator's, to a worker that shall serve it
  kData = 2,     // tensors of a session
  kJoin = 3,     // a worker's, to a coordinator that shall use it
  kStatus = 4,   // anybody's question how a node is
  kProbe = 5,    // echoes messages, to measure a link
};

using SessionId = std::array<std::byte, 16>;

/// 128 random bits from the operating system.
SessionId make_session_id();

/// What a client says first: which session this connection belongs to, and what it carries.
struct Introduction {
  ConnectionRole role = ConnectionRole::kData;
  SessionId session{};
  std::string label{};  // "input.0@7", "weights@7"; at most kLabelBytesMax bytes
};

inline constexpr std::size_t kLabelBytesMax = 64;
inline constexpr std::size_t kHelloBytes = 96;
inline constexpr std::size_t kHelloPrefixBytes = 12;  // the same in every version of the protocol
inline constexpr std::size_t kHelloReplyBytes = 16;

using HelloBytes = std::array<std::byte, kHelloBytes>;
using HelloReplyBytes = std::array<std::byte, kHelloReplyBytes>;

HelloBytes encode_hello(const Introduction& introduction, std::uint16_t version = kProtocolVersion);

/// The version of a hello, from its first kHelloPrefixBytes. Errors: kProtocol when it is not a hello.
Result<std::uint16_t> decode_hello_version(std::span<const std::byte, kHelloPrefixBytes> bytes);

/// Errors: kProtocol for a hello of another version, or one that contradicts itself.
Result<Introduction> decode_hello(std::span<const std::byte, kHelloBytes> bytes);

/// Whether these bytes, which are no hello, were one before a byte of its magic was damaged on the way.
bool resembles_hello(std::span<const std::byte, kHelloPrefixBytes> bytes);

/// The server's answer carries the server's version; a client of another version reads it and leaves. `heard` is the
/// hello as it arrived, of which the answer has a checksum; empty where the server did not wait for all of it.
HelloReplyBytes encode_hello_reply(std::uint16_t version = kProtocolVersion, ByteSpan heard = {});
Result<std::uint16_t> decode_hello_reply(std::span<const std::byte, kHelloReplyBytes> bytes);

/// Whether the server answered, and hello or answer were damaged on their way. False where the answer has no checksum.
bool was_damaged(const HelloBytes& said, const HelloReplyBytes& answer);

}  // namespace butterfly
