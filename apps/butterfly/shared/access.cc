#include "shared/access.h"

#include <cstdio>

namespace butterfly::app {

void add_access_options(Command command, AccessOptions& access) {
  auto credentials = command.add_option("--credentials", access.credentials,
                                        "Folder with this node's certificate [$BUTTERFLY_HOME, else "
                                        "~/.config/butterfly, where there is one]: talk to members of its cluster "
                                        "alone, encrypted, at any address");
  command
      .add_flag("--insecure", access.any_address,
                "Talk to any address without authentication or encryption: anyone who reaches the port can use this "
                "machine")
      .excludes(credentials);
}

void warn_of_plain_text(const AccessOptions& options) {
  if (!options.any_address) return;
  std::fprintf(stderr,
               "WARNING: --insecure: nothing is authenticated or encrypted. Anyone who reaches a port of this node can "
               "use this machine, read what it computes, and change it.\n");
}

Result<NodeAccess> open_access(const AccessOptions& options) {
  warn_of_plain_text(options);
  return node_access(options);
}

}  // namespace butterfly::app
