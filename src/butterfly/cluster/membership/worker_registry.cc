#include "butterfly/cluster/membership/worker_registry.h"

#include <algorithm>
#include <functional>
#include <mutex>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/control.pb.h"

namespace butterfly {
namespace {

using std::chrono::milliseconds;

constexpr int kBeatsMissed = 3;  // of our own, before we doubt ourselves

Deadline now() {
  return std::chrono::steady_clock::now();
}

void release(const RemoteWorker& member) {
  control::ControlMessage message;
  message.mutable_release();
  static_cast<void>(member.link->send(message));
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
  decltype(stopping_) stopping;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;  // nobody dials any more
    dialling.swap(dialling_);
    stopping.swap(stopping_);
    for (auto& [address, one] : dialling) one->thread.request_stop();
    changed_.notify_all();
  }
  dialling.clear();  // joins
  stopping.clear();
  heartbeat_.join();
  std::unique_lock lock(mutex_);
  for (const RemoteWorkerPtr& member : members_) {
    if (!member->gone) release(*member);
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
  std::vector<RemoteWorkerPtr> before;  // whose threads have ended or are about to
  {
    std::lock_guard lock(mutex_);
    before = take_dead(member->address);
    if (std::ranges::find(order_, member->address) == order_.end()) order_.push_back(member->address);
    member->silence.heard(now());
    members_.push_back(member);
    member->monitor = std::thread([this, member] { run_monitor(member); });
    changed(fmt::format("{} joined", member->title()));
  }
  for (const RemoteWorkerPtr& dead : before) dead->monitor.join();
}

/// An earlier life of this worker, and announced workers that nobody dials any more. mutex_ is held.
std::vector<RemoteWorkerPtr> WorkerRegistry::take_dead(const std::string& address) {
  sweep_dialling();
  const auto over = [&](const RemoteWorkerPtr& one) {
    return one->address == address ||
           (one->gone && !named_.contains(one->address) && !dialling_.contains(one->address));
  };
  const auto dead = std::stable_partition(members_.begin(), members_.end(), std::not_fn(over));
  std::vector<RemoteWorkerPtr> taken(std::make_move_iterator(dead), std::make_move_iterator(members_.end()));
  members_.erase(dead, members_.end());
  for (const RemoteWorkerPtr& one : taken) {
    if (one->address != address) std::erase(order_, one->address);
  }
  return taken;
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
  std::vector<RemoteWorkerPtr> leaving;
  {
    std::lock_guard lock(mutex_);
    std::ranges::copy_if(members_, std::back_inserter(leaving),
                         [](const auto& member) { return member->leaving && !member->gone; });
  }
  for (const RemoteWorkerPtr& member : leaving) release(*member);
}

void WorkerRegistry::expel(const std::string& address, const Error& cause) {
  RemoteWorkerPtr expelled;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(quarantined_until_, [](const auto& one) { return one.second <= now(); });
    if (quarantined_until_.size() >= kDiallingMax) {
      quarantined_until_.erase(
          std::ranges::min_element(quarantined_until_, {}, [](const auto& one) { return one.second; }));
    }
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
    if (std::exchange(member->suspected, false)) log().info("{} is heard again", member->title());
    if (message.has_leave() && !std::exchange(member->leaving, true)) changed(member->title() + " leaves");
    if (message.has_released()) {
      member->released = true;
      changed_.notify_all();
    }
  }
  std::lock_guard lock(observing_);
  for (MemberObserver* observer : observers_) observer->on_message(*member, message);
  if (message.has_leave() && observers_.empty()) release(*member);  // no epoch has to do without it first
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
      changed(left ? member->title() + " left" : fmt::format("{} went away: {}", member->title(), cause.message));
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
        log().warn("{} is suspected: silent for {:.0f} ms", member->title(),
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
