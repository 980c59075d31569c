// Who a node is: what its certificate says of it. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "butterfly/wire/channel/frame.h"

namespace butterfly {

/// Written into a certificate by the cluster's authority, whatever its owner asked for.
enum class NodeRole : std::uint8_t { kCoordinator, kWorker };

/// "coordinator", "worker".
std::string_view to_string(NodeRole role);
std::string_view to_string(ConnectionRole role);

struct NodeIdentity {
  std::string name{};
  NodeRole role = NodeRole::kWorker;
  std::string serial{};  // of the certificate that says so; empty: it was not read from one
};

/// Names are 1 to 63 of a-z, 0-9, '.' and '-'. Errors: kInvalidArgument.
Status check_node_name(std::string_view name);

/// Whether a client with this certificate may open such a connection. Errors: kInvalidArgument naming both.
Status may_open(const NodeIdentity& client, ConnectionRole connection);

/// Whether a client may hand such a connection to this server: only a coordinator may be joined.
Status may_serve(const NodeIdentity& server, ConnectionRole connection);

}  // namespace butterfly
