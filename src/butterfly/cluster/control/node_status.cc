#include "butterfly/cluster/control/node_status.h"

#include <cmath>

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/control/link_probe.h"

namespace butterfly {
namespace {

Result<control::ControlMessage> ask(const std::string& address, const control::ControlMessage& question,
                                    const NodeAccess& access, Deadline deadline,
                                    const SessionId& session = make_session_id(), const std::stop_token& stop = {}) {
  ConnectOptions connecting;
  connecting.introduction = {.role = ConnectionRole::kStatus, .session = session, .label = "status"};
  connecting.access = access;
  connecting.stop = stop;
  BF_ASSIGN_OR_RETURN(ChannelPtr channel, connect_tcp(address, connecting, deadline));
  ControlLink link(std::move(channel));
  const std::stop_callback give_up(stop, [&] { link.close(); });
  BF_TRY(link.send(question));
  BF_ASSIGN_OR_RETURN(auto answer, link.receive(deadline));
  if (answer.has_failure()) return tl::unexpected(read_failure(answer.failure(), address));
  return answer;
}

/// What a peer says of its use of its machine.
template <typename Windows>
Result<std::vector<UsageWindow>> read_usage(const Windows& said) {
  constexpr int kWindowsMax = 8;
  if (said.size() > kWindowsMax) {
    return make_error(ErrorCode::kProtocol, "a node says what it used over {} spans of time, the limit is {}",
                      said.size(), kWindowsMax);
  }
  std::vector<UsageWindow> usage;
  for (const control::UsageWindow& one : said) {
    for (const double number :
         {one.seconds(), one.cpu(), one.busy(), one.received_bytes_per_s(), one.sent_bytes_per_s()}) {
      if (!std::isfinite(number) || number < 0) {
        return make_error(ErrorCode::kProtocol, "a node says that it used {} of something", number);
      }
    }
    usage.push_back({.seconds = one.seconds(),
                     .cpu = one.cpu(),
                     .busy = one.busy(),
                     .memory_bytes = one.memory_bytes(),
                     .received_bytes_per_s = one.received_bytes_per_s(),
                     .sent_bytes_per_s = one.sent_bytes_per_s()});
  }
  return usage;
}

RankStatus read_training(const control::TrainingStatus& message) {
  return {.model = message.model(),
          .rank = static_cast<int>(message.rank()),
          .ranks = static_cast<int>(message.ranks()),
          .step = static_cast<std::int64_t>(message.step()),
          .steps = static_cast<std::int64_t>(message.steps()),
          .loss = message.loss(),
          .computing_s = static_cast<double>(message.computing_ns()) * 1e-9,
          .waiting_s = static_cast<double>(message.waiting_ns()) * 1e-9};
}

Result<WorkerStatus> read_worker(const control::WorkerStatus& message) {
  WorkerStatus status;
  BF_ASSIGN_OR_RETURN(status.node, read_node(message.node()));
  status.coordinator = message.coordinator();
  status.epoch = Epoch(message.epoch());
  status.model = message.model();
  for (const control::Stage& stage : message.stages()) status.stages.push_back(read_stage(stage));
  status.memory_bytes = message.memory_bytes();
  status.steps = message.steps();
  status.busy_s = static_cast<double>(message.busy_ns()) * 1e-9;
  status.uptime_s = static_cast<double>(message.uptime_ns()) * 1e-9;
  BF_ASSIGN_OR_RETURN(status.usage, read_usage(message.usage()));
  status.measuring = message.measuring();
  if (message.has_training()) status.training = read_training(message.training());
  return status;
}

constexpr int kMembersMax = 4096;  // who looks at a cluster asks each of them

Result<CoordinatorStatus> read_coordinator(const control::CoordinatorStatus& message) {
  CoordinatorStatus status{
      .name = message.name(), .epoch = Epoch(message.epoch()), .last_change = message.last_change()};
  BF_ASSIGN_OR_RETURN(status.usage, read_usage(message.usage()));
  if (message.members_size() > kMembersMax) {
    return make_error(ErrorCode::kProtocol, "a coordinator says that it has {} workers, the limit is {}",
                      message.members_size(), kMembersMax);
  }
  for (const auto& one : message.members()) {
    BF_ASSIGN_OR_RETURN(NodeDescriptor node, read_node(one.node()));
    node.address = one.address();
    status.members.push_back({.node = std::move(node), .phi = one.phi(), .leaving = one.leaving()});
  }
  return status;
}

/// What a peer says of a link.
Result<LinkStatus> read_link(const control::Link& message, const std::string& from) {
  constexpr int kTimesMax = 16;
  LinkStatus link{
      .to = message.address(),
      .link = {.latency_us = message.latency_us(), .gb_per_s = message.gb_per_s(), .wake_us = message.wake_us()},
      .age_s = message.age_s(),
      .error = message.error()};
  bool sane = message.times_size() <= kTimesMax;
  const auto check = [&](double number) { sane = sane && std::isfinite(number) && number >= 0; };
  for (const double number : {link.link.latency_us, link.link.gb_per_s, link.link.wake_us, link.age_s}) check(number);
  for (const auto& time : message.times()) {
    check(time.us());
    if (sane) link.times.push_back({.bytes = time.bytes(), .us = time.us()});
  }
  if (!sane) return make_error(ErrorCode::kProtocol, "{} says of a link what cannot be measured", from);
  return link;
}

}  // namespace

Result<NodeStatus> ask_status(const std::string& address, const NodeAccess& access, Deadline deadline) {
  control::ControlMessage question;
  question.mutable_status_wanted();
  BF_ASSIGN_OR_RETURN(const auto answer, ask(address, question, access, deadline));
  NodeStatus status;
  if (answer.has_worker_status()) {
    BF_ASSIGN_OR_RETURN(status.worker, read_worker(answer.worker_status()));
    status.worker->node.address = address;
  } else if (answer.has_coordinator_status()) {
    BF_ASSIGN_OR_RETURN(status.coordinator, read_coordinator(answer.coordinator_status()));
  } else {
    return make_error(ErrorCode::kProtocol, "{} answered a question about its status with something else", address);
  }
  return status;
}

Result<std::vector<LinkStatus>> ask_links(const std::string& from, const LinkQuestion& question,
                                          const NodeAccess& access, Deadline deadline) {
  control::ControlMessage asked;
  for (const std::string& address : question.to) asked.mutable_measure_links()->add_addresses(address);
  asked.mutable_measure_links()->set_fresh(question.fresh);
  BF_ASSIGN_OR_RETURN(const auto answer, ask(from, asked, access, deadline, question.session, question.stop));
  if (!answer.has_links()) {
    return make_error(ErrorCode::kProtocol, "{} answered a question about its links with something else", from);
  }
  std::vector<LinkStatus> links;
  for (const auto& one : answer.links().links()) {
    BF_ASSIGN_OR_RETURN(LinkStatus link, read_link(one, from));
    links.push_back(std::move(link));
  }
  return links;
}

Result<std::string> ask_rebalance(const std::string& address, const NodeAccess& access, Deadline deadline) {
  control::ControlMessage question;
  question.mutable_rebalance_wanted();
  BF_ASSIGN_OR_RETURN(const auto answer, ask(address, question, access, deadline));
  if (!answer.has_rebalanced()) {
    return make_error(ErrorCode::kProtocol, "{} is no coordinator that could plan again", address);
  }
  return answer.rebalanced().outcome();
}

Result<LinkStatus> measure_link(const std::string& address, const NodeAccess& access, Deadline deadline,
                                const std::stop_token& stop) {
  ConnectOptions connecting;
  connecting.introduction = {.role = ConnectionRole::kProbe, .session = make_session_id(), .label = "probe"};
  connecting.channel.spin = std::chrono::milliseconds(1);  // only the other side may sleep
  connecting.access = access;
  connecting.stop = stop;
  BF_ASSIGN_OR_RETURN(const ChannelPtr channel, connect_tcp(address, connecting, deadline));
  const std::stop_callback give_up(stop, [&] { channel->close(); });

  BF_ASSIGN_OR_RETURN(LinkStatus status, probe_link(*channel, deadline));
  status.to = address;
  return status;
}

}  // namespace butterfly
