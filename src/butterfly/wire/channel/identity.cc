#include "butterfly/wire/channel/identity.h"

#include <algorithm>

namespace butterfly {

std::string_view to_string(NodeRole role) {
  return role == NodeRole::kCoordinator ? "coordinator" : "worker";
}

std::string_view to_string(ConnectionRole role) {
  switch (role) {
    case ConnectionRole::kControl:
      return "control";
    case ConnectionRole::kData:
      return "data";
    case ConnectionRole::kJoin:
      return "join";
    case ConnectionRole::kStatus:
      return "status";
    case ConnectionRole::kProbe:
      return "probe";
  }
  return "unknown";
}

Status check_node_name(std::string_view name) {
  constexpr std::size_t kNameBytesMax = 63;
  const bool plain = std::ranges::all_of(
      name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-'; });
  if (name.empty() || name.size() > kNameBytesMax || !plain) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a node cannot be called '{}': a name is 1 to {} of a-z, 0-9, '.' and '-'",
                      plain ? name : std::string_view("?"), kNameBytesMax);
  }
  return {};
}

Status may_open(const NodeIdentity& client, ConnectionRole connection) {
  if (connection == ConnectionRole::kControl && client.role != NodeRole::kCoordinator) {
    return make_error(ErrorCode::kInvalidArgument,
                      "its certificate is that of {} '{}', only a coordinator's may open a {} connection",
                      to_string(client.role), client.name, to_string(connection));
  }
  return {};
}

Status may_serve(const NodeIdentity& server, ConnectionRole connection) {
  if (connection == ConnectionRole::kJoin && server.role != NodeRole::kCoordinator) {
    return make_error(ErrorCode::kInvalidArgument,
                      "its certificate is that of {} '{}', only a coordinator can be joined", to_string(server.role),
                      server.name);
  }
  return {};
}

}  // namespace butterfly
