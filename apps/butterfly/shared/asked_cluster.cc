#include "shared/asked_cluster.h"

#include <chrono>
#include <thread>

#include "butterfly/base/text/one_line.h"
#include "butterfly/cluster/control/node_status.h"
#include "butterfly/infer/deployment/known_cluster.h"
#include "butterfly/wire/enrolment/node_access.h"

namespace butterfly::app {
namespace {

constexpr std::int64_t kStatusMs = 3000;
constexpr std::int64_t kMeasureLinksMs = 60'000;
constexpr std::int64_t kMeasuringMs = 60'000;
constexpr std::chrono::milliseconds kAskAgain{200};

/// A worker that was just started does not know its speed yet: asks again until it does.
Result<NodeStatus> ask_measured(const std::string& address, const NodeAccess& access) {
  const Deadline patience = after_ms(kMeasuringMs);
  for (;;) {
    BF_ASSIGN_OR_RETURN(NodeStatus status, ask_status(address, access, after_ms(kStatusMs)));
    if (!status.worker || !status.worker->measuring) return status;
    if (std::chrono::steady_clock::now() > patience) {
      return make_error(ErrorCode::kTimeout, "{} still measures its speed after {} s", address, kMeasuringMs / 1000);
    }
    std::this_thread::sleep_for(kAskAgain);
  }
}

}  // namespace

Result<PlanCluster> ask_cluster(const std::vector<std::string>& addresses, const NodeAccess& access) {
  std::vector<NodeDescriptor> nodes;
  for (const std::string& address : addresses) {
    BF_ASSIGN_OR_RETURN(NodeStatus status, ask_measured(address, access));
    if (!status.worker) {
      return make_error(ErrorCode::kInvalidArgument, "{} is a coordinator, expected workers", address);
    }
    nodes.push_back(std::move(status.worker->node));
    nodes.back().address = address;
    nodes.back().name = one_line(nodes.back().name);  // it is shown
  }
  // One link at a time: two measurements at once would measure each other.
  KnownCluster known;
  for (const std::string& from : addresses) {
    BF_ASSIGN_OR_RETURN(const LinkStatus mine, measure_link(from, access, after_ms(kMeasureLinksMs)));
    known.learn_link(KnownCluster::kHere, from, mine.link);
    LinkQuestion question{.to = addresses};
    std::erase(question.to, from);
    if (question.to.empty()) break;
    BF_ASSIGN_OR_RETURN(const auto links, ask_links(from, question, access, after_ms(kMeasureLinksMs)));
    for (const LinkStatus& link : links) {
      if (!link.error.empty()) {
        return make_error(ErrorCode::kUnavailable, "the link from {} to {} cannot be measured: {}", from, link.to,
                          link.error);
      }
      known.learn_link(from, link.to, link.link);
    }
  }
  return known.cluster(nodes);
}

}  // namespace butterfly::app
