#include "butterfly/wire/enrolment/node_access.h"

#include "butterfly/base/log.h"
#include "butterfly/wire/enrolment/credentials.h"

namespace butterfly {

Result<NodeAccess> node_access(const AccessOptions& options) {
  const std::string& folder = options.credentials;
  if (options.any_address) {
    if (folder.empty()) return NodeAccess{.policy = AddressPolicy::kAnyAddress};
    return make_error(ErrorCode::kInvalidArgument,
                      "credentials from {} and any_address: plain text would be spoken where credentials are asked for",
                      folder);
  }
  NodeAccess access;
  const std::string chosen = folder.empty() ? default_credentials_folder() : folder;
  if (folder.empty() && !has_credentials(chosen)) return access;
  BF_ASSIGN_OR_RETURN(access.credentials, Credentials::load(chosen));
  log().info("credentials from {}: {}", chosen, access.credentials->describe());
  return access;
}

}  // namespace butterfly
