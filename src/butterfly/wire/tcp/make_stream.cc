#include "butterfly/wire/tcp/make_stream.h"

#include <atomic>
#include <cerrno>

#include "butterfly/wire/enrolment/credentials.h"
#include "butterfly/wire/enrolment/tls_stream.h"

namespace butterfly {
namespace {

class PlainStream final : public ByteStream {
 public:
  using ByteStream::ByteStream;
  IoResult handshake() override { return {}; }
  IoResult receive(std::span<const MutableByteSpan> buffers) override { return receive_some(fd(), buffers); }
  IoResult send(std::span<const ByteSpan> buffers) override {
    const IoResult result = send_some(fd(), buffers);
    if (result.state == IoResult::State::kMoved) writes_.fetch_add(1, std::memory_order_relaxed);
    return result;
  }
  std::string failure(const IoResult& result) const override { return system_message(result.error); }
  bool damaged(const IoResult& result) const override { return result.error == ECONNRESET; }
  std::optional<NodeIdentity> peer() const override { return std::nullopt; }
  StreamCopies copies() const override { return {.writes = writes_}; }

 private:
  std::atomic<std::uint64_t> writes_{0};
};

}  // namespace

Result<std::unique_ptr<ByteStream>> make_stream(Descriptor fd, const NodeAccess& access, StreamSide side) {
  if (!access.credentials) return std::make_unique<PlainStream>(std::move(fd));
  return make_tls_stream(std::move(fd), access.credentials->context(side), side);
}

}  // namespace butterfly
