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

constexpr std::int64_t kLinkMs = 5000;  // for one of them, which takes a tenth of a second, or some more

bool measured(const LinkDescriptor& link) {
  return link.gb_per_s > 0;
}

}  // namespace

bool on_loopback(std::string_view address) {
  const std::string_view host = address.substr(0, address.rfind(':'));
  const bool is_number = host.find_first_not_of("0123456789.") == host.npos;
  return (is_number && host.starts_with("127.")) || host == "[::1]" || host == "localhost";
}

void KnownCluster::learn_link(const std::string& from, const std::string& to, const LinkDescriptor& link) {
  if (!measured(link)) return;
  links_[{from, to}] = link;
  log().debug("link from {} to {}: {:.1f} us, {:.2f} Mbit/s, {:.1f} us more to wake", from.empty() ? "here" : from, to,
              link.latency_us, link.gb_per_s * 8e3, link.wake_us);
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

std::string KnownCluster::unmeasured(const std::vector<NodeDescriptor>& nodes, const std::vector<LinkUse>& uses) const {
  const auto address = [&](int node) -> std::string {
    return node == kCoordinator ? kHere : nodes[static_cast<std::size_t>(node)].address;
  };
  const auto is_here = [&](int node) { return node == kCoordinator || on_loopback(address(node)); };
  for (const LinkUse& use : uses) {
    if (use.from == use.to || (is_here(use.from) && is_here(use.to))) continue;
    // The coordinator's links count for both ways.
    const bool known =
        use.to == kCoordinator ? knows(kHere, address(use.from)) : knows(address(use.from), address(use.to));
    if (known) continue;
    const auto name = [&](int node) { return node == kCoordinator ? "the coordinator" : address(node); };
    return fmt::format("from {} to {}", name(use.from), name(use.to));
  }
  return {};
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
