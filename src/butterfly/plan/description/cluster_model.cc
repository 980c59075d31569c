#include "butterfly/plan/description/cluster_model.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace butterfly {
namespace {

constexpr LinkDescriptor kItself{.latency_us = 0.0, .gb_per_s = std::numeric_limits<double>::infinity()};

Status check_number(const std::string& whose, std::string_view what, double value) {
  if (std::isfinite(value) && value >= 0.0) return {};
  return make_error(ErrorCode::kInvalidArgument, "the {} of {} is {}, expected a number of at least 0", what, whose,
                    value);
}

Status check_node(const PlanCluster& cluster, int index) {
  const NodeDescriptor& node = cluster.nodes[static_cast<std::size_t>(index)];
  const std::string name = cluster.name_of(index);
  BF_TRY(check_number(name, "memory rate", node.memory_read_gb_per_s));
  BF_TRY(check_number(name, "fp32 rate", node.fp32_gflops));
  BF_TRY(check_number(name, "int8 rate", node.int8_gops));
  for (const MatmulRate& matmul : node.matmuls) {
    BF_TRY(check_number(name, fmt::format("decode rate for {}", matmul.type), matmul.decode_gb_per_s));
    BF_TRY(check_number(name, fmt::format("prefill rate for {}", matmul.type), matmul.prefill_gflops));
    BF_TRY(check_number(name, fmt::format("rate from caches for {}", matmul.type), matmul.cached_gb_per_s));
  }
  return {};
}

Status check_link(const std::string& name, const LinkDescriptor& link) {
  BF_TRY(check_number(name, "latency", link.latency_us));
  return check_number(name, "bandwidth", link.gb_per_s);
}

Status check_size(std::string_view what, std::size_t size, std::size_t expected) {
  if (size == 0 || size == expected) return {};
  return make_error(ErrorCode::kInvalidArgument, "a cluster with {} {}, expected {} or none", size, what, expected);
}

bool both_ways(const PlanCluster& cluster, int a, int b) {
  return cluster.link(a, b).gb_per_s > 0.0 && cluster.link(b, a).gb_per_s > 0.0;
}

/// Nodes that the coordinator reaches, over others too.
Status check_connected(const PlanCluster& cluster) {
  std::vector<int> waiting{kCoordinator};
  std::vector<char> reached(cluster.nodes.size(), 0);
  while (!waiting.empty()) {
    const int from = waiting.back();
    waiting.pop_back();
    for (int to = 0; to < cluster.size(); ++to) {
      char& seen = reached[static_cast<std::size_t>(to)];
      if (seen != 0 || !both_ways(cluster, from, to)) continue;
      seen = 1;
      waiting.push_back(to);
    }
  }
  for (int node = 0; node < cluster.size(); ++node) {
    if (reached[static_cast<std::size_t>(node)] != 0) continue;
    return make_error(ErrorCode::kInvalidArgument, "no link connects {} with the coordinator or with a node it reaches",
                      cluster.name_of(node));
  }
  return {};
}

}  // namespace

const LinkDescriptor& PlanCluster::link(int from, int to) const {
  if (from == to) return kItself;
  if (from == kCoordinator || to == kCoordinator) {
    const int node = from == kCoordinator ? to : from;
    return coordinator_links.empty() ? default_link : coordinator_links[static_cast<std::size_t>(node)];
  }
  if (links.empty()) return default_link;
  return links[static_cast<std::size_t>(from) * nodes.size() + static_cast<std::size_t>(to)];
}

bool PlanCluster::same_host(int a, int b) const {
  if (a == b) return true;
  if (a == kCoordinator || b == kCoordinator || host_of_node.empty()) return false;
  return host_of_node[static_cast<std::size_t>(a)] == host_of_node[static_cast<std::size_t>(b)];
}

std::string PlanCluster::name_of(int node) const {
  if (node == kCoordinator) return "the coordinator";
  const std::string& name = nodes[static_cast<std::size_t>(node)].name;
  return name.empty() ? fmt::format("node {}", node) : name;
}

PlanCluster cluster_of(std::span<const NodeDescriptor> nodes) {
  PlanCluster cluster;
  cluster.nodes.assign(nodes.begin(), nodes.end());
  return cluster;
}

PlanCluster with_coordinator(const PlanCluster& others, const NodeDescriptor& here) {
  PlanCluster all;
  all.default_link = others.default_link;
  all.nodes.push_back(here);
  all.nodes.insert(all.nodes.end(), others.nodes.begin(), others.nodes.end());
  constexpr int kItsOwnHost = -1;
  all.host_of_node.push_back(kItsOwnHost);
  for (int node = 0; node < others.size(); ++node) {
    // Where nobody says, every node has a host of its own.
    all.host_of_node.push_back(others.host_of_node.empty() ? node
                                                           : others.host_of_node[static_cast<std::size_t>(node)]);
  }
  for (int from = kCoordinator; from < others.size(); ++from) {
    for (int to = kCoordinator; to < others.size(); ++to) all.links.push_back(others.link(from, to));
  }
  return all;
}

Status validate(const PlanCluster& cluster) {
  const std::size_t n = cluster.nodes.size();
  if (n == 0) return make_error(ErrorCode::kInvalidArgument, "a plan needs at least one node");
  BF_TRY(check_size("links", cluster.links.size(), n * n));
  BF_TRY(check_size("links of the coordinator", cluster.coordinator_links.size(), n));
  BF_TRY(check_size("hosts", cluster.host_of_node.size(), n));
  BF_TRY(check_link("an unknown link", cluster.default_link));
  for (int a = 0; a < cluster.size(); ++a) {
    BF_TRY(check_node(cluster, a));
    if (!cluster.coordinator_links.empty()) {
      BF_TRY(
          check_link(fmt::format("the coordinator's link to {}", cluster.name_of(a)), cluster.link(kCoordinator, a)));
    }
    for (int b = 0; b < cluster.size() && !cluster.links.empty(); ++b) {
      // Names only where something is wrong: a cluster of 1,000 nodes has a million links.
      const LinkDescriptor& link = cluster.link(a, b);
      if (std::isfinite(link.latency_us) && link.latency_us >= 0.0 && link.gb_per_s >= 0.0) continue;
      BF_TRY(check_link(fmt::format("the link from {} to {}", cluster.name_of(a), cluster.name_of(b)), link));
    }
  }
  return check_connected(cluster);
}

double transfer_s(const LinkDescriptor& link, double bytes) {
  if (link.gb_per_s <= 0.0) return std::numeric_limits<double>::infinity();
  return link.latency_us * 1e-6 + bytes / (link.gb_per_s * 1e9);
}

}  // namespace butterfly
