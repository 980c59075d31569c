#include "shared/asked_cluster.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "butterfly/base/log.h"
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

/// Of each of its properties the worse one.
LinkDescriptor slower(const LinkDescriptor& a, const LinkDescriptor& b) {
  return {.latency_us = std::max(a.latency_us, b.latency_us),
          .gb_per_s = std::min(a.gb_per_s, b.gb_per_s),
          .wake_us = std::max(a.wake_us, b.wake_us)};
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
  std::map<std::string, LinkDescriptor> from_here;
  for (const std::string& to : addresses) {
    BF_ASSIGN_OR_RETURN(const LinkStatus mine, measure_link(to, access, after_ms(kMeasureLinksMs)));
    known.learn_link(KnownCluster::kHere, to, mine.link);
    from_here[to] = mine.link;
  }
  for (const std::string& from : addresses) {
    LinkQuestion question{.to = addresses};
    std::erase(question.to, from);
    if (question.to.empty()) break;
    const auto links = ask_links(from, question, access, after_ms(kMeasureLinksMs));
    if (!links && links.error().code == ErrorCode::kInvalidArgument) {
      // It dials others for nobody whom it does not know.
      for (const std::string& to : question.to) known.learn_link(from, to, slower(from_here[from], from_here[to]));
      if (from == addresses.front()) {
        log().warn("{}; each link between workers is taken to be like the slower one of those to them from here",
                   links.error().message);
      }
      continue;
    }
    if (!links) return tl::unexpected(links.error());
    for (const LinkStatus& link : *links) {
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
