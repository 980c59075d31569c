#include "access.h"

#include <cstdio>

#include "butterfly/base/log.h"
#include "butterfly/wire/enrolment/credentials.h"

namespace butterfly::app {

void add_access_options(Command command, AccessOptions& access) {
  auto credentials = command.add_option("--credentials", access.credentials,
                                        "Folder with this node's certificate [$BUTTERFLY_HOME, else "
                                        "~/.config/butterfly, where there is one]: talk to members of its cluster "
                                        "alone, encrypted, at any address");
  command
      .add_flag("--insecure", access.insecure,
                "Talk to any address without authentication or encryption: whoever reaches the port can use this "
                "machine")
      .excludes(credentials);
}

Result<NodeAccess> open_access(const AccessOptions& options) {
  NodeAccess access;
  if (options.insecure) {
    std::fprintf(stderr,
                 "WARNING: --insecure: nothing is authenticated or encrypted. Whoever reaches a port of this node can "
                 "use this machine, read what it computes, and change it.\n");
    access.policy = AddressPolicy::kAnyAddress;
    return access;
  }
  const std::string folder = options.credentials.empty() ? default_credentials_folder() : options.credentials;
  if (options.credentials.empty() && !has_credentials(folder)) return access;
  BF_ASSIGN_OR_RETURN(access.credentials, Credentials::load(folder));
  log().info("credentials from {}: {}", folder, access.credentials->describe());
  return access;
}

}  // namespace butterfly::app
