#include "butterfly/train/ranks/rank_workers.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/control.pb.h"
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
  Workers(const RunConfig& config, const RanksOptions& options, const std::stop_token& stop)
      : config_(config),
        options_(options),
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
  void run_is_over() override {
    std::lock_guard lock(mutex_);
    epoch_ = nullptr;
  }

 private:
  Status handshake();
  Status check_trains() const;
  Result<Isa> common_isa() const;
  Result<LedRank> introduce(int number, const RankTask& task);
  Status provide(LedRank& rank, const std::vector<TokenBytes>& tokens) const;
  void on_message(const RemoteWorker& member, const control::ControlMessage& message) override;
  void on_gone(const RemoteWorker& member, const Error& cause) override;
  static Status release(const RemoteWorker& member);

  const RunConfig& config_;
  const RanksOptions& options_;
  const std::stop_token stop_;
  WorkerRegistry registry_;
  std::optional<WorkerRecordings> recordings_;   // of the workers, where this process is recorded
  std::vector<RemoteWorkerPtr> members_;         // by rank, that of rank 1 first
  std::optional<RunParts> parts_;                // until rank 0's trainer has them
  ArrivalQueue nobody_;                          // rank 0 is not dialled
  std::mutex mutex_;                             // guards what follows against the registry's threads
  std::map<std::string, RankControl> controls_;  // by address
  std::map<std::string, std::string> causes_;    // of those that are gone
  Collectives* epoch_ = nullptr;
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

Status Workers::handshake() {
  const std::vector<std::string>& addresses = config_.parallel.workers;
  BF_TRY(registry_.handshake_all(addresses, std::chrono::steady_clock::now() + kHandshakeTimeout, stop_));
  const std::vector<RemoteWorkerPtr> usable = registry_.usable();
  for (const std::string& address : addresses) {
    const auto found = std::ranges::find(usable, address, [](const RemoteWorkerPtr& one) { return one->address; });
    if (found == usable.end()) {
      return make_error(ErrorCode::kUnavailable, "worker {} went away before the run began", address);
    }
    members_.push_back(*found);
  }
  if (const std::string folder = record_folder(); !folder.empty()) {
    recordings_.emplace(folder, registry_.options().access, [this] {
      std::vector<NodeDescriptor> nodes;
      for (const RemoteWorkerPtr& member : registry_.usable()) nodes.push_back(member->node);
      return nodes;
    });
  }
  return check_trains();
}

Status Workers::check_trains() const {
  for (const RemoteWorkerPtr& member : members_) {
    if (member->trains) continue;
    return make_error(ErrorCode::kUnsupported,
                      "worker {} does not train: its program is older than this one, or it was started with --no-train "
                      "or --emulate",
                      member->address);
  }
  return {};
}

/// What each rank computes for itself, such as the update of its weights, has to be the same to the bit.
Result<Isa> Workers::common_isa() const {
  BF_ASSIGN_OR_RETURN(Isa isa, choose_isa());
  for (const RemoteWorkerPtr& member : members_) isa = std::min(isa, member->node.isa);
  return isa;
}

Result<std::vector<LedRank>> Workers::start() {
  BF_TRY(handshake());
  RankTask task;
  BF_ASSIGN_OR_RETURN(task.isa, common_isa());
  BF_ASSIGN_OR_RETURN(parts_, make_run_parts(config_, {.rank = 0, .size = config_.parallel.ranks}, {.isa = task.isa}));
  task.config = parts_->config;
  std::error_code ignored;
  const bool continues = !config_.model.empty() && std::filesystem::exists(config_.model, ignored);
  task.first_state = continues ? FirstState::kReceived : FirstState::kOwn;
  BF_ASSIGN_OR_RETURN(const auto tokens, name_tokens(*parts_->data, task.config.data));
  for (const TokenBytes& one : tokens) task.tokens.push_back(one.what);
  std::vector<LedRank> ranks;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    BF_ASSIGN_OR_RETURN(ranks.emplace_back(), introduce(static_cast<int>(i) + 1, task));
  }
  for (LedRank& rank : ranks) BF_TRY(naming(rank, provide(rank, tokens)));
  for (LedRank& rank : ranks) {
    const auto ready = hear(rank, RankMessageKind::kReady);
    if (!ready) return make_error(ready.error().code, "{}: {}", rank.title, ready.error().message);
  }
  return ranks;
}

Result<LedRank> Workers::introduce(int number, const RankTask& task) {
  const std::string& address = members_[static_cast<std::size_t>(number) - 1]->address;
  ConnectOptions connecting;
  connecting.access = options_.access;
  connecting.introduction.role = ConnectionRole::kData;
  connecting.introduction.session = registry_.session();
  connecting.introduction.label = kTrainLabel;
  BF_ASSIGN_OR_RETURN(auto channel,
                      connect_tcp(address, connecting, std::chrono::steady_clock::now() + kHandshakeTimeout));
  LedRank rank{
      .number = number, .title = "worker " + address, .address = address, .control = RankControl(std::move(channel))};
  {
    std::lock_guard lock(mutex_);
    controls_[address] = rank.control;
  }
  RankTask its = task;
  its.number = number;
  BF_TRY(naming(rank, rank.control.send({.kind = RankMessageKind::kTask, .task = its})));
  return rank;
}

/// Sends what the worker has not got.
Status Workers::provide(LedRank& rank, const std::vector<TokenBytes>& tokens) const {
  BF_ASSIGN_OR_RETURN(const RankMessage message, hear(rank, RankMessageKind::kWanted));
  std::set<std::size_t> sent;
  for (const std::size_t place : message.wanted) {
    if (place >= tokens.size() || !sent.insert(place).second) {
      return make_error(ErrorCode::kProtocol, "wants token file {}, or wants it again, there are {}", place,
                        tokens.size());
    }
    log().info("{} receives {} bytes of tokens", rank.title, tokens[place].what.bytes);
    BF_TRY(send_tokens(rank.control.channel(), tokens[place], options_.member_timeout));
  }
  return {};
}

Result<std::unique_ptr<Collectives>> Workers::connect(const std::vector<RankProcess>& members, Epoch epoch,
                                                      const std::function<Status()>& still_wanted) {
  MeshOptions mesh;
  mesh.session = registry_.session();
  mesh.epoch = epoch;
  mesh.access = options_.access;
  mesh.still_wanted = still_wanted;
  BF_ASSIGN_OR_RETURN(auto made, connect_epoch(nobody_, members, std::move(mesh), config_, options_));
  std::lock_guard lock(mutex_);
  epoch_ = made.get();
  return made;
}

std::string Workers::terminate(LedRank& rank, const Error& cause) {
  rank.control.close();
  const RemoteWorkerPtr& member = members_[static_cast<std::size_t>(rank.number) - 1];
  [[maybe_unused]] const Status told = release(*member);  // one that is gone need not hear it
  std::lock_guard lock(mutex_);
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
  if (epoch_ != nullptr) epoch_->abort();
}

}  // namespace

Result<TrainResult> train_with_workers(const RunConfig& config, const TrainObserver& observer,
                                       const std::stop_token& stop, const RanksOptions& options) {
  RunConfig counted = config;
  counted.parallel.ranks = ranks_of(config.parallel);
  counted.parallel.engine = RankEngine::kTcp;
  Workers workers(counted, options, stop);
  return lead_ranks(workers, counted, observer, stop, options.member_timeout);
}

}  // namespace butterfly
