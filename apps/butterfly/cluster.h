// The subcommands of `butterfly cluster`.
#pragma once

#include "commands.h"

namespace butterfly::app {

/// init, token, admit, list, revoke, rotate: where the authority is.
void add_cluster_authority(CLI::App& cluster, Action& action);

/// enroll, renew: on every node.
void add_cluster_membership(CLI::App& cluster, Action& action);

/// status: of any nodes.
void add_cluster_status(CLI::App& cluster, Action& action);

/// rebalance: a coordinator that runs.
void add_cluster_rebalance(CLI::App& cluster, Action& action);

/// --credentials DIR, with the default folder when it is not given.
void add_folder_option(CLI::App& command, std::string& folder);
std::string chosen_folder(const std::string& folder);

}  // namespace butterfly::app
