#include "butterfly/cluster/membership/join_server.h"

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/wire/channel/address.h"

namespace butterfly {

JoinServer::JoinServer(std::unique_ptr<Listener> listener, WorkerRegistry& registry, std::function<Epoch()> epoch,
                       std::function<Result<std::string>()> rebalance)
    : listener_(std::move(listener)),
      registry_(registry),
      status_server_(registry.options().access,
                     {.status =
                          [&registry, epoch = std::move(epoch)](control::ControlMessage& answer) {
                            answer.mutable_coordinator_status()->set_epoch(epoch().value);
                            registry.describe(*answer.mutable_coordinator_status());
                          },
                      .rebalance = std::move(rebalance)}),
      thread_([this] { run(); }) {}

JoinServer::~JoinServer() {
  listener_->close();
  thread_.join();
}

void JoinServer::run() {
  for (;;) {
    auto arrival = listener_->accept(after_ms(3'600'000));
    if (arrival) {
      answer(*arrival);
    } else if (arrival.error().code != ErrorCode::kTimeout) {
      if (arrival.error().code != ErrorCode::kCancelled) log().error("{}", arrival.error().message);
      return;
    }
  }
}

void JoinServer::answer(Arrival& arrival) {
  if (status_server_.receive(arrival)) return;
  if (arrival.introduction.role != ConnectionRole::kJoin) return;
  // Numbers alone: nobody makes us ask a resolver, and one address has one form.
  const auto address = canonical_address(arrival.introduction.label);
  if (!address) return;
  const std::string from = arrival.channel->peer();
  log().info("{} asks to join from {}", *address, from);
  registry_.want(*address, arrival.node.empty() ? from.substr(0, from.rfind(':')) : "node " + arrival.node);
}

}  // namespace butterfly
