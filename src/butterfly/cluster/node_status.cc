#include "butterfly/cluster/node_status.h"

#include <algorithm>

#include "butterfly/cluster/control_link.h"

namespace butterfly {
namespace {

Result<control::ControlMessage> ask(const std::string& address, const control::ControlMessage& question,
                                    const NodeAccess& access, Deadline deadline) {
  ConnectOptions connecting;
  connecting.introduction = {.role = ConnectionRole::kStatus, .session = make_session_id(), .label = "status"};
  connecting.access = access;
  BF_ASSIGN_OR_RETURN(ChannelPtr channel, connect_tcp(address, connecting, deadline));
  ControlLink link(std::move(channel));
  BF_TRY(link.send(question));
  BF_ASSIGN_OR_RETURN(auto answer, link.receive(deadline));
  if (answer.has_failure()) return tl::unexpected(read_failure(answer.failure(), address));
  return answer;
}

Result<WorkerStatus> read_worker(const control::WorkerStatus& message) {
  WorkerStatus status;
  BF_ASSIGN_OR_RETURN(status.node, read_node(message.node()));
  status.coordinator = message.coordinator();
  status.epoch = Epoch(message.epoch());
  status.model = message.model();
  status.stage = {.first_layer = message.stage().first_layer(),
                  .last_layer = message.stage().last_layer(),
                  .embedding = message.stage().embedding(),
                  .head = message.stage().head(),
                  .lanes = {.first = message.stage().first_lane(), .last = message.stage().last_lane()}};
  status.memory_bytes = message.memory_bytes();
  status.steps = message.steps();
  status.busy_s = static_cast<double>(message.busy_ns()) * 1e-9;
  status.uptime_s = static_cast<double>(message.uptime_ns()) * 1e-9;
  return status;
}

Result<CoordinatorStatus> read_coordinator(const control::CoordinatorStatus& message) {
  CoordinatorStatus status{
      .name = message.name(), .epoch = Epoch(message.epoch()), .last_change = message.last_change()};
  for (const auto& one : message.members()) {
    BF_ASSIGN_OR_RETURN(NodeDescriptor node, read_node(one.node()));
    node.address = one.address();
    status.members.push_back({.node = std::move(node), .phi = one.phi(), .leaving = one.leaving()});
  }
  return status;
}

double seconds_since(Deadline begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
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

Result<std::vector<LinkStatus>> ask_links(const std::string& from, const std::vector<std::string>& to,
                                          const NodeAccess& access, Deadline deadline) {
  control::ControlMessage question;
  for (const std::string& address : to) question.mutable_measure_links()->add_addresses(address);
  BF_ASSIGN_OR_RETURN(const auto answer, ask(from, question, access, deadline));
  if (!answer.has_links()) {
    return make_error(ErrorCode::kProtocol, "{} answered a question about its links with something else", from);
  }
  std::vector<LinkStatus> links;
  for (const auto& one : answer.links().links()) {
    links.push_back({.to = one.address(),
                     .link = {.latency_us = one.latency_us(), .gb_per_s = one.gb_per_s()},
                     .error = one.error()});
  }
  return links;
}

Result<LinkDescriptor> measure_link(const std::string& address, const NodeAccess& access, Deadline deadline) {
  constexpr int kRoundTrips = 51;
  constexpr int kBulkMessages = 8;
  constexpr std::uint64_t kSmallBytes = 64;
  constexpr std::uint64_t kBulkBytes = 1 << 20;
  ConnectOptions connecting;
  connecting.introduction = {.role = ConnectionRole::kProbe, .session = make_session_id(), .label = "probe"};
  connecting.access = access;
  BF_ASSIGN_OR_RETURN(const ChannelPtr channel, connect_tcp(address, connecting, deadline));

  BF_ASSIGN_OR_RETURN(const Payload small, allocate_payload(kSmallBytes));
  std::vector<double> round_trips_s;
  for (int i = 0; i < kRoundTrips; ++i) {
    const Deadline begin = std::chrono::steady_clock::now();
    BF_TRY(channel->send({.payload = small}, deadline));
    BF_TRY(channel->receive({}, deadline));
    round_trips_s.push_back(seconds_since(begin));
  }
  std::ranges::nth_element(round_trips_s, round_trips_s.begin() + kRoundTrips / 2);

  BF_ASSIGN_OR_RETURN(const Payload bulk, allocate_payload(kBulkBytes));
  const Deadline begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kBulkMessages; ++i) BF_TRY(channel->send({.payload = bulk}, deadline));
  for (int i = 0; i < kBulkMessages; ++i) BF_TRY(channel->receive({}, deadline));
  const double bytes = static_cast<double>(kBulkBytes) * kBulkMessages;
  return LinkDescriptor{.latency_us = round_trips_s[kRoundTrips / 2] / 2 * 1e6,
                        .gb_per_s = bytes / seconds_since(begin) * 1e-9};
}

}  // namespace butterfly
