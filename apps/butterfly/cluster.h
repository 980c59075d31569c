// The subcommands of `butterfly cluster`.
#pragma once

#include <CLI/CLI.hpp>

#include "commands.h"

namespace butterfly::app {

void add_cluster_status(CLI::App& cluster, Action& action);

}  // namespace butterfly::app
