#include "butterfly/wire/channel/dial.h"
#include "butterfly/wire/channel/tcp.h"
#include "butterfly/wire/tcp/make_stream.h"
#include "butterfly/wire/tcp/tcp_channel.h"

#include <thread>

namespace butterfly {
namespace {

constexpr std::chrono::milliseconds kHandshakePause{20};  // before a damaged handshake is tried again

/// TLS, where there are credentials, and that the right kind of node is there.
Status secure(ByteStream& stream, const ConnectOptions& options, const std::string& name, const Patience& patience) {
  if (!options.access.credentials) return {};
  if (const auto done = complete_handshake(stream, name, patience); !done) {
    const ErrorCode code = done.error().code;
    if (code == ErrorCode::kTimeout || code == ErrorCode::kCancelled) return tl::unexpected(done.error());
    return make_error(code, "{} (this node has credentials and speaks TLS only; does the other one have some?)",
                      done.error().message);
  }
  const auto identity = stream.peer();
  if (!identity) return make_error(ErrorCode::kProtocol, "{} has a certificate that names no node", name);
  if (const Status allowed = may_serve(*identity, options.introduction.role); !allowed) {
    return make_error(allowed.error().code, "{} is refused: {}", name, allowed.error().message);
  }
  return {};
}

Status shake_hands(ByteStream& stream, const Introduction& introduction, const std::string& name,
                   const Patience& patience) {
  const HelloBytes hello = encode_hello(introduction);
  BF_TRY(send_all(stream, hello, name, patience));
  HelloReplyBytes reply{};
  BF_TRY(receive_all(stream, reply, name, patience));
  if (was_damaged(hello, reply)) {
    return make_error(ErrorCode::kBadData, "the hello to {} or its answer was damaged on the way", name);
  }
  auto version = decode_hello_reply(reply);
  if (!version) return make_error(ErrorCode::kProtocol, "{}: {}", name, version.error().message);
  if (*version != kProtocolVersion) {
    return make_error(ErrorCode::kProtocol, "worker {} speaks protocol {}, this program {}", name, *version,
                      kProtocolVersion);
  }
  return {};
}

/// Errors: those of connect_tcp(), and kBadData where something was damaged on its way.
Result<ChannelPtr> attempt(const std::string& address, const std::string& name, const ConnectOptions& options,
                           const Patience& patience) {
  BF_ASSIGN_OR_RETURN(const auto candidates, resolve(address, patience.deadline(), patience.stop()));
  BF_TRY(check_policy(address, candidates, options.access));  // of what is dialled: a name may change its meaning
  BF_ASSIGN_OR_RETURN(Descriptor fd, dial(candidates, name, patience));
  BF_ASSIGN_OR_RETURN(auto stream, make_stream(std::move(fd), options.access, StreamSide::kClient));
  BF_TRY(secure(*stream, options, name, patience));
  BF_TRY(shake_hands(*stream, options.introduction, name, patience));
  return std::make_unique<TcpChannel>(std::move(stream), name, for_role(options.channel, options.introduction.role));
}

}  // namespace

Result<ChannelPtr> connect_tcp(const std::string& address, const ConnectOptions& options, Deadline deadline) {
  if (options.introduction.label.size() > kLabelBytesMax) {
    return make_error(ErrorCode::kInvalidArgument, "a channel label of {} bytes, the limit is {}",
                      options.introduction.label.size(), kLabelBytesMax);
  }
  const std::string& name = options.peer_name.empty() ? address : options.peer_name;
  BF_ASSIGN_OR_RETURN(const auto patience, Patience::create(deadline, options.stop));
  for (int number = 1;; ++number) {
    auto channel = attempt(address, name, options, *patience);
    if (channel || channel.error().code != ErrorCode::kBadData) return channel;
    if (number == kHandshakesMax) return make_error(ErrorCode::kUnavailable, "{}", channel.error().message);
    std::this_thread::sleep_for(kHandshakePause);
  }
}

}  // namespace butterfly
