#include "butterfly/cluster/visitors.h"

#include <atomic>

#include "butterfly/cluster/control_link.h"
#include "butterfly/cluster/node_status.h"

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

Visitors::Visitors(NodeAccess access, StatusFunction status) : access_(std::move(access)), status_(std::move(status)) {}

Visitors::~Visitors() {
  std::lock_guard lock(mutex_);
  for (Visit& visit : visits_) visit.channel->close();
  visits_.clear();  // joins
}

bool Visitors::receive(Arrival& arrival) {
  const ConnectionRole role = arrival.introduction.role;
  if (role != ConnectionRole::kStatus && role != ConnectionRole::kProbe) return false;
  std::lock_guard lock(mutex_);
  std::erase_if(visits_, [](const Visit& visit) { return visit.over.load(); });
  if (visits_.size() >= kVisitsMax) return true;  // closes the connection
  Visit& visit = visits_.emplace_back();
  visit.channel = std::move(arrival.channel);
  visit.thread = std::jthread([this, role, channel = visit.channel, &over = visit.over] {
    if (role == ConnectionRole::kStatus) {
      answer(channel);
    } else {
      echo(*channel);
    }
    over = true;
  });
  return true;
}

void Visitors::answer(const std::shared_ptr<Channel>& channel) const {
  ControlLink link(channel);
  const auto question = link.receive(after_ms(kQuestionMs));
  if (!question) return;
  control::ControlMessage said;
  if (question->has_status_wanted()) {
    status_(said);
  } else if (question->has_measure_links() && question->measure_links().addresses_size() <= kLinksMax) {
    auto* links = said.mutable_links();
    for (const std::string& address : question->measure_links().addresses()) {
      const auto measured = measure_link(address, access_, after_ms(kProbeMs));
      auto* one = links->add_links();
      one->set_address(address);
      if (measured) {
        one->set_latency_us(measured->latency_us);
        one->set_gb_per_s(measured->gb_per_s);
      } else {
        one->set_error(measured.error().message);
      }
    }
  } else {
    return;
  }
  static_cast<void>(link.send(said));
}

void Visitors::echo(Channel& channel) {
  const Deadline deadline = after_ms(kProbeMs);
  for (;;) {
    const auto message = channel.receive(probe_payload, deadline);
    if (!message || !channel.send({.tag = message->tag}, deadline)) return;
  }
}

}  // namespace butterfly
