// The two keys of every table that say whom a node talks to. Plain functions, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/settings/config_key.h"
#include "butterfly/wire/enrolment/node_access.h"

namespace butterfly {

/// `at` leads from a config to its AccessOptions.
template <typename Config, typename Access>
void add_access_keys(std::vector<ConfigKey<Config>>& keys, const std::string& group, Access at) {
  keys.push_back(value_key({.name = "credentials",
                            .help = "Folder with this node's certificate; empty: $BUTTERFLY_HOME, else "
                                    "~/.config/butterfly, where there is one. Talk to members of its cluster alone, "
                                    "encrypted, at any address",
                            .group = group},
                           [at](Config& config) -> std::string& { return at(config).credentials; }));
  keys.push_back(value_key({.name = "insecure",
                            .help = "Talk to any address without authentication or encryption: anyone who reaches the "
                                    "port can use this machine",
                            .group = group},
                           [at](Config& config) -> bool& { return at(config).any_address; }));
}

/// Errors: kInvalidArgument where both are set.
inline Status validate(const AccessOptions& access) {
  if (access.credentials.empty() || !access.any_address) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "credentials is {} and insecure is true: with credentials nothing is insecure", access.credentials);
}

}  // namespace butterfly
