// The engine behind connect_tcp() and Listener: Channel over a connected socket.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "butterfly/wire/channel/byte_stream.h"
#include "butterfly/wire/channel/stats.h"
#include "butterfly/wire/channel/tcp.h"
#include "butterfly/wire/tcp/packing_sender.h"

namespace butterfly {

class TcpChannel final : public Channel {
 public:
  TcpChannel(std::unique_ptr<ByteStream> stream, std::string peer, const TcpOptions& options);
  ~TcpChannel() override;

  Status send(Message message, Deadline deadline) override;
  Status send_borrowed(Message message) override;
  Result<Message> receive(const PayloadAllocator& allocator, Deadline deadline) override;
  void compress(const CompressionOptions& options) override { packing_.emplace(options); }
  void close() override;
  bool broken() const override;
  ChannelStats stats() const override {
    ChannelStats stats = stats_.read();
    stats.writes = stream_->copies().writes;
    return stats;
  }
  std::chrono::milliseconds unacknowledged() override;
  std::string peer() const override { return peer_; }

  /// How often this channel copied bytes in user space; `butterfly bench wire` shows it.
  StreamCopies copies() const;

 private:
  /// A message on its way; it keeps the payload alive until the kernel has the last byte.
  struct Outgoing {
    FrameHeaderBytes header;
    Message message;
    std::size_t sent = 0;
    std::size_t bytes() const { return header.size() + message.meta.size() + message.payload.bytes.size(); }
  };
  /// What write() waits for; 0: the message is on its way.
  using PollEvent = short;

  Outgoing frame(Message message);
  Result<PollEvent> write(Outgoing& outgoing);
  Status keep_payload(Outgoing& outgoing);
  Status enqueue(Outgoing outgoing, std::unique_lock<std::mutex>& lock);
  void run_sender();
  Status wait_for(short event);
  tl::unexpected<Error> peer_gone(const IoResult& result) const;
  tl::unexpected<Error> closed_error() const;

  const std::unique_ptr<ByteStream> stream_;
  const std::string peer_;
  const TcpOptions options_;
  StatsCounters stats_;
  std::atomic<bool> closed_{false};
  std::atomic<std::uint64_t> kept_bytes_{0};

  std::mutex ack_mutex_;
  AckWatch ack_watch_;

  FrameReader reader_;                    // the receiving thread's
  std::optional<PackingSender> packing_;  // the sending caller's

  std::mutex mutex_;  // the queue and what follows
  std::condition_variable changed_;
  std::deque<Outgoing> queue_;         // not empty: the front belongs to the sender thread
  std::optional<Error> send_failure_;  // a frame was cut short: nothing more can be sent
  std::thread sender_;
};

}  // namespace butterfly
