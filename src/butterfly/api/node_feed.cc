#include "butterfly/api/node_feed.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/api/convert.h"

namespace butterfly {
namespace {

/// Kept by an observer between its calls.
class Feed {
 public:
  Feed(NodeRegistry& registry, std::mutex& mutex, std::function<void(const GeneratorEvent&)> event)
      : registry_(registry), mutex_(mutex), event_(std::move(event)) {}

  void tell(const GeneratorEvent& event) const {
    const std::lock_guard lock(mutex_);
    if (event_) event_(event);
  }

  void members(const std::vector<NodeDescriptor>& nodes, const std::string& change) {
    std::vector<std::string> present;
    for (const NodeDescriptor& node : nodes) {
      present.push_back(node.address);
      if (std::ranges::find(present_, node.address) != present_.end()) continue;
      const Node member{.id = node.address, .address = node.address, .capability = to_capability(node)};
      if (!registry_.register_node(member)) static_cast<void>(registry_.heartbeat(node.address));
      tell({.kind = GeneratorEvent::Kind::kJoined, .node = node.address});
    }
    for (const std::string& before : present_) {
      if (std::ranges::find(present, before) != present.end()) continue;
      static_cast<void>(registry_.mark_unhealthy(before));
      tell({.kind = GeneratorEvent::Kind::kLost, .node = before, .message = change});
    }
    present_ = std::move(present);
  }

 private:
  NodeRegistry& registry_;
  std::mutex& mutex_;
  const std::function<void(const GeneratorEvent&)> event_;
  std::vector<std::string> present_;  // ids, at the last call
};

}  // namespace

DeploymentObserver node_feed(NodeRegistry& registry, std::mutex& mutex,
                             std::function<void(const GeneratorEvent&)> event) {
  const auto feed = std::make_shared<Feed>(registry, mutex, std::move(event));  // shared by the three functions
  return {.epoch =
              [feed](const EpochReport& epoch) {
                feed->tell({.kind = GeneratorEvent::Kind::kEpoch,
                            .message = epoch.cause,
                            .epoch = epoch.epoch,
                            .workers = epoch.workers});
              },
          .waiting =
              [feed](const std::string& why) { feed->tell({.kind = GeneratorEvent::Kind::kWaiting, .message = why}); },
          .members = [feed](const std::vector<NodeDescriptor>& nodes,
                            const std::string& change) { feed->members(nodes, change); }};
}

Status register_threads(const Replica& replica, int threads, NodeRegistry& registry) {
  for (const NodeReport& node : replica.deployment().nodes()) {
    const std::string id = node.name + replica.suffix;
    if (registry.find(id)) continue;  // it has several shares
    BF_TRY(registry.register_node({.id = id, .capability = {.threads = threads}}));
  }
  return {};
}

}  // namespace butterfly
