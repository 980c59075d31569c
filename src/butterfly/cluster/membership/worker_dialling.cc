// How a WorkerRegistry comes to have its members: those that are named, announced or lost.
#include <map>
#include <mutex>
#include <set>
#include <system_error>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/membership/worker_registry.h"

namespace butterfly {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDialTimeout{2000};
constexpr milliseconds kSignTimeout{5000};          // between two signs of life of a worker that measures
constexpr milliseconds kMeasuringTimeout{120'000};  // a worker that measures for longer is given up
constexpr milliseconds kFirstPause{100};            // between two attempts; doubled until the last
constexpr milliseconds kLastPause{2000};
constexpr int kStrangersAttempts = 5;      // to reach an address that never answered
constexpr int kLostAttempts = 40;          // one that did, and was not named: over a minute
constexpr milliseconds kTriedFor{30'000};  // that did not answer
constexpr std::size_t kTriedMax = 4096;

}  // namespace

/// A worker that was just started measures its speed first, and says so again and again.
Result<control::ControlMessage> WorkerRegistry::receive_hello(ControlLink& link, const std::string& address,
                                                              Deadline deadline) const {
  const Deadline patience = Deadline::clock::now() + kMeasuringTimeout;
  for (bool told = false;;) {
    auto answer = link.receive(deadline);
    if (!answer || !answer->has_measuring()) return answer;
    if (!std::exchange(told, true)) log().info("worker {} measures its speed first", address);
    deadline = std::min(patience, std::max(deadline, Deadline::clock::now() + kSignTimeout));
  }
}

/// What a worker answers to hello.
struct WorkerRegistry::Connected {
  std::unique_ptr<ControlLink> link;
  control::ControlMessage answer;
};

/// Connects and waits for the worker's first words, which are asked for again where they were damaged or cut off: a
/// worker that refuses says so.
Result<WorkerRegistry::Connected> WorkerRegistry::connect(const Call& call, Deadline deadline,
                                                          const std::stop_token& stop) const {
  ConnectOptions connecting;
  connecting.introduction = {.role = ConnectionRole::kControl,
                             .session = session_,
                             .label = encode_control_label({.coordinator = name_, .lost = call.lost})};
  connecting.access = options_.access;
  connecting.channel.spin = std::chrono::microseconds(0);  // nobody is in a hurry here
  connecting.stop = stop;
  for (int number = 1;; ++number) {
    BF_ASSIGN_OR_RETURN(ChannelPtr channel, connect_tcp(call.address, connecting, deadline));
    auto link = std::make_unique<ControlLink>(std::move(channel));
    const std::stop_callback give_up(stop, [opened = link.get()] { opened->close(); });
    auto answer = receive_hello(*link, call.address, deadline);
    if (stop.stop_requested()) return make_error(ErrorCode::kCancelled, "connecting to {} was given up", call.address);
    if (answer) return Connected{.link = std::move(link), .answer = std::move(*answer)};
    const bool cut = answer.error().code == ErrorCode::kUnavailable || answer.error().code == ErrorCode::kProtocol;
    if (!cut || number == kHandshakesMax) return tl::unexpected(std::move(answer).error());
    std::this_thread::sleep_for(kFirstPause);
  }
}

Result<WorkerRegistry::Answer> WorkerRegistry::handshake(const Call& call, Deadline deadline,
                                                         const std::stop_token& stop) const {
  BF_ASSIGN_OR_RETURN(Connected connected, connect(call, deadline, stop));
  const control::ControlMessage& message = connected.answer;
  auto member = std::make_shared<RemoteWorker>();
  member->address = call.address;
  member->silence = PhiAccrual(options_.heartbeat);
  member->link = std::move(connected.link);
  const std::string who = member->title();
  if (message.has_failure()) {
    const auto serving = read_worker_identity(message.failure().serving());
    if (serving) return Answer{.serving = serving};
    return tl::unexpected(read_failure(message.failure(), who));
  }
  if (!message.has_worker_hello()) return make_error(ErrorCode::kProtocol, "{} did not say hello", who);
  if (const auto& version = message.worker_hello().program_version(); version != BUTTERFLY_VERSION) {
    log().warn("{} runs version {}, this program is {}", who, version, BUTTERFLY_VERSION);
  }
  auto node = read_node(message.worker_hello().node());
  if (!node) return make_error(node.error().code, "{}: {}", who, node.error().message);
  member->node = std::move(*node);
  member->node.address = call.address;
  member->identity = read_worker_identity(message.worker_hello().identity());
  member->trains = message.worker_hello().trains();
  return Answer{.member = std::move(member)};
}

/// Every answer becomes a member: two of one worker are an error, and a worker that serves us although none of these
/// connections is with it was reached by one that was cut.
Status WorkerRegistry::settle(const std::vector<std::string>& addresses, Answers& answers, Deadline deadline,
                              const std::stop_token& stop) const {
  std::map<WorkerIdentity, std::string> seen;
  const auto meet = [&](const WorkerIdentity& identity, const std::string& address) -> Status {
    const auto [known, fresh] = seen.emplace(identity, address);
    if (fresh) return {};
    return make_error(ErrorCode::kInvalidArgument, "{} and {} are one worker: name it once", known->second, address);
  };
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    BF_TRY(*answers[i]);
    const RemoteWorkerPtr& member = (*answers[i])->member;
    if (member && member->identity) BF_TRY(meet(*member->identity, addresses[i]));
  }
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto serving = (*answers[i])->serving;
    if (!serving) continue;
    BF_TRY(meet(*serving, addresses[i]));
    answers[i].emplace(handshake({.address = addresses[i], .lost = serving}, deadline, stop));
    BF_TRY(*answers[i]);
    if (!(*answers[i])->member) {
      return make_error(ErrorCode::kUnavailable, "worker {} says that it serves this coordinator already",
                        addresses[i]);
    }
  }
  return {};
}

Status WorkerRegistry::handshake_all(const std::vector<std::string>& addresses, Deadline deadline,
                                     const std::stop_token& stop) {
  {
    std::lock_guard lock(mutex_);
    order_.insert(order_.end(), addresses.begin(), addresses.end());
    named_.insert(addresses.begin(), addresses.end());
  }
  Answers answers(addresses.size());
  std::vector<char> admitted(addresses.size(), 0);
  {
    std::mutex meeting;
    std::set<WorkerIdentity> met;
    std::vector<std::jthread> dialling;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      dialling.emplace_back([&, i] {
        auto answer = handshake({.address = addresses[i]}, deadline, stop);
        const RemoteWorkerPtr member = answer ? answer->member : nullptr;
        answers[i].emplace(std::move(answer));
        if (!member) return;
        std::lock_guard lock(meeting);
        if (member->identity && !met.insert(*member->identity).second) return;
        // At once: another may still measure its speed, and one that hears nothing meanwhile gives us up.
        admit(member);
        admitted[i] = 1;
      });
    }
  }
  BF_TRY(settle(addresses, answers, deadline, stop));
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (admitted[i] == 0) admit((*answers[i])->member);
  }
  return {};
}

/// mutex_ is held.
bool WorkerRegistry::was_here(const std::string& address) const {
  return std::ranges::find(order_, address) != order_.end();
}

/// mutex_ is held.
bool WorkerRegistry::is_here(const std::optional<WorkerIdentity>& identity) const {
  return identity && std::ranges::any_of(members_, [&](const auto& m) { return m->identity == identity && !m->gone; });
}

/// mutex_ is held.
bool WorkerRegistry::was_tried(const std::string& address) const {
  const auto tried = tried_until_.find(address);
  return tried != tried_until_.end() && Deadline::clock::now() < tried->second;
}

/// mutex_ is held.
void WorkerRegistry::note_failure(const std::string& address, Dialling& mine) {
  ++mine.failures;
  std::erase_if(tried_until_, [](const auto& one) { return one.second <= Deadline::clock::now(); });
  if (tried_until_.size() < kTriedMax) tried_until_[address] = Deadline::clock::now() + kTriedFor;
}

/// Threads that have ended are joined. mutex_ is held.
void WorkerRegistry::sweep_dialling() {
  std::erase_if(dialling_, [](const auto& one) { return one.second->over.load(); });
  std::erase_if(stopping_, [](const auto& one) { return one->over.load(); });
}

/// A worker that announces addresses where nobody is must not keep us from dialling others: what did not answer gives
/// way to what was not tried. mutex_ is held.
bool WorkerRegistry::make_room(const std::string& address, const std::string& announced_by) {
  if (named_.contains(address)) return true;
  const auto alias = aliases_.find(address);
  if (alias != aliases_.end() && is_here(alias->second)) return false;
  std::size_t unnamed = 0, strangers = 0;
  auto silent = dialling_.end(), silent_stranger = dialling_.end();  // those that failed most often
  const auto keep_worse = [&](DiallingMap::iterator& kept, DiallingMap::iterator one) {
    if (one->second->failures > (kept == dialling_.end() ? 0 : kept->second->failures)) kept = one;
  };
  for (auto it = dialling_.begin(); it != dialling_.end(); ++it) {
    if (named_.contains(it->first)) continue;
    ++unnamed;
    keep_worse(silent, it);
    if (was_here(it->first) || it->second->announced_by != announced_by) continue;
    ++strangers;
    keep_worse(silent_stranger, it);
  }
  auto leaves = dialling_.end();
  if (!was_here(address) && strangers >= kStrangersMax) {
    leaves = silent_stranger;
  } else if (unnamed >= kDiallingMax) {
    leaves = silent;
  } else {
    return true;
  }
  if (leaves == dialling_.end() || was_tried(address)) return false;
  leaves->second->thread.request_stop();
  stopping_.push_back(std::move(leaves->second));
  dialling_.erase(leaves);
  return true;
}

void WorkerRegistry::want(const std::string& address, const std::string& announced_by) {
  std::lock_guard lock(mutex_);
  sweep_dialling();
  if (ending_ || dialling_.contains(address)) return;
  if (!make_room(address, announced_by)) {
    log().debug("{} is not dialled: it is a member's, or too many others are dialled", address);
    return;
  }
  auto dialling = std::make_unique<Dialling>();
  dialling->announced_by = announced_by;
  try {
    dialling->thread = std::jthread([this, address, &mine = *dialling](const std::stop_token& stop) {
      run_dialling(address, stop, mine);
      mine.over = true;
    });
  } catch (const std::system_error& error) {
    log().warn("{} cannot be dialled: {}", address, error.what());
    return;
  }
  dialling_[address] = std::move(dialling);
}

/// Until no member is here by that address or with that identity, and its quarantine is over. False: stopped.
bool WorkerRegistry::wait_until_lost(const std::string& address, const std::optional<WorkerIdentity>& identity,
                                     const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto lost = [&] {
    return !is_here(identity) &&
           std::ranges::none_of(members_, [&](const auto& m) { return m->address == address && !m->gone; });
  };
  if (!changed_.wait(lock, stop, lost) || stop.stop_requested()) return false;
  const auto quarantine = quarantined_until_.find(address);
  if (quarantine == quarantined_until_.end()) return true;
  const Deadline until = quarantine->second;
  changed_.wait_until(lock, stop, until, [] { return false; });
  return !stop.stop_requested();
}

void WorkerRegistry::run_dialling(const std::string& address, const std::stop_token& stop, Dialling& mine) {
  milliseconds pause = kFirstPause;
  Call call{.address = address};
  std::optional<WorkerIdentity> serving;  // who answered last that it serves us already
  while (wait_until_lost(address, serving, stop)) {
    auto answer = handshake(call, Deadline::clock::now() + kDialTimeout, stop);
    call.lost.reset();
    std::unique_lock lock(mutex_);
    if (stop.stop_requested()) return;
    if (answer && answer->member) {
      mine.failures = 0;
      tried_until_.erase(address);
      lock.unlock();
      log().info("worker {} joins", address);
      admit(std::move(answer->member));
      serving.reset();
      pause = kFirstPause;
      continue;
    }
    const bool stranger = !was_here(address);
    if (answer) {
      const bool said_before = std::exchange(serving, answer->serving) == answer->serving;
      if (is_here(serving)) {
        if (aliases_.size() >= kDiallingMax) aliases_.clear();
        aliases_[address] = *serving;
        if (stranger) return;
        continue;
      }
      // Another thread may be about to admit it; if not, then a connection of before was cut on the way.
      if (said_before) call.lost = serving;
    } else {
      log().debug("{}", answer.error().message);
    }
    note_failure(address, mine);
    if (stranger && mine.failures >= kStrangersAttempts) return;
    if (!named_.contains(address) && mine.failures >= kLostAttempts) return;
    changed_.wait_for(lock, stop, pause, [] { return false; });
    pause = std::min(2 * pause, kLastPause);
  }
}

}  // namespace butterfly
