#include "butterfly/infer/deployment/known_cluster.h"

#include <algorithm>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/node_status.h"

namespace butterfly {
namespace {

/// "10.0.0.2" of "10.0.0.2:7000".
std::string host_of(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

constexpr std::int64_t kLinkMs = 5000;  // for one of them, which takes a tenth of a second

bool measured(const LinkDescriptor& link) {
  return link.gb_per_s > 0;
}

}  // namespace

void KnownCluster::learn_link(const std::string& from, const std::string& to, const LinkDescriptor& link) {
  if (measured(link)) links_[{from, to}] = link;
}

bool KnownCluster::knows(const std::string& from, const std::string& to) const {
  return links_.contains({from, to});
}

void KnownCluster::learn_links(const Membership& membership, const Members& members, const NodeAccess& access,
                               Deadline deadline, const std::stop_token& stop) {
  bool all = true;
  for (const NodeDescriptor& from : members.nodes) {
    for (const NodeDescriptor& to : members.nodes) all &= &from == &to || knows(from.address, to.address);
  }
  if (!all) {
    const auto matrix = membership.links(members, deadline, stop);
    for (std::size_t from = 0; from < matrix.size(); ++from) {
      for (std::size_t to = 0; to < matrix.size(); ++to) {
        learn_link(members.nodes[from].address, members.nodes[to].address, matrix[from][to]);
      }
    }
  }
  for (const NodeDescriptor& node : members.nodes) {
    if (stop.stop_requested() || knows(kHere, node.address)) continue;
    // One worker that does not answer must not take the time of the others.
    const auto status = measure_link(node.address, access, std::min(deadline, after_ms(kLinkMs)), stop);
    if (status) {
      learn_link(kHere, node.address, status->link);
    } else {
      log().warn("the link to worker {} is unknown: {}", node.address, status.error().message);
    }
  }
}

void KnownCluster::learn_slowness(const std::string& address, double slowness) {
  slowness_[address] = slowness;
}

double KnownCluster::slowness(const std::string& address) const {
  const auto found = slowness_.find(address);
  return found == slowness_.end() ? 1.0 : found->second;
}

LinkDescriptor KnownCluster::link(const std::string& from, const std::string& to) const {
  const auto found = links_.find({from, to});
  if (found != links_.end()) return found->second;
  const auto slower = [](const auto& a, const auto& b) { return a.second.gb_per_s < b.second.gb_per_s; };
  const auto slowest = std::ranges::min_element(links_, slower);
  return slowest == links_.end() ? kAssumedLink : slowest->second;
}

PlanCluster KnownCluster::cluster(const std::vector<NodeDescriptor>& nodes) const {
  PlanCluster cluster = cluster_of(nodes);
  std::vector<std::string> hosts;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    cluster.nodes[i] = scaled(nodes[i], 1.0 / slowness(nodes[i].address));
    const std::string host = host_of(nodes[i].address);
    const auto known = std::ranges::find(hosts, host);
    cluster.host_of_node.push_back(static_cast<int>(known - hosts.begin()));
    if (known == hosts.end()) hosts.push_back(host);
  }
  if (links_.empty()) return cluster;
  for (const NodeDescriptor& from : nodes) {
    for (const NodeDescriptor& to : nodes) {
      cluster.links.push_back(&from == &to ? LinkDescriptor{} : link(from.address, to.address));
    }
    cluster.coordinator_links.push_back(link(kHere, from.address));
  }
  return cluster;
}

}  // namespace butterfly
