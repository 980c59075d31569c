// The stream that a node's credentials ask for: what connect_tcp() and a listener begin with. Thread-safe.
#pragma once

#include <memory>

#include "butterfly/base/result.h"
#include "butterfly/wire/channel/byte_stream.h"

namespace butterfly {

/// TLS where there are credentials, plain otherwise. Errors: kIo when TLS cannot be set up.
Result<std::unique_ptr<ByteStream>> make_stream(Descriptor fd, const NodeAccess& access, StreamSide side);

}  // namespace butterfly
