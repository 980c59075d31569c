// butterfly cluster: who belongs to a cluster.
#include "cluster.h"

namespace butterfly::app {

void add_cluster(CLI::App& app, Action& action) {
  auto* cluster = app.add_subcommand("cluster", "Make a cluster, admit nodes to it, and look after its certificates");
  cluster->require_subcommand(1);
  add_cluster_authority(*cluster, action);
  add_cluster_membership(*cluster, action);
}

}  // namespace butterfly::app
