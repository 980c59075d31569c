// What the engines share: the counters behind ChannelStats, mirrored into trace, and the sender's check of limits.
// Thread-safe: relaxed atomics.
#pragma once

#include <atomic>

#include "butterfly/base/units.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/channel.h"

namespace butterfly {

enum class Wait { kSpun, kBlocked };

class StatsCounters {
 public:
  void sent(std::uint64_t bytes) {
    messages_sent_.fetch_add(1, std::memory_order_relaxed);
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    trace::add(trace::Counter::kWireMessagesSent, 1);
    trace::add(trace::Counter::kWireBytesSent, bytes);
  }
  void packed(Codec codec, std::uint64_t bytes_saved) {
    (codec == Codec::kLz4 ? lz4_messages_ : zstd_messages_).fetch_add(1, std::memory_order_relaxed);
    bytes_saved_.fetch_add(bytes_saved, std::memory_order_relaxed);
  }
  void received(std::uint64_t bytes) {
    messages_received_.fetch_add(1, std::memory_order_relaxed);
    bytes_received_.fetch_add(bytes, std::memory_order_relaxed);
    trace::add(trace::Counter::kWireMessagesReceived, 1);
    trace::add(trace::Counter::kWireBytesReceived, bytes);
  }
  void waited(Wait how) { (how == Wait::kSpun ? waits_spun_ : waits_blocked_).fetch_add(1, std::memory_order_relaxed); }
  ChannelStats read() const {
    return {.messages_sent = messages_sent_.load(std::memory_order_relaxed),
            .messages_received = messages_received_.load(std::memory_order_relaxed),
            .bytes_sent = bytes_sent_.load(std::memory_order_relaxed),
            .bytes_received = bytes_received_.load(std::memory_order_relaxed),
            .writes = 0,
            .bytes_saved = bytes_saved_.load(std::memory_order_relaxed),
            .lz4_messages = lz4_messages_.load(std::memory_order_relaxed),
            .zstd_messages = zstd_messages_.load(std::memory_order_relaxed),
            .waits_spun = waits_spun_.load(std::memory_order_relaxed),
            .waits_blocked = waits_blocked_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::uint64_t> messages_sent_{0}, messages_received_{0}, bytes_sent_{0}, bytes_received_{0};
  std::atomic<std::uint64_t> bytes_saved_{0}, lz4_messages_{0}, zstd_messages_{0};
  std::atomic<std::uint64_t> waits_spun_{0}, waits_blocked_{0};
};

/// The sender keeps the limits too, so that a mistake is found where it was made.
inline Status check_limits(const Message& message, const ChannelLimits& limits) {
  if (message.meta.size() > limits.meta_bytes_max) {
    return make_error(ErrorCode::kInvalidArgument, "a message with {} of meta data, the channel allows {}",
                      format_bytes(message.meta.size()), format_bytes(limits.meta_bytes_max));
  }
  if (message.payload.bytes.size() > limits.payload_bytes_max) {
    return make_error(ErrorCode::kInvalidArgument, "a message with a payload of {}, the channel allows {}",
                      format_bytes(message.payload.bytes.size()), format_bytes(limits.payload_bytes_max));
  }
  return {};
}

}  // namespace butterfly
