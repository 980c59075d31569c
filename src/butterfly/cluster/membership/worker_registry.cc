#include "butterfly/cluster/membership/worker_registry.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <system_error>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/control.pb.h"

namespace butterfly {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDialTimeout{2000};
constexpr milliseconds kSignTimeout{5000};          // between two signs of life of a worker that measures
constexpr milliseconds kMeasuringTimeout{120'000};  // a worker that measures for longer is given up
constexpr milliseconds kFirstPause{100};            // between two attempts; doubled until the last
constexpr milliseconds kLastPause{2000};
constexpr int kStrangersAttempts = 5;  // to reach an address that never answered
constexpr int kBeatsMissed = 3;        // of our own, before we doubt ourselves

Deadline now() {
  return std::chrono::steady_clock::now();
}

std::string title(const RemoteWorker& member) {
  return fmt::format("worker {}", member.address);
}

}  // namespace

WorkerRegistry::WorkerRegistry(const ClusterOptions& options, std::string name)
    : options_(options),
      name_(std::move(name)),
      silence_counts_from_(now()),
      last_beat_(now()),
      heartbeat_([this](const std::stop_token& stop) { run_heartbeat(stop); }) {}

WorkerRegistry::~WorkerRegistry() {
  heartbeat_.request_stop();
  decltype(dialling_) dialling;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;  // nobody dials any more
    dialling.swap(dialling_);
    for (auto& [address, one] : dialling) one->thread.request_stop();
    changed_.notify_all();
  }
  dialling.clear();  // joins
  heartbeat_.join();
  control::ControlMessage release;
  release.mutable_release();
  std::unique_lock lock(mutex_);
  for (const RemoteWorkerPtr& member : members_) {
    if (!member->gone) static_cast<void>(member->link->send(release));
  }
  const auto free = [&] {
    return std::ranges::all_of(members_, [](const auto& member) { return member->released || member->gone; });
  };
  if (!changed_.wait_until(lock, now() + options_.release_timeout, free)) {
    log().warn("not every worker confirmed its release");
  }
  lock.unlock();
  for (const RemoteWorkerPtr& member : members_) member->link->close();
  for (const RemoteWorkerPtr& member : members_) member->monitor.join();
}

/// A worker that was just started measures its speed first, and says so again and again.
Result<control::ControlMessage> WorkerRegistry::receive_hello(ControlLink& link, const std::string& address,
                                                              Deadline deadline) const {
  const Deadline patience = now() + kMeasuringTimeout;
  for (bool told = false;;) {
    auto answer = link.receive(deadline);
    if (!answer || !answer->has_measuring()) return answer;
    if (!std::exchange(told, true)) log().info("worker {} measures its speed first", address);
    deadline = std::min(patience, std::max(deadline, now() + kSignTimeout));
  }
}

/// Connects and waits for the worker's first words, which are asked for again where they were damaged or cut off: a
/// worker that refuses says so.
/// What a worker answers to hello.
struct WorkerRegistry::Connected {
  std::unique_ptr<ControlLink> link;
  control::ControlMessage answer;
};

Result<WorkerRegistry::Connected> WorkerRegistry::connect(const Call& call, Deadline deadline,
                                                          std::stop_token stop) const {
  ConnectOptions connecting;
  connecting.introduction = {.role = ConnectionRole::kControl,
                             .session = session_,
                             .label = encode_control_label({.coordinator = name_, .lost = call.lost})};
  connecting.access = options_.access;
  connecting.channel.spin = std::chrono::microseconds(0);  // nobody is in a hurry here
  connecting.stop = std::move(stop);
  for (int number = 1;; ++number) {
    BF_ASSIGN_OR_RETURN(ChannelPtr channel, connect_tcp(call.address, connecting, deadline));
    auto link = std::make_unique<ControlLink>(std::move(channel));
    auto answer = receive_hello(*link, call.address, deadline);
    if (answer) return Connected{.link = std::move(link), .answer = std::move(*answer)};
    const bool cut = answer.error().code == ErrorCode::kUnavailable || answer.error().code == ErrorCode::kProtocol;
    if (!cut || number == kHandshakesMax) return tl::unexpected(std::move(answer).error());
    std::this_thread::sleep_for(kFirstPause);
  }
}

Result<WorkerRegistry::Answer> WorkerRegistry::handshake(const Call& call, Deadline deadline,
                                                         std::stop_token stop) const {
  BF_ASSIGN_OR_RETURN(Connected connected, connect(call, deadline, std::move(stop)));
  const control::ControlMessage& message = connected.answer;
  auto member = std::make_shared<RemoteWorker>();
  member->address = call.address;
  member->silence = PhiAccrual(options_.heartbeat);
  member->link = std::move(connected.link);
  const std::string who = title(*member);
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
Status WorkerRegistry::settle(const std::vector<std::string>& addresses, Answers& answers, Deadline deadline) const {
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
    answers[i].emplace(handshake({.address = addresses[i], .lost = serving}, deadline, {}));
    BF_TRY(*answers[i]);
    if (!(*answers[i])->member) {
      return make_error(ErrorCode::kUnavailable, "worker {} says that it serves this coordinator already",
                        addresses[i]);
    }
  }
  return {};
}

Status WorkerRegistry::handshake_all(const std::vector<std::string>& addresses, Deadline deadline) {
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
        auto answer = handshake({.address = addresses[i]}, deadline, {});
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
  BF_TRY(settle(addresses, answers, deadline));
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (admitted[i] == 0) admit((*answers[i])->member);
  }
  return {};
}

void WorkerRegistry::changed(std::string what) {
  last_change_ = std::move(what);
  version_.fetch_add(1, std::memory_order_acq_rel);
  changed_.notify_all();
}

void WorkerRegistry::admit(RemoteWorkerPtr member) {
  RemoteWorkerPtr elsewhere;  // the same worker, which has given that connection up before we noticed
  {
    std::lock_guard lock(mutex_);
    for (const RemoteWorkerPtr& one : members_) {
      const bool same = member->identity && one->identity == member->identity && one->address != member->address;
      if (same && !one->gone) elsewhere = one;
    }
  }
  if (elsewhere) {
    lose(elsewhere,
         {.code = ErrorCode::kUnavailable, .message = fmt::format("it is connected anew, as {}", member->address)});
  }
  RemoteWorkerPtr before;  // an earlier life of the same worker; its thread has ended or is about to
  {
    std::lock_guard lock(mutex_);
    const auto known = std::ranges::find(members_, member->address, [](const auto& one) { return one->address; });
    if (known != members_.end()) {
      before = *known;
      members_.erase(known);
    }
    if (std::ranges::find(order_, member->address) == order_.end()) order_.push_back(member->address);
    member->silence.heard(now());
    members_.push_back(member);
    member->monitor = std::thread([this, member] { run_monitor(member); });
    changed(fmt::format("{} joined", title(*member)));
  }
  if (before) before->monitor.join();
}

/// mutex_ is held.
bool WorkerRegistry::was_here(const std::string& address) const {
  return std::ranges::find(order_, address) != order_.end();
}

/// mutex_ is held.
bool WorkerRegistry::is_here(const std::optional<WorkerIdentity>& identity) const {
  return identity && std::ranges::any_of(members_, [&](const auto& m) { return m->identity == identity && !m->gone; });
}

/// A worker that announces addresses where nobody is must not keep us from dialling others. mutex_ is held.
bool WorkerRegistry::may_dial(const std::string& address, const std::string& announced_by) const {
  if (named_.contains(address)) return true;
  const auto alias = aliases_.find(address);
  if (alias != aliases_.end() && is_here(alias->second)) return false;
  std::size_t unnamed = 0, strangers = 0;
  for (const auto& [other, dialling] : dialling_) {
    if (named_.contains(other)) continue;
    ++unnamed;
    if (!was_here(other) && dialling->announced_by == announced_by) ++strangers;
  }
  return unnamed < kDiallingMax && (was_here(address) || strangers < kStrangersMax);
}

void WorkerRegistry::want(const std::string& address, const std::string& announced_by) {
  std::vector<std::unique_ptr<Dialling>> over;  // joined without the lock
  std::lock_guard lock(mutex_);
  for (auto it = dialling_.begin(); it != dialling_.end();) {
    if (it->second->over) over.push_back(std::move(it->second));
    it = it->second ? std::next(it) : dialling_.erase(it);
  }
  if (ending_ || dialling_.contains(address)) return;
  if (!may_dial(address, announced_by)) {
    log().debug("{} is not dialled: it is a member's, or too many others are dialled", address);
    return;
  }
  auto dialling = std::make_unique<Dialling>();
  dialling->announced_by = announced_by;
  try {
    dialling->thread = std::jthread([this, address, &mine = *dialling](const std::stop_token& stop) {
      run_dialling(address, stop);
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

void WorkerRegistry::run_dialling(const std::string& address, const std::stop_token& stop) {
  milliseconds pause = kFirstPause;
  int failures = 0;
  Call call{.address = address};
  std::optional<WorkerIdentity> serving;  // who answered last that it serves us already
  while (wait_until_lost(address, serving, stop)) {
    auto answer = handshake(call, now() + kDialTimeout, stop);
    call.lost.reset();
    if (answer && answer->member) {
      log().info("worker {} joins", address);
      admit(std::move(answer->member));
      serving.reset();
      pause = kFirstPause;
      failures = 0;
      continue;
    }
    std::unique_lock lock(mutex_);
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
    if (stranger && ++failures >= kStrangersAttempts) return;
    changed_.wait_for(lock, stop, pause, [] { return false; });
    pause = std::min(2 * pause, kLastPause);
  }
}

std::vector<RemoteWorkerPtr> WorkerRegistry::usable() const {
  std::lock_guard lock(mutex_);
  std::vector<RemoteWorkerPtr> all;
  for (const std::string& address : order_) {
    for (const RemoteWorkerPtr& member : members_) {
      if (member->address == address && !member->gone && !member->leaving) all.push_back(member);
    }
  }
  return all;
}

bool WorkerRegistry::wait_for_change(std::uint64_t seen, Deadline deadline, std::stop_token stop) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, std::move(stop), deadline, [&] { return version() != seen; });
}

std::string WorkerRegistry::last_change() const {
  std::lock_guard lock(mutex_);
  return last_change_;
}

void WorkerRegistry::observe(MemberObserver* observer) {
  std::lock_guard lock(observing_);
  observers_.push_back(observer);
}

void WorkerRegistry::forget(MemberObserver* observer) {
  std::lock_guard lock(observing_);
  std::erase(observers_, observer);
}

void WorkerRegistry::release_leaving() {
  control::ControlMessage release;
  release.mutable_release();
  std::vector<RemoteWorkerPtr> leaving;
  {
    std::lock_guard lock(mutex_);
    std::ranges::copy_if(members_, std::back_inserter(leaving),
                         [](const auto& member) { return member->leaving && !member->gone; });
  }
  for (const RemoteWorkerPtr& member : leaving) static_cast<void>(member->link->send(release));
}

void WorkerRegistry::expel(const std::string& address, const Error& cause) {
  RemoteWorkerPtr expelled;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(quarantined_until_, [](const auto& one) { return one.second <= now(); });
    quarantined_until_[address] = now() + kQuarantine;
    const auto found = std::ranges::find(members_, address, [](const auto& one) { return one->address; });
    if (found != members_.end()) expelled = *found;
  }
  if (expelled) lose(expelled, cause);
}

Deadline WorkerRegistry::due(const RemoteWorker& member) const {
  std::lock_guard lock(mutex_);
  // A coordinator that stood still has asked nobody: silence meanwhile means nothing.
  const bool stood_still = now() - last_beat_ > kBeatsMissed * options_.heartbeat;
  const Deadline counts_from = stood_still ? now() : silence_counts_from_;
  return std::max(member.silence.last_heard(), counts_from) + options_.dead_after;
}

void WorkerRegistry::run_monitor(const RemoteWorkerPtr& member) {
  for (;;) {
    const auto message = member->link->receive(due(*member));
    if (message) {
      handle(member, *message);
    } else if (message.error().code != ErrorCode::kTimeout) {
      return lose(member, message.error());
    } else if (due(*member) <= now()) {
      return lose(member, {.code = ErrorCode::kUnavailable,
                           .message = fmt::format("it said nothing for {} ms", options_.dead_after.count())});
    }
  }
}

void WorkerRegistry::handle(const RemoteWorkerPtr& member, const control::ControlMessage& message) {
  {
    std::lock_guard lock(mutex_);
    member->silence.heard(now());
    if (std::exchange(member->suspected, false)) log().info("{} is heard again", title(*member));
    if (message.has_leave() && !std::exchange(member->leaving, true)) changed(title(*member) + " leaves");
    if (message.has_released()) {
      member->released = true;
      changed_.notify_all();
    }
  }
  std::lock_guard lock(observing_);
  for (MemberObserver* observer : observers_) observer->on_message(*member, message);
}

void WorkerRegistry::lose(const RemoteWorkerPtr& member, const Error& cause) {
  bool left = false;  // was let go, and needed by nobody
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(member->gone, true)) return;
    left = member->released;
  }
  member->link->close();
  if (!left) {
    std::lock_guard lock(observing_);
    for (MemberObserver* observer : observers_) observer->on_gone(*member, cause);
  }
  {
    // Last, so that a thread that sees another membership also sees that the epoch has failed.
    std::lock_guard lock(mutex_);
    if (!ending_) {
      changed(left ? title(*member) + " left" : fmt::format("{} went away: {}", title(*member), cause.message));
    }
    changed_.notify_all();
  }
  if (options_.lost == LostWorkers::kDialAgain) want(member->address);
}

std::uint64_t WorkerRegistry::ping() {
  control::ControlMessage message;
  const std::uint64_t sequence = ping_sequence_.fetch_add(1) + 1;
  message.mutable_ping()->set_sequence(sequence);
  std::vector<RemoteWorkerPtr> living;
  {
    std::lock_guard lock(mutex_);
    std::ranges::copy_if(members_, std::back_inserter(living), [](const auto& member) { return !member->gone; });
  }
  // A worker that cannot be reached is noticed by its monitor.
  for (const RemoteWorkerPtr& member : living) static_cast<void>(member->link->send(message));
  return sequence;
}

void WorkerRegistry::run_heartbeat(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    ping();
    std::unique_lock lock(mutex_);
    const Deadline beat = now();
    if (beat - last_beat_ > kBeatsMissed * options_.heartbeat) silence_counts_from_ = beat;
    last_beat_ = beat;
    for (const RemoteWorkerPtr& member : members_) {
      const double phi = member->gone ? 0 : member->silence.phi(beat);
      if (phi > PhiAccrual::kSuspicious && !std::exchange(member->suspected, true)) {
        log().warn("{} is suspected: silent for {:.0f} ms", title(*member),
                   std::chrono::duration<double, std::milli>(beat - member->silence.last_heard()).count());
      }
    }
    changed_.wait_until(lock, stop, beat + options_.heartbeat, [] { return false; });
  }
}

void WorkerRegistry::describe(control::CoordinatorStatus& status) const {
  status.set_name(name_);
  std::lock_guard lock(mutex_);
  status.set_last_change(last_change_);
  for (const RemoteWorkerPtr& member : members_) {
    if (member->gone) continue;
    auto* one = status.add_members();
    one->set_address(member->address);
    store(member->node, *one->mutable_node());
    one->set_phi(member->silence.phi(now()));
    one->set_leaving(member->leaving);
  }
}

}  // namespace butterfly
