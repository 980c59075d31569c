// Whom a node talks to, from the folder that its credentials are in. A plain function, thread-safe.
#pragma once

#include <string>

#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

/// As users say it.
struct AccessOptions {
  std::string credentials{};  // a folder; empty: default_credentials_folder(), if there are credentials in it
  bool any_address = false;   // any address without authentication or encryption; not beside credentials
};

/// With credentials: members of their cluster alone, encrypted, at any address. Without: the loopback interface alone,
/// in plain text. Errors: those of Credentials::load(); kInvalidArgument for credentials beside any_address.
Result<NodeAccess> node_access(const AccessOptions& options);

}  // namespace butterfly
