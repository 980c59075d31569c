#include "butterfly/cluster/worker/status_server.h"

#include <sys/mman.h>

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/control/node_status.h"
#include "butterfly/cluster/control/recording_server.h"

namespace butterfly {
namespace {

constexpr std::int64_t kQuestionMs = 2000;
constexpr std::int64_t kProbeMs = 5000;
constexpr std::uint64_t kProbeBytesMax = 4 << 20;
constexpr int kLinksMax = 256;
constexpr std::int64_t kLinksMs = 60'000;  // for all of them

/// Where the messages of one probe go, one after the other. Beside the heap, which would keep the pages of each thread
/// that served such a client.
class ProbeRoom {
 public:
  Result<Payload> take(std::uint64_t bytes) {
    if (bytes > kProbeBytesMax) {
      return make_error(ErrorCode::kProtocol, "a probe of {} bytes, the limit is {}", bytes, kProbeBytesMax);
    }
    if (bytes > room_.bytes.size()) {
      void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pages == MAP_FAILED) return make_error(ErrorCode::kNoMemory, "there are no {} bytes for a probe", bytes);
      room_.owner = std::shared_ptr<void>(pages, [bytes](void* all) { ::munmap(all, bytes); });
      room_.bytes = {static_cast<std::byte*>(pages), bytes};
    }
    return Payload{.owner = room_.owner, .bytes = room_.bytes.first(bytes)};
  }

 private:
  Payload room_;  // its owner is also that of a message that is being read
};

}  // namespace

StatusServer::StatusServer(NodeAccess access, Answers answers)
    : access_(std::move(access)),
      answers_(std::move(answers)),
      usage_(answers_.busy_s),
      links_([this](const std::string& address) {
        return measure_link(address, access_, after_ms(kProbeMs), ending_.get_token());
      }) {}

StatusServer::~StatusServer() {
  ending_.request_stop();
  {
    std::lock_guard lock(mutex_);
    for (const Visit& visit : visits_) {
      if (visit.channel) visit.channel->close();
    }
  }
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
  visit.thread = std::jthread([this, role, session = arrival.introduction.session, &visit] {
    {
      std::shared_ptr<Channel> channel;
      {
        std::lock_guard begin(mutex_);
        channel = visit.channel;
      }
      if (role == ConnectionRole::kStatus) {
        answer(channel, session);
      } else {
        echo(*channel);
      }
    }
    // What it has sent so far must not lie here until the next client comes.
    std::shared_ptr<Channel> done;
    std::lock_guard end(mutex_);
    done = std::move(visit.channel);
    visit.over = true;
  });
  return true;
}

void StatusServer::answer(const std::shared_ptr<Channel>& channel, const SessionId& session) {
  ControlLink link(channel);
  const auto question = link.receive(after_ms(kQuestionMs));
  if (!question) return;
  control::ControlMessage said;
  if (question->has_recording_wanted()) return serve_recording(link, answers_.is_session ? "worker" : "coordinator");
  if (question->has_status_wanted()) {
    answers_.status(said);
    add_usage(said);
  } else if (question->has_measure_links() && question->measure_links().addresses_size() <= kLinksMax) {
    answer_links(question->measure_links(), session, *channel, said);
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
  if (!answers_.is_session) {
    return make_error(ErrorCode::kInvalidArgument, "this node is no worker: it measures no links for others");
  }
  if (access_.credentials || access_.policy == AddressPolicy::kLoopbackOnly) return {};
  if (answers_.is_session(session)) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "without credentials a worker measures links for its coordinator only, who names its session");
}

void StatusServer::answer_links(const control::MeasureLinks& question, const SessionId& session, const Channel& client,
                                control::ControlMessage& said) {
  if (const Status allowed = may_dial(session); !allowed) return store(allowed.error(), *said.mutable_failure());
  using Freshness = LinkBook::Freshness;
  const Freshness freshness = question.fresh() ? Freshness::kMeasuredNow : Freshness::kRemembered;
  const Deadline deadline = after_ms(kLinksMs);
  for (const std::string& address : question.addresses()) {
    if (ending_.stop_requested() || client.broken()) return;
    const LinkStatus link = std::chrono::steady_clock::now() < deadline
                                ? links_.look_up(address, freshness)
                                : LinkStatus{.to = address, .error = "there was no time left to measure it"};
    auto* one = said.mutable_links()->add_links();
    one->set_address(address);
    one->set_latency_us(link.link.latency_us);
    one->set_gb_per_s(link.link.gb_per_s);
    one->set_wake_us(link.link.wake_us);
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

void StatusServer::add_usage(control::ControlMessage& said) const {
  for (const UsageWindow& window : usage_.windows()) {
    control::UsageWindow* one = said.has_worker_status() ? said.mutable_worker_status()->add_usage()
                                                         : said.mutable_coordinator_status()->add_usage();
    one->set_seconds(window.seconds);
    one->set_cpu(window.cpu);
    one->set_busy(window.busy);
    one->set_memory_bytes(window.memory_bytes);
    one->set_received_bytes_per_s(window.received_bytes_per_s);
    one->set_sent_bytes_per_s(window.sent_bytes_per_s);
  }
}

void StatusServer::echo(Channel& channel) {
  const Deadline deadline = after_ms(kProbeMs);
  ProbeRoom room;
  for (;;) {
    const auto message = channel.receive([&](std::uint64_t bytes) { return room.take(bytes); }, deadline);
    if (!message || !channel.send({.tag = message->tag}, deadline)) return;
  }
}

}  // namespace butterfly
