// Whom a command's node talks to: --credentials and --insecure.
#pragma once

#include <string>

#include "butterfly/wire/channel/tcp.h"
#include "options/options.h"

namespace butterfly::app {

struct AccessOptions {
  std::string credentials;  // a folder; empty: the default one, if there are credentials in it
  bool insecure = false;
};

/// --credentials, --insecure.
void add_access_options(Command command, AccessOptions& access);

/// Reads the credentials, and says loudly on stderr when there shall be none at all. Errors: those of
/// Credentials::load().
Result<NodeAccess> open_access(const AccessOptions& options);

}  // namespace butterfly::app
