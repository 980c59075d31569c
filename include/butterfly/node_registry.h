// Which nodes there are, and which of them are healthy. Thread-safe. The registry keeps copies and starts no threads:
// a Generator feeds its own from the membership of its workers; others call heartbeat() when they hear from a node.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/node.h"

namespace butterfly {

struct RegistryOptions {
  /// A node not heard of for longer is not healthy; zero: registration is enough for ever.
  std::chrono::milliseconds heartbeat_timeout{10'000};
  std::function<std::chrono::steady_clock::time_point()> now{};  // empty: the steady clock
};

class NodeRegistry {
 public:
  explicit NodeRegistry(RegistryOptions options = {});
  ~NodeRegistry();
  NodeRegistry(const NodeRegistry&) = delete;
  NodeRegistry& operator=(const NodeRegistry&) = delete;

  /// Counts as hearing from the node. Errors: kInvalidArgument for an empty id or one that is registered already.
  Status register_node(Node node);

  /// Errors: kNotFound naming the id, as for every function below that takes one.
  Status unregister_node(std::string_view id);

  /// The node was heard of now; it is healthy again if it was marked otherwise.
  Status heartbeat(std::string_view id);

  /// The node is known to be broken: it stays registered, unhealthy until the next heartbeat.
  Status mark_unhealthy(std::string_view id);

  Result<Node> find(std::string_view id) const;
  bool is_healthy(std::string_view id) const;  // false for one that is not registered

  /// In order of registration.
  std::vector<Node> list() const;
  std::vector<Node> healthy() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace butterfly
