// butterfly cluster: who belongs to a cluster, and how its nodes are.
#include "cluster/cluster.h"

namespace butterfly::app {

void add_cluster(Command app, Action& action) {
  auto cluster =
      app.add_subcommand("cluster", "Make a cluster, admit nodes to it, look after its certificates, see how it is");
  cluster.require_subcommand();
  add_cluster_authority(cluster, action);
  add_cluster_membership(cluster, action);
  add_cluster_status(cluster, action);
  add_cluster_rebalance(cluster, action);
}

}  // namespace butterfly::app
