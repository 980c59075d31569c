// butterfly plan --workers: the cluster as its workers describe themselves and measure their links.
#include "butterfly/cluster/node_status.h"
#include "plan.h"

namespace butterfly::app {
namespace {

constexpr std::int64_t kAskMs = 3000;
constexpr std::int64_t kLinksMs = 60'000;

}  // namespace

Result<PlanCluster> ask_cluster(const std::vector<std::string>& addresses, const AccessOptions& access_options) {
  BF_ASSIGN_OR_RETURN(const NodeAccess access, open_access(access_options));
  PlanCluster cluster;
  for (const std::string& address : addresses) {
    BF_ASSIGN_OR_RETURN(NodeStatus status, ask_status(address, access, after_ms(kAskMs)));
    if (!status.worker) {
      return make_error(ErrorCode::kInvalidArgument, "{} is a coordinator, expected workers", address);
    }
    NodeDescriptor node = std::move(status.worker->node);
    node.address = address;
    cluster.nodes.push_back(std::move(node));
  }
  // One link at a time: two measurements at once would measure each other.
  const std::size_t count = addresses.size();
  cluster.links.assign(count * count, {});
  for (std::size_t from = 0; from < count; ++from) {
    BF_ASSIGN_OR_RETURN(const LinkDescriptor mine, measure_link(addresses[from], access, after_ms(kLinksMs)));
    cluster.coordinator_links.push_back(mine);
    std::vector<std::string> others = addresses;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(from));
    if (others.empty()) break;
    BF_ASSIGN_OR_RETURN(const auto links, ask_links(addresses[from], others, access, after_ms(kLinksMs)));
    for (const LinkStatus& link : links) {
      if (!link.error.empty()) {
        return make_error(ErrorCode::kUnavailable, "the link from {} to {} cannot be measured: {}", addresses[from],
                          link.to, link.error);
      }
      for (std::size_t to = 0; to < count; ++to) {
        if (addresses[to] == link.to) cluster.links[from * count + to] = link.link;
      }
    }
  }
  return cluster;
}

}  // namespace butterfly::app
