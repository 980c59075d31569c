// Questions to workers: what they are, and the links between them.
#include <algorithm>

#include "butterfly/api/convert.h"
#include "butterfly/cluster/control/node_status.h"
#include "butterfly/wire/enrolment/node_access.h"

namespace butterfly {
namespace {

std::string host_of(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

Status check_address(const Node& node) {
  if (!node.address.empty()) return {};
  return make_error(ErrorCode::kInvalidArgument, "node '{}' has no address: links are measured between workers",
                    node.id);
}

}  // namespace

Result<std::vector<Node>> ask_nodes(std::span<const std::string> addresses, const AskOptions& options) {
  BF_ASSIGN_OR_RETURN(const NodeAccess access,
                      node_access({.credentials = options.credentials, .any_address = options.any_address}));
  const Deadline deadline = after_ms(options.timeout.count());
  std::vector<Node> nodes;
  for (const std::string& address : addresses) {
    BF_ASSIGN_OR_RETURN(const NodeStatus status, ask_status(address, access, deadline));
    if (!status.worker) {
      return make_error(ErrorCode::kInvalidArgument, "{} is a coordinator, expected a worker", address);
    }
    nodes.push_back({.id = address, .address = address, .capability = to_capability(status.worker->node)});
  }
  return nodes;
}

Result<std::vector<NodeLink>> measure_links(std::span<Node> nodes, const AskOptions& options) {
  BF_ASSIGN_OR_RETURN(const NodeAccess access,
                      node_access({.credentials = options.credentials, .any_address = options.any_address}));
  const Deadline deadline = after_ms(options.timeout.count());
  for (const Node& node : nodes) BF_TRY(check_address(node));
  std::vector<NodeLink> links;
  // One node after the other: two measurements at once would measure each other.
  for (Node& from : nodes) {
    LinkQuestion question;
    for (const Node& to : nodes) {
      if (&to != &from) question.to.push_back(to.address);
    }
    if (question.to.empty()) break;
    BF_ASSIGN_OR_RETURN(const std::vector<LinkStatus> answers, ask_links(from.address, question, access, deadline));
    double slowest = 0.0;
    for (const LinkStatus& answer : answers) {
      const auto to = std::ranges::find(nodes, answer.to, &Node::address);
      if (!answer.error.empty() || to == nodes.end()) {
        return make_error(ErrorCode::kUnavailable, "the link from {} to {} cannot be measured: {}", from.address,
                          answer.to, answer.error);
      }
      links.push_back(
          {.from = from.id, .to = to->id, .latency_us = answer.link.latency_us, .gb_per_s = answer.link.gb_per_s});
      const bool leaves_host = host_of(from.address) != host_of(to->address);
      if (leaves_host && (slowest == 0.0 || answer.link.gb_per_s < slowest)) slowest = answer.link.gb_per_s;
    }
    if (slowest > 0.0) from.capability.network_bandwidth_gb_per_s = slowest;
  }
  return links;
}

}  // namespace butterfly
