#include "butterfly/node_registry.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace butterfly {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

struct Entry {
  Node node;
  TimePoint heard;
  bool broken = false;
};

}  // namespace

struct NodeRegistry::State {
  RegistryOptions options;
  mutable std::mutex mutex;
  std::vector<Entry> entries;  // in order of registration; few enough to search one by one

  /// Calls use(entry) under the lock.
  template <typename Use>
  Status with(std::string_view id, const Use& use) {
    const std::lock_guard lock(mutex);
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.node.id == id; });
    if (found == entries.end()) return make_error(ErrorCode::kNotFound, "no node '{}' is registered", id);
    use(found);
    return {};
  }

  bool is_healthy(const Entry& entry, TimePoint now) const {
    const auto timeout = options.heartbeat_timeout;
    return !entry.broken && (timeout.count() == 0 || now - entry.heard <= timeout);
  }
};

NodeRegistry::NodeRegistry(RegistryOptions options) : state_(std::make_unique<State>()) {
  if (!options.now) options.now = [] { return std::chrono::steady_clock::now(); };
  state_->options = std::move(options);
}

NodeRegistry::~NodeRegistry() = default;

Status NodeRegistry::register_node(Node node) {
  if (node.id.empty()) return make_error(ErrorCode::kInvalidArgument, "a node needs an id");
  const TimePoint now = state_->options.now();
  const std::lock_guard lock(state_->mutex);
  for (const Entry& entry : state_->entries) {
    if (entry.node.id == node.id) {
      return make_error(ErrorCode::kInvalidArgument, "node '{}' is registered already, with address '{}'", node.id,
                        entry.node.address);
    }
  }
  state_->entries.push_back({.node = std::move(node), .heard = now});
  return {};
}

Status NodeRegistry::unregister_node(std::string_view id) {
  return state_->with(id, [&](auto entry) { state_->entries.erase(entry); });
}

Status NodeRegistry::heartbeat(std::string_view id) {
  const TimePoint now = state_->options.now();
  return state_->with(id, [&](auto entry) {
    entry->heard = now;
    entry->broken = false;
  });
}

Status NodeRegistry::mark_unhealthy(std::string_view id) {
  return state_->with(id, [](auto entry) { entry->broken = true; });
}

Result<Node> NodeRegistry::find(std::string_view id) const {
  Node node;
  BF_TRY(state_->with(id, [&](auto entry) { node = entry->node; }));
  return node;
}

bool NodeRegistry::is_healthy(std::string_view id) const {
  const TimePoint now = state_->options.now();
  bool healthy = false;
  const Status found = state_->with(id, [&](auto entry) { healthy = state_->is_healthy(*entry, now); });
  return found && healthy;
}

std::vector<Node> NodeRegistry::list() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<Node> nodes;
  for (const Entry& entry : state_->entries) nodes.push_back(entry.node);
  return nodes;
}

std::vector<Node> NodeRegistry::healthy() const {
  const TimePoint now = state_->options.now();
  const std::lock_guard lock(state_->mutex);
  std::vector<Node> nodes;
  for (const Entry& entry : state_->entries) {
    if (state_->is_healthy(entry, now)) nodes.push_back(entry.node);
  }
  return nodes;
}

}  // namespace butterfly
