#include "butterfly/load_balancer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "butterfly/plan/cost/load_balance.h"

namespace butterfly {

struct LoadBalancer::State {
  struct Account {
    double active = 0.0;
    std::uint64_t tickets_held = 0;
    std::uint64_t served = 0;
    std::uint64_t last_turn = 0;  // 0: never
    double credit = 0.0;          // kWeighted
  };
  std::mutex mutex;
  std::map<std::string, Account> accounts;
  std::uint64_t turn = 0;

  /// The candidate with the smallest key(account); of equal ones the longest waiting, then the first.
  template <typename Key>
  std::size_t smallest(const std::vector<Node>& candidates, const Key& key) {
    const auto rank = [&](const Node& node) {
      const Account& account = accounts[node.id];
      return std::pair(key(account), account.last_turn);
    };
    std::size_t best = 0;
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      if (rank(candidates[i]) < rank(candidates[best])) best = i;
    }
    return best;
  }

  /// Each round every node earns its weight, and the richest pays the sum of all: over time nodes are chosen in
  /// proportion to their weights, and never in bursts.
  std::size_t weighted(const std::vector<Node>& candidates) {
    double least_known = 0.0;
    for (const Node& node : candidates) {
      const double weight = node.capability.memory_bandwidth_gb_per_s;
      if (weight > 0.0 && (least_known == 0.0 || weight < least_known)) least_known = weight;
    }
    double sum = 0.0;
    std::size_t best = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const double known = candidates[i].capability.memory_bandwidth_gb_per_s;
      const double weight = known > 0.0 ? known : std::max(least_known, 1.0);
      sum += weight;
      accounts[candidates[i].id].credit += weight;
      if (accounts[candidates[i].id].credit > accounts[candidates[best].id].credit) best = i;
    }
    accounts[candidates[best].id].credit -= sum;
    return best;
  }

  /// Nodes that left and serve nothing any more need no account.
  void forget(const std::vector<Node>& registered) {
    std::erase_if(accounts, [&](const auto& entry) {
      return entry.second.tickets_held == 0 && std::none_of(registered.begin(), registered.end(),
                                                            [&](const Node& node) { return node.id == entry.first; });
    });
  }
};

LoadBalancer::Ticket::Ticket(std::shared_ptr<State> state, Node node, double cost)
    : state_(std::move(state)), node_(std::move(node)), cost_(cost) {}

LoadBalancer::Ticket::Ticket(Ticket&& other) noexcept
    : state_(std::move(other.state_)), node_(std::move(other.node_)), cost_(other.cost_) {}

LoadBalancer::Ticket& LoadBalancer::Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    give_back();
    state_ = std::move(other.state_);
    node_ = std::move(other.node_);
    cost_ = other.cost_;
  }
  return *this;
}

LoadBalancer::Ticket::~Ticket() {
  give_back();
}

void LoadBalancer::Ticket::give_back() {
  if (!state_) return;  // moved from
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->accounts.find(node_.id);
  if (found == state_->accounts.end()) return;
  State::Account& account = found->second;
  // Exactly zero when idle, whatever sums of fractions leave behind.
  account.active = --account.tickets_held == 0 ? 0.0 : account.active - cost_;
}

LoadBalancer::LoadBalancer(const NodeRegistry& registry, BalancePolicy policy)
    : registry_(&registry), policy_(policy), state_(std::make_shared<State>()) {}

Result<LoadBalancer::Ticket> LoadBalancer::acquire(double cost) {
  if (!(cost >= 0.0) || !std::isfinite(cost)) {
    return make_error(ErrorCode::kInvalidArgument, "a request costs {}, expected a number that is not negative", cost);
  }
  const std::vector<Node> registered = registry_->list();
  const std::vector<Node> candidates = registry_->healthy();
  if (candidates.empty()) {
    return make_error(ErrorCode::kUnavailable, "none of {} registered nodes is healthy", registered.size());
  }
  const std::lock_guard lock(state_->mutex);
  state_->forget(registered);
  std::size_t chosen = 0;
  switch (policy_) {
    case BalancePolicy::kRoundRobin:
      chosen = state_->smallest(candidates, [](const State::Account&) { return 0; });
      break;
    case BalancePolicy::kLeastLoaded:
      chosen = state_->smallest(candidates, [](const State::Account& account) { return account.active; });
      break;
    case BalancePolicy::kWeighted:
      chosen = state_->weighted(candidates);
      break;
  }
  State::Account& account = state_->accounts[candidates[chosen].id];
  account.active += cost;
  account.tickets_held += 1;
  account.served += 1;
  account.last_turn = ++state_->turn;
  return Ticket(state_, candidates[chosen], cost);
}

double LoadBalancer::load_balance_factor() const {
  const std::vector<Node> healthy = registry_->healthy();
  const bool known =
      std::ranges::all_of(healthy, [](const Node& node) { return node.capability.memory_bandwidth_gb_per_s > 0.0; });
  std::vector<double> node_s;
  const std::lock_guard lock(state_->mutex);
  for (const Node& node : healthy) {
    const auto found = state_->accounts.find(node.id);
    const double active = found == state_->accounts.end() ? 0.0 : found->second.active;
    node_s.push_back(known ? active / node.capability.memory_bandwidth_gb_per_s : active);
  }
  return butterfly::load_balance_factor(node_s);
}

std::vector<NodeLoad> LoadBalancer::loads() const {
  std::vector<NodeLoad> loads;
  const std::vector<Node> registered = registry_->list();
  const std::lock_guard lock(state_->mutex);
  for (const Node& node : registered) {
    const auto found = state_->accounts.find(node.id);
    const State::Account account = found == state_->accounts.end() ? State::Account{} : found->second;
    loads.push_back({.node_id = node.id, .active = account.active, .served = account.served});
  }
  return loads;
}

}  // namespace butterfly
