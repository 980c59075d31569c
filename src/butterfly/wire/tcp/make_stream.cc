#include "butterfly/wire/tcp/make_stream.h"

#include <algorithm>
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

Status check_policy(const std::string& address, std::span<const SocketAddress> resolved, const NodeAccess& access) {
  if (access.credentials) return {};
  if (access.policy == AddressPolicy::kAnyAddress) return {};
  if (!std::ranges::all_of(resolved, [](const SocketAddress& one) { return is_loopback(one); })) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} is not a loopback address: without credentials nodes talk over loopback only (127.0.0.1 or "
                      "[::1]); `butterfly cluster init` and `enroll` make credentials",
                      address);
  }
  return {};
}

Result<std::unique_ptr<ByteStream>> make_stream(Descriptor fd, const NodeAccess& access, StreamSide side) {
  if (!access.credentials) return std::make_unique<PlainStream>(std::move(fd));
  return make_tls_stream(std::move(fd), access.credentials->context(side), side);
}

}  // namespace butterfly
