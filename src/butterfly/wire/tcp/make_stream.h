// What a node's access allows and asks for: what connect_tcp() and a listener begin with. Thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/wire/channel/address.h"
#include "butterfly/wire/channel/byte_stream.h"

namespace butterfly {

/// Errors: kInvalidArgument when the policy forbids one of these, which `address` stands for.
Status check_policy(const std::string& address, std::span<const SocketAddress> resolved, const NodeAccess& access);

/// TLS where there are credentials, plain otherwise. Errors: kIo when TLS cannot be set up.
Result<std::unique_ptr<ByteStream>> make_stream(Descriptor fd, const NodeAccess& access, StreamSide side);

}  // namespace butterfly
