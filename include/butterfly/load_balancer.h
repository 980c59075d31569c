// Which node serves the next request, and how evenly a model's work is shared out. A balancer chooses among a
// registry's healthy nodes and keeps account of what each is doing; a Generator has one over its replicas. Thread-safe.
// The registry must outlive the balancer; tickets may outlive both.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/node.h"
#include "butterfly/node_registry.h"

namespace butterfly {

enum class BalancePolicy : std::uint8_t {
  kRoundRobin,   // the node that waited longest
  kLeastLoaded,  // the smallest sum of costs now being served
  kWeighted,     // in proportion to memory bandwidth, spread evenly over time
};

/// What one node has of a model that is deployed.
struct NodeShare {
  std::string node_id{};
  int first_layer = 0;
  int last_layer = 0;  // not included
  int first_slice = 0;
  int last_slice = 32;
  std::uint64_t memory_bytes = 0;
  std::uint64_t steps = 0;   // by its node, since its worker began
  double step_s = 0.0;       // computing for one of them, at the mean; 0 where it has not told
  double predicted_s = 0.0;  // for a decode step; 0 where it was not measured
};

struct BalanceReport {
  std::vector<NodeShare> shares{};   // in pipeline order, replica by replica
  double load_balance_factor = 0.0;  // least over greatest node time of the replica where it is worst, as measured, or
                                     // as predicted where nothing was; 1 is perfect, 0 unknown
};

struct NodeLoad {
  std::string node_id;
  double active = 0.0;       // sum of the costs of tickets held
  std::uint64_t served = 0;  // tickets ever given out
};

class LoadBalancer {
 public:
  struct State;

  /// A request's place on a node; its cost is given back when the ticket ends.
  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept;
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket();
    const Node& node() const { return node_; }

   private:
    friend class LoadBalancer;
    Ticket(std::shared_ptr<State> state, Node node, double cost);
    void give_back();
    std::shared_ptr<State> state_;  // shared with the balancer, which may end before its tickets
    Node node_;
    double cost_ = 0.0;
  };

  explicit LoadBalancer(const NodeRegistry& registry, BalancePolicy policy = BalancePolicy::kLeastLoaded);

  /// `cost` is in any unit, for example tokens asked for. Errors: kUnavailable when no node is healthy;
  /// kInvalidArgument for a cost that is negative or not finite.
  Result<Ticket> acquire(double cost = 1.0);

  /// One entry for every registered node, in order of registration.
  std::vector<NodeLoad> loads() const;

  /// How evenly the requests that are being served lie on the healthy nodes: the least over the greatest node time, a
  /// node's time being the costs that it holds over its memory bandwidth (over 1 where that of any node is unknown).
  /// 1 is perfect; 0 where a node is idle beside one at work, or nothing is being served.
  double load_balance_factor() const;

 private:
  const NodeRegistry* registry_;
  BalancePolicy policy_;
  std::shared_ptr<State> state_;
};

}  // namespace butterfly
