#include "butterfly/cluster/worker/stage_connections.h"

namespace butterfly {
namespace {

constexpr std::uint16_t kLoadedMessage = 5;  // between members; without meta or payload

}  // namespace

Status StageConnections::open(const std::stop_token& stop) {
  if (!assignment_.next_address.empty()) {
    BF_ASSIGN_OR_RETURN(output_, dial(assignment_.next_address, input_label(Rank(assignment_.rank.value + 1)),
                                      output_label(assignment_.rank), stop));
  } else if (assignment_.leads()) {
    BF_ASSIGN_OR_RETURN(output_, wait_for(output_label(assignment_.rank)));
  }
  return assignment_.group.empty() ? Status{} : open_group(stop);
}

Status StageConnections::open_group(const std::stop_token& stop) {
  const auto members = static_cast<int>(assignment_.group.size());
  group_.resize(assignment_.group.size());
  // Dialling first: a worker that others wait for has dialled before it waits itself.
  for (int member = assignment_.member + 1; member < members; ++member) {
    const auto index = static_cast<std::size_t>(member);
    BF_ASSIGN_OR_RETURN(group_[index],
                        dial(assignment_.group[index], member_label(assignment_.rank, assignment_.member),
                             member_label(assignment_.rank, member), stop));
  }
  for (int member = 0; member < assignment_.member; ++member) {
    BF_ASSIGN_OR_RETURN(group_[static_cast<std::size_t>(member)], wait_for(member_label(assignment_.rank, member)));
  }
  BF_ASSIGN_OR_RETURN(exchange_, GroupExchange::create(assignment_.member, group_,
                                                       {.epoch = assignment_.epoch,
                                                        .shared_memory = options_.shared_memory,
                                                        .member_timeout = options_.wait_timeout,
                                                        .spin = options_.spin}));
  return {};
}

Status StageConnections::announce_loaded() const {
  for (const auto& member : group_) {
    if (member) BF_TRY(member->send_borrowed({.type = kLoadedMessage, .epoch = assignment_.epoch}));
  }
  return {};
}

Status StageConnections::await_loaded() const {
  for (const auto& member : group_) {
    if (!member) continue;
    BF_ASSIGN_OR_RETURN(const Message message, member->receive(refuse_payload, Deadline::max()));
    if (message.type == kLoadedMessage && message.epoch == assignment_.epoch) continue;
    return make_error(ErrorCode::kProtocol,
                      "{} sent a message of type {} and epoch {} before it had loaded its share of epoch {}",
                      member->peer(), message.type, message.epoch.value, assignment_.epoch.value);
  }
  return {};
}

Result<StageLinks> StageConnections::complete() {
  StageLinks links{.output = output_.get(), .exchange = exchange_.get()};
  if (!assignment_.leads()) {
    links.input = group_.front().get();
    return links;
  }
  BF_ASSIGN_OR_RETURN(input_, wait_for(input_label(assignment_.rank)));
  links.input = input_.get();
  for (const auto& follower : group_) {
    if (follower) links.followers.push_back(follower.get());
  }
  return links;
}

/// `there` and `here` are the names of the connection at its two ends.
Result<std::shared_ptr<Channel>> StageConnections::dial(const std::string& address, const std::string& there,
                                                        const std::string& here, const std::stop_token& stop) {
  ConnectOptions connecting;
  connecting.access = options_.access;
  connecting.introduction = {
      .role = ConnectionRole::kData, .session = session_, .label = data_label(there, assignment_.epoch)};
  connecting.channel.spin = options_.spin;
  connecting.stop = stop;
  BF_ASSIGN_OR_RETURN(ChannelPtr channel,
                      connect_tcp(address, connecting, std::chrono::steady_clock::now() + options_.connect_timeout));
  return hub_.keep(here, assignment_.epoch, std::move(channel));
}

Result<std::shared_ptr<Channel>> StageConnections::wait_for(const std::string& what) {
  auto channel = hub_.wait(what, assignment_.epoch, std::chrono::steady_clock::now() + options_.wait_timeout);
  if (!channel) {
    return make_error(ErrorCode::kUnavailable, "nobody opened its '{}' connection within {} ms", what,
                      options_.wait_timeout.count());
  }
  return channel;
}

}  // namespace butterfly
