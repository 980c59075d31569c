// TLS 1.3 over a socket: mutual certificates, no resumption, no early data, no renegotiation. An SSL object must never
// be entered twice at once, so sender and receiver take turns, one record long, and never while they wait.
#pragma once

#include "butterfly/wire/channel/byte_stream.h"

struct ssl_ctx_st;

namespace butterfly {

/// Shared: connections outlive the files that their context was made from.
using TlsContext = std::shared_ptr<ssl_ctx_st>;

/// Errors: kIo.
Result<std::unique_ptr<ByteStream>> make_tls_stream(Descriptor fd, const TlsContext& context, StreamSide side);

/// An empty context with this project's rules: TLS 1.3 alone, no tickets, no early data. It has no keys yet.
/// Errors: kIo.
Result<TlsContext> make_tls_context(StreamSide side);

}  // namespace butterfly
