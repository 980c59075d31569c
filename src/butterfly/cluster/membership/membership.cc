#include "butterfly/cluster/membership/membership.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <set>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/node_status.h"
#include "butterfly/cluster/membership/join_server.h"
#include "butterfly/cluster/membership/remote_cluster.h"
#include "butterfly/cluster/membership/worker_recordings.h"
#include "butterfly/cluster/membership/worker_registry.h"
#include "butterfly/machine/usage/recorded_process.h"

namespace butterfly {
namespace {

class TcpMembership final : public Membership {
 public:
  explicit TcpMembership(const ClusterOptions& options) : registry_(options, coordinator_name(options)) {}

  Status open_join_server(const MembershipOptions& options) {
    if (options.join_at.empty()) return {};
    BF_ASSIGN_OR_RETURN(auto listener,
                        Listener::create({.address = options.join_at, .access = options.cluster.access}));
    join_server_ = std::make_unique<JoinServer>(
        std::move(listener), registry_, [this] { return Epoch(epoch_); }, options.rebalance);
    return {};
  }

  Status handshake_all(const std::vector<std::string>& workers, Deadline deadline, const std::stop_token& stop) {
    return registry_.handshake_all(workers, deadline, stop);
  }

  /// Where this process is recorded, its workers are.
  void record_workers(const std::string& folder) {
    if (!folder.empty()) recordings_.emplace(folder, registry_.options().access, [this] { return members().nodes; });
  }

  Members members() const override {
    // The version first: a change meanwhile makes the answer look old, never new.
    Members members{.version = registry_.version()};
    for (const RemoteWorkerPtr& member : registry_.usable()) members.nodes.push_back(member->node);
    return members;
  }
  std::uint64_t version() const override { return registry_.version(); }
  bool wait_for_change(std::uint64_t version, Deadline deadline, std::stop_token stop) const override {
    return registry_.wait_for_change(version, deadline, std::move(stop));
  }
  std::string last_change() const override { return registry_.last_change(); }

  std::unique_ptr<ClusterSession> next_epoch(const Members& members) override {
    ++epoch_;
    std::vector<RemoteWorkerPtr> chosen;
    const std::vector<RemoteWorkerPtr> usable = registry_.usable();
    for (const NodeDescriptor& node : members.nodes) {
      const auto found = std::ranges::find(usable, node.address, [](const auto& one) { return one->address; });
      chosen.push_back(found != usable.end() ? *found : absent(node));
    }
    return std::make_unique<RemoteCluster>(registry_, std::move(chosen));
  }
  std::vector<std::vector<LinkDescriptor>> links(const Members& members, Deadline deadline,
                                                 const std::stop_token& stop) const override {
    const auto& nodes = members.nodes;
    std::vector<std::vector<LinkDescriptor>> matrix(nodes.size(), std::vector<LinkDescriptor>(nodes.size()));
    for (std::size_t from = 0; from < nodes.size() && !stop.stop_requested(); ++from) {
      LinkQuestion question{.session = registry_.session(), .stop = stop};
      for (const NodeDescriptor& node : nodes) {
        if (node.address != nodes[from].address) question.to.push_back(node.address);
      }
      const auto measured = ask_links(nodes[from].address, question, registry_.options().access, deadline);
      if (!measured) log().warn("links of worker {} are unknown: {}", nodes[from].address, measured.error().message);
      for (std::size_t to = 0; measured && to < nodes.size(); ++to) {
        const auto link = std::ranges::find(*measured, nodes[to].address, &LinkStatus::to);
        if (link != measured->end() && link->error.empty()) matrix[from][to] = link->link;
      }
    }
    return matrix;
  }
  void leave_out(const std::string& address) override {
    registry_.expel(address, {.code = ErrorCode::kUnavailable, .message = "it cannot work with the others"});
  }
  Epoch epoch() const override { return Epoch(epoch_); }
  std::string join_address() const override { return join_server_ ? join_server_->address() : std::string(); }

 private:
  /// Stands for a member that has gone since the plan was made.
  static RemoteWorkerPtr absent(const NodeDescriptor& node) {
    auto member = std::make_shared<RemoteWorker>();
    member->address = node.address;
    member->node = node;
    return member;
  }

  WorkerRegistry registry_;
  std::atomic<std::uint32_t> epoch_{0};
  std::unique_ptr<JoinServer> join_server_;
  std::optional<WorkerRecordings> recordings_;  // last: fetched while the workers are still members
};

}  // namespace

std::string coordinator_name(const ClusterOptions& options) {
  if (!options.name.empty()) return options.name.substr(0, kLabelBytesMax);
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  const std::string process = fmt::format(", process {}", ::getpid());
  return std::string(host.data()).substr(0, kLabelBytesMax - process.size()) + process;
}

Result<std::unique_ptr<Membership>> Membership::create(const MembershipOptions& options, Deadline deadline,
                                                       const std::stop_token& stop) {
  if (options.workers.empty() && options.join_at.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "no workers were named");
  }
  std::set<std::string> seen;
  for (const std::string& address : options.workers) {
    if (!seen.insert(address).second) {
      return make_error(ErrorCode::kInvalidArgument, "worker {} is named twice", address);
    }
  }
  auto membership = std::make_unique<TcpMembership>(options.cluster);
  BF_TRY(membership->open_join_server(options));
  BF_TRY(membership->handshake_all(options.workers, deadline, stop));
  membership->record_workers(record_folder());
  return membership;
}

}  // namespace butterfly
