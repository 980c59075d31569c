// What planning knows of a cluster: its nodes, the links between them, the links of the coordinator. Described by a
// file or measured; a plain value, thread-safe. Nodes are named by their index everywhere in this module.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/node.h"
#include "butterfly/plan/description/exchange_times.h"

namespace butterfly {

/// Stands for the coordinator where a node's index is expected.
inline constexpr int kCoordinator = -1;

/// Assumed where nobody measured: TCP over 10 Gbit/s Ethernet.
inline constexpr LinkDescriptor kAssumedLink{.latency_us = 50.0, .gb_per_s = 1.0};

/// A tensor group that runs, and has measured its exchanges.
struct MeasuredGroup {
  std::vector<int> nodes;  // by their slices
  ExchangeTimes times;
};

struct PlanCluster {
  std::vector<NodeDescriptor> nodes;
  std::vector<LinkDescriptor> links;              // from * nodes + to; empty: default_link everywhere
  std::vector<LinkDescriptor> coordinator_links;  // one per node, the same both ways; empty: default_link
  std::vector<int> host_of_node;                  // equal numbers share a host; empty: every node has its own
  LinkDescriptor default_link = kAssumedLink;
  std::vector<MeasuredGroup> measured_groups;  // empty where nothing runs yet: exchanges follow from the links

  int size() const { return static_cast<int>(nodes.size()); }
  /// Either end may be kCoordinator. A node reaches itself at once. 0 GB/s: not connected.
  const LinkDescriptor& link(int from, int to) const;
  bool same_host(int a, int b) const;
  /// Its name, "node 3" where it has none, "the coordinator".
  std::string name_of(int node) const;
};

/// A cluster of nodes whose links nobody knows.
PlanCluster cluster_of(std::span<const NodeDescriptor> nodes);

/// Ranks of a run that one of them coordinates: as node 0, `here`, with the links of the coordinator and a host of its
/// own. Nobody else coordinates, so coordinator_links is empty.
PlanCluster with_coordinator(const PlanCluster& others, const NodeDescriptor& here);

/// Errors: kInvalidArgument for no nodes, numbers that are negative or not finite, tables whose size is not that of
/// the nodes, a node that no link connects with the others.
Status validate(const PlanCluster& cluster);

/// Seconds until `bytes` have arrived: latency + bytes / bandwidth (R. W. Hockney, 1994,
/// https://doi.org/10.1016/S0167-8191(06)80021-9). Infinite where nothing connects the two.
double transfer_s(const LinkDescriptor& link, double bytes);

}  // namespace butterfly
