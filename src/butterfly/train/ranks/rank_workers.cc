#include "butterfly/train/ranks/rank_workers.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/membership/join_server.h"
#include "butterfly/cluster/membership/membership.h"
#include "butterfly/cluster/membership/worker_recordings.h"
#include "butterfly/cluster/membership/worker_registry.h"
#include "butterfly/cluster/worker/arrival_queue.h"
#include "butterfly/machine/usage/recorded_process.h"
#include "butterfly/train/ranks/rank_child.h"
#include "butterfly/train/ranks/rank_leader.h"
#include "butterfly/train/ranks/rank_task.h"

namespace butterfly {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHandshakeTimeout{10'000};
constexpr milliseconds kLookTimeout{600'000};  // for a worker to look for a file by its content
// Training takes every core: a worker may be late with its answers, and a computer that is gone is noticed soon enough.
constexpr milliseconds kDeadAfter{10'000};
constexpr milliseconds kReleaseTimeout{10'000};
constexpr milliseconds kMeetTimeout{600'000};  // for as many ranks as the run begins with

ClusterOptions registry_options(const RanksOptions& options) {
  ClusterOptions cluster;
  cluster.dead_after = kDeadAfter;
  cluster.release_timeout = kReleaseTimeout;
  cluster.access = options.access;
  cluster.lost = LostWorkers::kLetGo;
  return cluster;
}

class Workers final : public OtherRanks, private MemberObserver {
 public:
  Workers(const RunConfig& config, const RanksOptions& options, const TrainObserver& observer,
          const std::stop_token& stop)
      : config_(config),
        options_(options),
        observer_(observer),
        stop_(stop),
        registry_(registry_options(options), coordinator_name(registry_options(options))) {
    registry_.observe(this);
  }
  ~Workers() override { registry_.forget(this); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  Result<std::vector<LedRank>> start() override;
  Result<std::unique_ptr<RankTrainer>> make_trainer(const TrainRank& place) override {
    return butterfly::make_trainer(std::move(*parts_), place);
  }
  Result<std::unique_ptr<Collectives>> connect(const std::vector<RankProcess>& members, Epoch epoch,
                                               const std::function<Status()>& still_wanted) override;
  std::string terminate(LedRank& rank, const Error& cause) override;
  bool others_ready(std::size_t taking_part) override;
  std::vector<LedRank> admit(std::size_t taking_part) override;
  void run_is_over() override;

 private:
  Status open_join_server();
  Status handshake();
  Status wait_for_ranks();
  Status check_trains() const;
  Result<Isa> common_isa() const;
  Status make_task();
  Result<LedRank> introduce(const RemoteWorkerPtr& member, const std::stop_token& stop);
  Status provide(LedRank& rank) const;
  void take_newcomers(const std::stop_token& stop);
  Result<LedRank> prepare(const RemoteWorkerPtr& member, const std::stop_token& stop);
  void on_message(const RemoteWorker& member, const control::ControlMessage& message) override;
  void on_gone(const RemoteWorker& member, const Error& cause) override;
  static Status release(const RemoteWorker& member);

  const RunConfig& config_;
  const RanksOptions& options_;
  const TrainObserver& observer_;
  const std::stop_token stop_;
  WorkerRegistry registry_;
  std::atomic<std::uint32_t> epoch_number_{0};
  std::unique_ptr<JoinServer> join_server_;      // null: nobody can join
  std::optional<WorkerRecordings> recordings_;   // of the workers, where this process is recorded
  std::vector<RemoteWorkerPtr> first_;           // with whom the run begins, that of rank 1 first
  std::optional<RunParts> parts_;                // until rank 0's trainer has them
  RankTask task_;                                // of every rank but for its number
  std::vector<TokenBytes> tokens_;               // of the task, in rank 0's dataset
  std::size_t most_ = 0;                         // ranks, rank 0 among them
  ArrivalQueue no_arrivals_;                     // rank 0 is not dialled
  std::mutex mutex_;                             // guards what follows against the registry's threads
  std::map<int, RemoteWorkerPtr> members_;       // by number
  std::map<std::string, RankControl> controls_;  // by address
  std::map<std::string, std::string> causes_;    // of those that are gone
  std::set<std::string> taking_part_;            // addresses of the epoch's
  std::deque<LedRank> ready_;                    // to take part in the next epoch
  Collectives* epoch_ = nullptr;
  std::jthread newcomers_;
};

/// Errors name the worker.
Status naming(const LedRank& rank, Status status) {
  if (status) return status;
  return make_error(status.error().code, "{}: {}", rank.title, status.error().message);
}

/// The next thing that a worker says before the first epoch. Errors: what it could not do.
Result<RankMessage> hear(LedRank& rank, RankMessageKind expected) {
  BF_ASSIGN_OR_RETURN(RankMessage message, rank.control.receive(std::chrono::steady_clock::now() + kLookTimeout));
  if (message.kind == expected) return message;
  if (message.kind == RankMessageKind::kFailed) return make_error(message.code, "{}", message.text);
  return make_error(ErrorCode::kProtocol, "said {} where {} was expected", static_cast<int>(message.kind),
                    static_cast<int>(expected));
}

Status check_can_train(const RemoteWorker& member) {
  if (member.trains) return {};
  return make_error(ErrorCode::kUnsupported,
                    "worker {} does not train: its program is older than this one, or it was started with --no-train "
                    "or --emulate",
                    member.address);
}

Status Workers::open_join_server() {
  const std::string& address = join_address_of(config_.parallel);
  if (address.empty()) return {};
  BF_ASSIGN_OR_RETURN(auto listener, options_.listen_for_joins
                                         ? options_.listen_for_joins()
                                         : Listener::create({.address = address, .access = options_.access}));
  join_server_ =
      std::make_unique<JoinServer>(std::move(listener), registry_, [this] { return Epoch(epoch_number_.load()); });
  if (observer_.note) observer_.note("workers may join at " + join_server_->address());
  return {};
}

Status Workers::handshake() {
  const std::vector<std::string>& addresses = config_.parallel.workers;
  BF_TRY(registry_.handshake_all(addresses, std::chrono::steady_clock::now() + kHandshakeTimeout, stop_));
  const std::vector<RemoteWorkerPtr> usable = registry_.usable();
  for (const std::string& address : addresses) {
    const auto found = std::ranges::find(usable, address, [](const RemoteWorkerPtr& one) { return one->address; });
    if (found == usable.end()) {
      return make_error(ErrorCode::kUnavailable, "worker {} went away before the run began", address);
    }
    first_.push_back(*found);
  }
  if (const std::string folder = record_folder(); !folder.empty()) {
    recordings_.emplace(folder, registry_.options().access, [this] {
      std::vector<NodeDescriptor> nodes;
      for (const RemoteWorkerPtr& member : registry_.usable()) nodes.push_back(member->node);
      return nodes;
    });
  }
  BF_TRY(wait_for_ranks());
  return check_trains();
}

/// Waits for as many as the run begins with.
Status Workers::wait_for_ranks() {
  if (join_server_ == nullptr) return {};
  BF_ASSIGN_OR_RETURN(const RankLimits limits, rank_limits(config_.parallel.nnodes));
  const Deadline deadline = std::chrono::steady_clock::now() + kMeetTimeout;
  for (std::size_t told = 0;;) {
    const std::uint64_t seen = registry_.version();
    for (const RemoteWorkerPtr& member : registry_.usable()) {
      const bool is_known = std::ranges::find(first_, member) != first_.end();
      if (!is_known && static_cast<int>(first_.size()) + 1 < limits.most) first_.push_back(member);
    }
    std::erase_if(first_, [&](const RemoteWorkerPtr& one) {
      const auto usable = registry_.usable();
      return std::ranges::find(usable, one) == usable.end();
    });
    const std::size_t here = first_.size() + 1;
    if (static_cast<int>(here) >= limits.least) return {};
    if (observer_.note && std::exchange(told, here) != here) {
      observer_.note(fmt::format("{} of {} ranks are here; the others are waited for", here, limits.least));
    }
    if (registry_.wait_for_change(seen, deadline, stop_)) continue;
    if (stop_.stop_requested()) return make_error(ErrorCode::kCancelled, "cancelled");
    return make_error(ErrorCode::kTimeout, "{} ranks of {} came to {} within {} s", here, limits.least,
                      join_server_->address(), kMeetTimeout.count() / 1000);
  }
}

Status Workers::check_trains() const {
  for (const RemoteWorkerPtr& member : first_) BF_TRY(check_can_train(*member));
  return {};
}

/// What each rank computes for itself, such as the update of its weights, has to be the same to the bit.
Result<Isa> Workers::common_isa() const {
  BF_ASSIGN_OR_RETURN(Isa isa, choose_isa());
  for (const RemoteWorkerPtr& member : first_) isa = std::min(isa, member->node.isa);
  return isa;
}

/// What the run is, for every rank.
Status Workers::make_task() {
  BF_ASSIGN_OR_RETURN(task_.isa, common_isa());
  const int ranks = static_cast<int>(first_.size()) + 1;
  BF_ASSIGN_OR_RETURN(parts_, make_run_parts(config_, {.rank = 0, .size = ranks, .speeds = config_.parallel.speeds},
                                             {.isa = task_.isa}));
  const RunConfig& made = parts_->config;
  BF_ASSIGN_OR_RETURN(const RankLimits limits, rank_limits(made.parallel.nnodes));
  const bool pipeline = made.parallel.strategy == ParallelStrategy::kPipeline;
  const int parts = pipeline ? made.shape.layers + 1 : made.global_batch / made.micro_batch;
  most_ = static_cast<std::size_t>(std::min(limits.most, parts));
  task_.config = made;
  std::error_code ignored;
  const bool continues = !config_.model.empty() && std::filesystem::exists(config_.model, ignored);
  task_.first_state = continues ? FirstState::kReceived : FirstState::kOwn;
  BF_ASSIGN_OR_RETURN(tokens_, name_tokens(*parts_->data, task_.config.data));
  for (const TokenBytes& one : tokens_) task_.tokens.push_back(one.what);
  return {};
}

Result<std::vector<LedRank>> Workers::start() {
  BF_TRY(open_join_server());
  BF_TRY(handshake());
  BF_TRY(make_task());
  if (first_.size() + 1 > most_) first_.resize(most_ - 1);
  std::vector<LedRank> ranks;
  for (const RemoteWorkerPtr& member : first_) {
    BF_ASSIGN_OR_RETURN(ranks.emplace_back(), introduce(member, stop_));
  }
  for (LedRank& rank : ranks) BF_TRY(naming(rank, provide(rank)));
  for (LedRank& rank : ranks) {
    const auto ready = hear(rank, RankMessageKind::kReady);
    if (!ready) return make_error(ready.error().code, "{}: {}", rank.title, ready.error().message);
  }
  task_.first_state = FirstState::kReceived;  // of all that join later
  if (join_server_) newcomers_ = std::jthread([this](const std::stop_token& stop) { take_newcomers(stop); });
  return ranks;
}

Result<LedRank> Workers::introduce(const RemoteWorkerPtr& member, const std::stop_token& stop) {
  ConnectOptions connecting;
  connecting.access = options_.access;
  connecting.introduction.role = ConnectionRole::kData;
  connecting.introduction.session = registry_.session();
  connecting.introduction.label = kTrainLabel;
  connecting.stop = stop;
  const std::string& address = member->address;
  BF_ASSIGN_OR_RETURN(auto channel,
                      connect_tcp(address, connecting, std::chrono::steady_clock::now() + kHandshakeTimeout));
  LedRank rank{.title = "worker " + address, .address = address, .control = RankControl(std::move(channel))};
  {
    std::lock_guard lock(mutex_);
    rank.number = members_.empty() ? 1 : members_.rbegin()->first + 1;
    members_[rank.number] = member;
    controls_[address] = rank.control;
    causes_.erase(address);
  }
  RankTask its = task_;
  its.number = rank.number;
  BF_TRY(naming(rank, rank.control.send({.kind = RankMessageKind::kTask, .task = its})));
  return rank;
}

/// Makes those ready that come while the run goes on, so that it waits for none of them.
void Workers::take_newcomers(const std::stop_token& stop) {
  std::set<RemoteWorkerPtr> seen(first_.begin(), first_.end());
  std::set<std::string> refused;
  while (!stop.stop_requested()) {
    const std::uint64_t version = registry_.version();
    for (const RemoteWorkerPtr& member : registry_.usable()) {
      if (!seen.insert(member).second) continue;
      auto rank = prepare(member, stop);
      std::lock_guard lock(mutex_);
      if (rank) {
        ready_.push_back(std::move(*rank));
      } else if (!stop.stop_requested() && refused.insert(member->address).second) {
        log().warn("{} cannot take part: {}", member->title(), rank.error().message);
      }
    }
    static_cast<void>(registry_.wait_for_change(version, after_ms(60'000), stop));
  }
}

Result<LedRank> Workers::prepare(const RemoteWorkerPtr& member, const std::stop_token& stop) {
  BF_TRY(check_can_train(*member));
  if (member->node.isa < task_.isa) {
    return make_error(ErrorCode::kUnsupported, "the run computes with {}, it has {}", to_string(task_.isa),
                      to_string(member->node.isa));
  }
  BF_ASSIGN_OR_RETURN(LedRank rank, introduce(member, stop));
  const std::stop_callback give_up(stop, [&] { rank.control.close(); });
  BF_TRY(provide(rank));
  BF_TRY(hear(rank, RankMessageKind::kReady));
  return rank;
}

bool Workers::others_ready(std::size_t taking_part) {
  std::lock_guard lock(mutex_);
  return !ready_.empty() && taking_part + 1 < most_;
}

std::vector<LedRank> Workers::admit(std::size_t taking_part) {
  std::lock_guard lock(mutex_);
  std::vector<LedRank> admitted;
  while (!ready_.empty() && taking_part + admitted.size() + 1 < most_) {
    admitted.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  return admitted;
}

void Workers::run_is_over() {
  newcomers_.request_stop();
  if (newcomers_.joinable()) newcomers_.join();
  std::lock_guard lock(mutex_);
  epoch_ = nullptr;
  for (LedRank& rank : ready_) {
    [[maybe_unused]] const Status told = rank.control.send({.kind = RankMessageKind::kEnd});
  }
}

/// Sends what the worker has not got.
Status Workers::provide(LedRank& rank) const {
  BF_ASSIGN_OR_RETURN(const RankMessage message, hear(rank, RankMessageKind::kWanted));
  std::set<std::size_t> sent;
  for (const std::size_t place : message.wanted) {
    if (place >= tokens_.size() || !sent.insert(place).second) {
      return make_error(ErrorCode::kProtocol, "wants token file {}, or wants it again, there are {}", place,
                        tokens_.size());
    }
    log().info("{} receives {} bytes of tokens", rank.title, tokens_[place].what.bytes);
    BF_TRY(send_tokens(rank.control.channel(), tokens_[place], options_.member_timeout));
  }
  return {};
}

Result<std::unique_ptr<Collectives>> Workers::connect(const std::vector<RankProcess>& members, Epoch epoch,
                                                      const std::function<Status()>& still_wanted) {
  MeshOptions mesh;
  epoch_number_ = epoch.value;
  mesh.session = registry_.session();
  mesh.epoch = epoch;
  mesh.access = options_.access;
  mesh.still_wanted = still_wanted;
  BF_ASSIGN_OR_RETURN(auto made, connect_epoch(no_arrivals_, members, std::move(mesh), config_, options_));
  std::lock_guard lock(mutex_);
  epoch_ = made.get();
  taking_part_.clear();
  for (const RankProcess& member : members) taking_part_.insert(member.address);
  return made;
}

std::string Workers::terminate(LedRank& rank, const Error& cause) {
  rank.control.close();
  std::lock_guard lock(mutex_);
  const RemoteWorkerPtr& member = members_.at(rank.number);
  [[maybe_unused]] const Status told = release(*member);  // one that is gone need not hear it
  const auto known = causes_.find(member->address);
  return known == causes_.end() ? cause.message : known->second;
}

Status Workers::release(const RemoteWorker& member) {
  control::ControlMessage message;
  message.mutable_release();
  return member.link->send(message);
}

/// A worker that wants to end has given its part up already.
void Workers::on_message(const RemoteWorker& member, const control::ControlMessage& message) {
  if (!message.has_leave()) return;
  std::lock_guard lock(mutex_);
  causes_[member.address] = "it was asked to end";
  [[maybe_unused]] const Status told = release(member);
}

/// A computer that is gone closes no connection.
void Workers::on_gone(const RemoteWorker& member, const Error& cause) {
  std::lock_guard lock(mutex_);
  causes_.try_emplace(member.address, cause.message);
  const auto control = controls_.find(member.address);
  if (control == controls_.end()) return;
  control->second.close();
  if (epoch_ != nullptr && taking_part_.contains(member.address)) epoch_->abort();
}

}  // namespace

Result<TrainResult> train_with_workers(const RunConfig& config, const TrainObserver& observer,
                                       const std::stop_token& stop, const RanksOptions& options) {
  RunConfig counted = config;
  if (!config.parallel.workers.empty()) counted.parallel.ranks = ranks_of(config.parallel);
  counted.parallel.engine = RankEngine::kTcp;
  Workers workers(counted, options, observer, stop);
  return lead_ranks(workers, counted, observer, stop, options.member_timeout);
}

}  // namespace butterfly
