#include "butterfly/cluster/membership/membership.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/node_status.h"
#include "butterfly/cluster/membership/remote_cluster.h"
#include "butterfly/cluster/membership/worker_registry.h"
#include "butterfly/cluster/worker/status_server.h"
#include "butterfly/wire/channel/address.h"

namespace butterfly {
namespace {

/// Takes announcements (each is a connection whose label is the address that the worker listens on) and visitors.
class Doorman {
 public:
  Doorman(std::unique_ptr<Listener> listener, Roster& roster, const std::atomic<std::uint32_t>& epoch,
          std::function<Result<std::string>()> rebalance)
      : listener_(std::move(listener)),
        roster_(roster),
        visitors_(roster.options().access, {.status =
                                                [&roster, &epoch](control::ControlMessage& answer) {
                                                  answer.mutable_coordinator_status()->set_epoch(epoch);
                                                  roster.describe(*answer.mutable_coordinator_status());
                                                },
                                            .rebalance = std::move(rebalance)}),
        thread_([this] { run(); }) {}
  ~Doorman() {
    listener_->close();
    thread_.join();
  }
  std::string address() const { return listener_->address(); }

 private:
  void run() {
    for (;;) {
      auto arrival = listener_->accept(after_ms(3'600'000));
      if (arrival) {
        meet(*arrival);
      } else if (arrival.error().code != ErrorCode::kTimeout) {
        if (arrival.error().code != ErrorCode::kCancelled) log().error("{}", arrival.error().message);
        return;
      }
    }
  }

  void meet(Arrival& arrival) {
    if (visitors_.receive(arrival)) return;
    const std::string& address = arrival.introduction.label;
    if (arrival.introduction.role != ConnectionRole::kJoin || !parse_address(address)) return;
    log().info("{} asks to join from {}", address, arrival.channel->peer());
    roster_.want(address);
  }

  const std::unique_ptr<Listener> listener_;
  Roster& roster_;
  Visitors visitors_;
  std::thread thread_;
};

class TcpMembership final : public Membership {
 public:
  explicit TcpMembership(const ClusterOptions& options) : roster_(options, coordinator_name(options)) {}

  Status open_door(const MembershipOptions& options) {
    if (options.join_at.empty()) return {};
    BF_ASSIGN_OR_RETURN(auto listener,
                        Listener::create({.address = options.join_at, .access = options.cluster.access}));
    doorman_ = std::make_unique<Doorman>(std::move(listener), roster_, epoch_, options.rebalance);
    return {};
  }

  Status greet_all(const std::vector<std::string>& workers, Deadline deadline) {
    return roster_.greet_all(workers, deadline);
  }

  Members members() const override {
    // The version first: a change meanwhile makes the answer look old, never new.
    Members members{.version = roster_.version()};
    for (const MemberPtr& member : roster_.usable()) members.nodes.push_back(member->node);
    return members;
  }
  std::uint64_t version() const override { return roster_.version(); }
  bool wait_for_change(std::uint64_t version, Deadline deadline, std::stop_token stop) const override {
    return roster_.wait_for_change(version, deadline, std::move(stop));
  }
  std::string last_change() const override { return roster_.last_change(); }

  std::unique_ptr<ClusterSession> next_epoch(const Members& members) override {
    ++epoch_;
    std::vector<MemberPtr> chosen;
    const std::vector<MemberPtr> usable = roster_.usable();
    for (const NodeDescriptor& node : members.nodes) {
      const auto found = std::ranges::find(usable, node.address, [](const auto& one) { return one->address; });
      chosen.push_back(found != usable.end() ? *found : absent(node));
    }
    return std::make_unique<RemoteCluster>(roster_, std::move(chosen));
  }
  std::vector<std::vector<LinkDescriptor>> links(const Members& members, Deadline deadline) const override {
    const auto& nodes = members.nodes;
    std::vector<std::vector<LinkDescriptor>> matrix(nodes.size(), std::vector<LinkDescriptor>(nodes.size()));
    for (std::size_t from = 0; from < nodes.size(); ++from) {
      LinkQuestion question{.session = roster_.session()};
      for (const NodeDescriptor& node : nodes) {
        if (node.address != nodes[from].address) question.to.push_back(node.address);
      }
      const auto measured = ask_links(nodes[from].address, question, roster_.options().access, deadline);
      if (!measured) log().warn("links of worker {} are unknown: {}", nodes[from].address, measured.error().message);
      for (std::size_t to = 0; measured && to < nodes.size(); ++to) {
        const auto link = std::ranges::find(*measured, nodes[to].address, &LinkStatus::to);
        if (link != measured->end() && link->error.empty()) matrix[from][to] = link->link;
      }
    }
    return matrix;
  }
  void leave_out(const std::string& address) override {
    roster_.expel(address, {.code = ErrorCode::kUnavailable, .message = "it cannot work with the others"});
  }
  Epoch epoch() const override { return Epoch(epoch_); }
  std::string join_address() const override { return doorman_ ? doorman_->address() : std::string(); }

 private:
  /// Stands for a member that has gone since the plan was made.
  static MemberPtr absent(const NodeDescriptor& node) {
    auto member = std::make_shared<Member>();
    member->address = node.address;
    member->node = node;
    return member;
  }

  Roster roster_;
  std::atomic<std::uint32_t> epoch_{0};
  std::unique_ptr<Doorman> doorman_;
};

}  // namespace

std::string coordinator_name(const ClusterOptions& options) {
  if (!options.name.empty()) return options.name.substr(0, kLabelBytesMax);
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  const std::string process = fmt::format(", process {}", ::getpid());
  return std::string(host.data()).substr(0, kLabelBytesMax - process.size()) + process;
}

Result<std::unique_ptr<Membership>> Membership::create(const MembershipOptions& options, Deadline deadline) {
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
  BF_TRY(membership->open_door(options));
  BF_TRY(membership->greet_all(options.workers, deadline));
  return membership;
}

}  // namespace butterfly
