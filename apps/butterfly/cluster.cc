// butterfly cluster: who belongs to a cluster, and how its nodes are.
#include "cluster.h"

namespace butterfly::app {

void add_cluster(CLI::App& app, Action& action) {
  auto* cluster = app.add_subcommand("cluster", "Look after a cluster");
  cluster->require_subcommand(1);
  add_cluster_status(*cluster, action);
}

}  // namespace butterfly::app
