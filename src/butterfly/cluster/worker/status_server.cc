#include "butterfly/cluster/worker/status_server.h"

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/control/node_status.h"

namespace butterfly {
namespace {

constexpr std::int64_t kQuestionMs = 2000;
constexpr std::int64_t kProbeMs = 5000;
constexpr std::uint64_t kProbeBytesMax = 4 << 20;
constexpr int kLinksMax = 256;

Result<Payload> probe_payload(std::uint64_t bytes) {
  if (bytes > kProbeBytesMax) {
    return make_error(ErrorCode::kProtocol, "a probe of {} bytes, the limit is {}", bytes, kProbeBytesMax);
  }
  return allocate_payload(bytes);
}

}  // namespace

StatusServer::StatusServer(NodeAccess access, Answers answers)
    : access_(std::move(access)),
      answers_(std::move(answers)),
      links_([this](const std::string& address) { return measure_link(address, access_, after_ms(kProbeMs)); }) {}

StatusServer::~StatusServer() {
  std::lock_guard lock(mutex_);
  for (Visit& visit : visits_) visit.channel->close();
  visits_.clear();  // joins
}

bool StatusServer::receive(Arrival& arrival) {
  const ConnectionRole role = arrival.introduction.role;
  if (role != ConnectionRole::kStatus && role != ConnectionRole::kProbe) return false;
  std::lock_guard lock(mutex_);
  std::erase_if(visits_, [](const Visit& visit) { return visit.over.load(); });
  if (visits_.size() >= kVisitsMax) return true;  // closes the connection
  Visit& visit = visits_.emplace_back();
  visit.channel = std::move(arrival.channel);
  visit.thread =
      std::jthread([this, role, session = arrival.introduction.session, channel = visit.channel, &over = visit.over] {
        if (role == ConnectionRole::kStatus) {
          answer(channel, session);
        } else {
          echo(*channel);
        }
        over = true;
      });
  return true;
}

void StatusServer::answer(const std::shared_ptr<Channel>& channel, const SessionId& session) {
  ControlLink link(channel);
  const auto question = link.receive(after_ms(kQuestionMs));
  if (!question) return;
  control::ControlMessage said;
  if (question->has_status_wanted()) {
    answers_.status(said);
  } else if (question->has_measure_links() && question->measure_links().addresses_size() <= kLinksMax) {
    answer_links(question->measure_links(), session, said);
  } else if (question->has_rebalance_wanted()) {
    answer_rebalance(said);
  } else {
    return;
  }
  static_cast<void>(link.send(said));
}

/// Nobody makes this node connect at doors of others. With credentials the other side proves that it belongs to the
/// cluster, and without them nodes stay on their machine; where neither holds, only the coordinator may send it around.
Status StatusServer::may_dial(const SessionId& session) const {
  if (access_.credentials || access_.policy == AddressPolicy::kLoopbackOnly) return {};
  if (answers_.is_session && answers_.is_session(session)) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "without credentials a worker measures links for its coordinator only, who names its session");
}

void StatusServer::answer_links(const control::MeasureLinks& question, const SessionId& session,
                                control::ControlMessage& said) {
  if (const Status allowed = may_dial(session); !allowed) return store(allowed.error(), *said.mutable_failure());
  using Freshness = LinkBook::Freshness;
  for (const std::string& address : question.addresses()) {
    const LinkStatus link =
        links_.look_up(address, question.fresh() ? Freshness::kMeasuredNow : Freshness::kRemembered);
    auto* one = said.mutable_links()->add_links();
    one->set_address(address);
    one->set_latency_us(link.link.latency_us);
    one->set_gb_per_s(link.link.gb_per_s);
    one->set_age_s(link.age_s);
    one->set_error(link.error);
    for (const LinkTime& time : link.times) {
      auto* sample = one->add_times();
      sample->set_bytes(time.bytes);
      sample->set_us(time.us);
    }
  }
  said.mutable_links();
}

void StatusServer::answer_rebalance(control::ControlMessage& said) const {
  const Result<std::string> outcome =
      answers_.rebalance ? answers_.rebalance()
                         : make_error(ErrorCode::kInvalidArgument, "this node is no coordinator: it has no plan");
  if (outcome) {
    said.mutable_rebalanced()->set_outcome(*outcome);
  } else {
    store(outcome.error(), *said.mutable_failure());
  }
}

void StatusServer::echo(Channel& channel) {
  const Deadline deadline = after_ms(kProbeMs);
  for (;;) {
    const auto message = channel.receive(probe_payload, deadline);
    if (!message || !channel.send({.tag = message->tag}, deadline)) return;
  }
}

}  // namespace butterfly
