// Whom a command's node talks to: --credentials and --insecure.
#pragma once

#include "butterfly/wire/enrolment/node_access.h"
#include "options/options.h"

namespace butterfly::app {

/// --credentials, --insecure.
void add_access_options(Command command, AccessOptions& access);

/// Says loudly on stderr when nothing shall be authenticated.
void warn_of_plain_text(const AccessOptions& options);

/// Reads the credentials, after such a warning. Errors: those of node_access().
Result<NodeAccess> open_access(const AccessOptions& options);

}  // namespace butterfly::app
