// Whom a node talks to, from the folder that its credentials are in. A plain function, thread-safe.
#pragma once

#include <string>

#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

/// With the credentials in `folder`: members of its cluster alone, encrypted, at any address. For an empty name, with
/// those in default_credentials_folder() where there are any; else the loopback interface alone, in plain text.
/// Errors: those of Credentials::load().
Result<NodeAccess> node_access(const std::string& folder);

}  // namespace butterfly
