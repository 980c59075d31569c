// The subcommands of `butterfly cluster`.
#pragma once

#include "commands.h"
#include "options/options.h"

namespace butterfly::app {

/// init, token, admit, list, revoke, rotate: where the authority is.
void add_cluster_authority(Command cluster, Action& action);

/// enroll, renew: on every node.
void add_cluster_membership(Command cluster, Action& action);

/// status: of any nodes.
void add_cluster_status(Command cluster, Action& action);

/// rebalance: a coordinator that runs.
void add_cluster_rebalance(Command cluster, Action& action);

/// --credentials DIR, with the default folder when it is not given.
void add_folder_option(Command command, std::string& folder);
std::string chosen_folder(const std::string& folder);

}  // namespace butterfly::app
