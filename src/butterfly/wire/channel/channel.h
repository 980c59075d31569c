// A message channel to one peer: ordered, bounded, with deadlines. Two engines: inproc (threads of one process, the
// payload is handed over, never copied) and tcp. The wire moves bytes and never learns what they mean.
// One thread sends and one thread receives at a time; close() may come from any thread and wakes both.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"

namespace butterfly {

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline after_ms(std::int64_t ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

/// Bytes with shared ownership: the owner frees them when the last payload that points there is gone (a tensor in
/// flight is owned by its sender, the wire and its receiver at once).
struct Payload {
  std::shared_ptr<void> owner{};
  MutableByteSpan bytes{};
};

struct Message {
  std::uint16_t type = 0;  // meaning belongs to the user of the channel
  Epoch epoch{};
  std::uint64_t tag = 0;
  std::vector<std::byte> meta{};  // small: ids, positions, a serialised control message
  Payload payload{};              // large: a tensor; read into its final buffer
};

/// Limits on what a peer may announce; a larger frame ends the channel with kProtocol before anything is allocated.
struct ChannelLimits {
  std::uint32_t meta_bytes_max = 1u << 20;
  std::uint64_t payload_bytes_max = 1ull << 32;
};

/// Gives the final buffer for an incoming payload of this many bytes. An error ends the channel.
using PayloadAllocator = std::function<Result<Payload>(std::uint64_t bytes)>;

/// What payloads may be packed with on their way; the numbers travel.
enum class Codec : std::uint8_t { kNone = 0, kLz4 = 1, kZstd = 2 };

/// Whether payloads are packed, without loss: never, where it saves time as measured, or each of some size.
enum class Compression : std::uint8_t { kOff, kAuto, kLz4, kZstd };

struct CompressionOptions {
  Compression mode = Compression::kOff;
  int element_bytes = 4;  // of what payloads consist of: 1, 2 or 4
};

struct ChannelStats {
  std::uint64_t messages_sent = 0, messages_received = 0;
  std::uint64_t bytes_sent = 0,
                bytes_received = 0;  // headers, meta and payload; what the network carries without TCP/IP
  std::uint64_t writes = 0;          // calls that gave bytes to the operating system; 0 between threads
  std::uint64_t bytes_saved = 0;     // that did not travel because payloads were packed
  std::uint64_t lz4_messages = 0, zstd_messages = 0;  // of messages_sent
  std::uint64_t waits_spun = 0, waits_blocked = 0;    // how receive waits ended
};

class Channel {
 public:
  virtual ~Channel() = default;

  /// Returns once the message is handed over or on its way; the payload may still be read until the peer has it, so
  /// its bytes must not change afterwards. Errors: kUnavailable (closed), kTimeout, kInvalidArgument (over the limits).
  virtual Status send(Message message, Deadline deadline) = 0;

  /// The same for a payload whose bytes are the caller's again on return, who never waits: what the connection has no
  /// room for is copied and follows. Errors: kUnavailable, kInvalidArgument, kNoMemory.
  virtual Status send_borrowed(Message message) = 0;

  /// The next message. A null allocator means heap memory. Errors: kUnavailable (peer closed), kTimeout, kProtocol.
  virtual Result<Message> receive(const PayloadAllocator& allocator, Deadline deadline) = 0;

  /// From here on payloads are packed where `options` say so; receivers unpack whatever comes. Between sends, by their
  /// thread. Nothing between threads of one process, where payloads do not travel.
  virtual void compress(const CompressionOptions& /*options*/) {}

  /// Wakes and fails both sides. Idempotent, from any thread.
  virtual void close() = 0;

  virtual ChannelStats stats() const = 0;

  /// Whether either side has closed it, as far as can be told without reading. From any thread.
  virtual bool broken() const = 0;

  /// For how long the other side has not acknowledged what was sent, although it should have: its host or the way
  /// there is gone. 0 while nothing is under way, or the other side merely does not read. As far as earlier calls can
  /// tell: to be asked again and again. From any thread.
  virtual std::chrono::milliseconds unacknowledged() { return std::chrono::milliseconds(0); }

  /// "10.0.0.2:7000", "inproc".
  virtual std::string peer() const = 0;
};

using ChannelPtr = std::unique_ptr<Channel>;

/// The default allocator: 64-byte aligned heap memory.
Result<Payload> allocate_payload(std::uint64_t bytes);

/// A copy of a payload's bytes from `from` on, with room for those before: as large as the payload. Errors: kNoMemory.
Result<Payload> copy_payload(const Payload& payload, std::size_t from = 0);

}  // namespace butterfly
