#include "butterfly/wire/enrolment/node_access.h"

#include "butterfly/base/log.h"
#include "butterfly/wire/enrolment/credentials.h"

namespace butterfly {

Result<NodeAccess> node_access(const std::string& folder) {
  NodeAccess access;
  const std::string chosen = folder.empty() ? default_credentials_folder() : folder;
  if (folder.empty() && !has_credentials(chosen)) return access;
  BF_ASSIGN_OR_RETURN(access.credentials, Credentials::load(chosen));
  log().info("credentials from {}: {}", chosen, access.credentials->describe());
  return access;
}

}  // namespace butterfly
