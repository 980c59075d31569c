#include "butterfly/cluster/membership/remote_cluster.h"

#include <algorithm>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/membership/check_start.h"
#include "butterfly/cluster/worker/weight_transfer.h"

namespace butterfly {

RemoteCluster::RemoteCluster(WorkerRegistry& registry, std::vector<RemoteWorkerPtr> members)
    : registry_(registry), members_(std::move(members)), health_(std::make_shared<Health>([this] {
        giving_up_.request_stop();
        std::lock_guard lock(mutex_);
        changed_.notify_all();
      })) {
  for (const RemoteWorkerPtr& member : members_) nodes_.push_back(member->node);
}

RemoteCluster::~RemoteCluster() {
  stop();
}

RemoteCluster::Worker* RemoteCluster::worker_of(const RemoteWorker& member) {
  const auto found = std::ranges::find(workers_, &member, [](const auto& worker) { return worker->member.get(); });
  return found == workers_.end() ? nullptr : found->get();
}

void RemoteCluster::on_gone(const RemoteWorker& member, const Error& cause) {
  const Worker* worker = worker_of(member);
  if (worker == nullptr) {
    if (purpose_ == Purpose::kPrepare) return;
    log().warn("worker {}, which stood by, went away: {}", member.address, cause.message);
    return;
  }
  // Nothing is a failure any more once stop() has retired the health.
  health_->fail(
      {.code = ErrorCode::kUnavailable, .message = fmt::format("{} went away: {}", worker->title, cause.message)});
}

void RemoteCluster::on_message(const RemoteWorker& member, const control::ControlMessage& message) {
  Worker* worker = worker_of(member);
  if (worker == nullptr) {
    if (!message.has_leave() || purpose_ == Purpose::kPrepare) return;
    control::ControlMessage release;  // it stands by: nobody has to do without it first
    release.mutable_release();
    static_cast<void>(member.link->send(release));
    return;
  }
  std::unique_lock lock(mutex_);
  switch (message.body_case()) {
    case control::ControlMessage::kPong:
      if (Epoch(message.pong().epoch()) != epoch_) return;
      worker->pong_sequence = std::max(worker->pong_sequence, message.pong().sequence());
      if (message.pong().data_bytes_sent() >= worker->sent.bytes_sent) {
        worker->sent.bytes_sent = message.pong().data_bytes_sent();
        worker->sent.bytes_saved = message.pong().data_bytes_saved();
        worker->sent.lz4_messages = message.pong().lz4_messages();
        worker->sent.zstd_messages = message.pong().zstd_messages();
      }
      worker->work = {.steps = message.pong().steps(), .busy_ns = message.pong().busy_ns()};
      break;
    case control::ControlMessage::kReady:
      if (Epoch(message.ready().epoch()) != epoch_) return;
      hear_ready(*worker, message.ready());
      break;
    case control::ControlMessage::kPrepared:
      if (Epoch(message.prepared().epoch()) != epoch_) return;
      worker->ready = true;
      break;
    case control::ControlMessage::kFailure: {
      if (Epoch(message.failure().epoch()) != epoch_) return;
      Error error = read_failure(message.failure(), worker->title);
      if (!health_->failure()) worker->complained = true;
      lock.unlock();
      // A closed connection, a late answer or a damaged message may be another worker's fault.
      if (ends_epoch(error)) {
        health_->suspect(std::move(error));
      } else {
        health_->fail(std::move(error));
      }
      return;
    }
    default:
      return;
  }
  changed_.notify_all();
}

/// What shares hold that it does not name is unknown.
void RemoteCluster::hear_ready(Worker& worker, const control::Ready& ready) {
  worker.ready = true;
  if (ready.has_file()) worker.member->has_file = true;
  const std::size_t said = std::min(worker.shares.size(), static_cast<std::size_t>(ready.shares_size()));
  for (std::size_t i = 0; i < said; ++i) {
    const control::ReadyShare& share = ready.shares(static_cast<int>(i));
    worker.ready_shares[i] = {
        .memory_bytes = share.memory_bytes(), .exchange = read_exchange(share), .times = read_exchange_times(share)};
  }
}

Result<ChannelPtr> RemoteCluster::open_data(const Worker& worker, const std::string& label, Deadline deadline) const {
  ConnectOptions connecting;
  connecting.introduction = {
      .role = ConnectionRole::kData, .session = registry_.session(), .label = data_label(label, epoch_)};
  connecting.peer_name = fmt::format("worker {}", worker.member->address);
  connecting.access = registry_.options().access;
  connecting.channel.spin = registry_.options().spin;
  connecting.stop = giving_up_.get_token();
  return connect_tcp(worker.member->address, connecting, deadline);
}

Status RemoteCluster::open_channels(Deadline deadline) {
  // At once: a node that does not answer must not hold up those that do.
  std::vector<std::function<Status()>> openings;
  const auto pipeline_end = [&](const Worker& worker, const std::string& label, std::shared_ptr<Channel>& end) {
    openings.push_back([&, label, deadline]() -> Status {
      BF_ASSIGN_OR_RETURN(end, open_data(worker, label, deadline));
      health_->watch(end);
      return {};
    });
  };
  if (purpose_ == Purpose::kRun) {
    pipeline_end(worker_of(0), input_label(Rank(0)), input_);
    for (const auto& worker : workers_) {
      for (const Assignment& one : worker->assignments) {
        if (!one.leads() || one.rank.value + 1 < one.stages) continue;
        pipeline_end(*worker, output_label(one.rank), output_);
      }
    }
  }
  for (const auto& worker : workers_) {
    openings.push_back([this, &one = *worker, deadline]() -> Status {
      BF_ASSIGN_OR_RETURN(one.weights, open_data(one, kWeightsLabel, deadline));
      return {};
    });
  }
  std::vector<Status> opened(openings.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < openings.size(); ++i) {
      threads.emplace_back([&, i] {
        opened[i] = openings[i]();
        if (!opened[i]) giving_up_.request_stop();
      });
    }
  }
  Status first;
  for (const Status& status : opened) {
    if (status) continue;
    if (first || first.error().code == ErrorCode::kCancelled) first = status;  // the cause, not its consequences
  }
  return first;
}

/// Workers that have the model's file, another one in front for each worker, so that no holder gives to all at once.
std::vector<std::string> RemoteCluster::holders_for(std::size_t worker) const {
  constexpr std::size_t kHoldersMax = 4;
  std::vector<std::string> holders;
  for (const RemoteWorkerPtr& member : members_) {
    if (member->has_file && member != workers_[worker]->member) holders.push_back(member->address);
  }
  if (holders.empty()) return holders;
  std::ranges::rotate(holders, holders.begin() + static_cast<std::ptrdiff_t>(worker % holders.size()));
  holders.resize(std::min(holders.size(), kHoldersMax));
  return holders;
}

Status RemoteCluster::assign() {
  for (const auto& worker : workers_) {
    worker->weight_server = std::thread([this, &channel = *worker->weights] {
      static_cast<void>(serve_weights(channel, provider_, weight_bytes_));  // ends when the worker closes it
    });
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = *workers_[i];
    for (Assignment& one : worker.assignments) one.holders = holders_for(i);
    control::ControlMessage message;
    store(worker.assignments,
          purpose_ == Purpose::kRun ? *message.mutable_assign() : *message.mutable_prepare()->mutable_assign());
    BF_TRY(worker.member->link->send(message));
  }
  return {};
}

Status RemoteCluster::wait_until_ready(const StartRequest& request, Deadline deadline) {
  constexpr std::chrono::milliseconds kProgressInterval{100};
  for (;;) {
    StartProgress progress{.stages = static_cast<int>(workers_.size())};
    std::string waiting_for;
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] {
        return std::ranges::all_of(workers_, [](const auto& worker) { return worker->ready; });
      };
      changed_.wait_until(lock, std::min(deadline, std::chrono::steady_clock::now() + kProgressInterval),
                          [&] { return ready() || health_->failure(); });
      for (const auto& worker : workers_) {
        if (worker->ready) {
          ++progress.ready;
        } else if (waiting_for.empty()) {
          waiting_for = worker->title;
        }
      }
    }
    progress.weight_bytes = weight_bytes_;
    if (auto error = health_->failure()) return tl::unexpected(std::move(*error));
    if (request.progress) request.progress(progress);
    if (progress.ready == progress.stages) return {};
    if (std::chrono::steady_clock::now() >= deadline) {
      return make_error(ErrorCode::kTimeout, "{} was not ready in time; {} of {} were", waiting_for, progress.ready,
                        progress.stages);
    }
    if (request.stop.stop_requested()) {
      return make_error(ErrorCode::kCancelled, "cancelled while {} of {} workers were ready", progress.ready,
                        progress.stages);
    }
  }
}

void RemoteCluster::make_workers(const StartRequest& request) {
  for (Assignment& assignment : make_assignments(request, nodes_)) {
    const std::size_t share = worker_of_share_.size();
    const RemoteWorkerPtr& member = members_[static_cast<std::size_t>(request.plan.shares[share].node)];
    const auto known = std::ranges::find(workers_, member, [](const auto& worker) { return worker->member; });
    worker_of_share_.push_back(static_cast<std::size_t>(known - workers_.begin()));
    if (known == workers_.end()) workers_.push_back(std::make_unique<Worker>(Worker{.member = member}));
    Worker& worker = *workers_[worker_of_share_.back()];
    worker.shares.push_back(share);
    worker.assignments.push_back(std::move(assignment));
  }
  for (const auto& worker : workers_) {
    worker->title = fmt::format("worker {} ({})", worker->member->address, describe(worker->assignments));
    worker->ready_shares.resize(worker->shares.size());
  }
}

Result<PipelineChannels> RemoteCluster::start(const StartRequest& request, Deadline deadline) {
  BF_TRY(check_start(request, nodes_.size(), started_));
  started_ = true;
  epoch_ = request.epoch;
  purpose_ = request.purpose;
  provider_ = request.weights;
  make_workers(request);
  if (purpose_ == Purpose::kRun) registry_.release_leaving();  // the epoch that needed them has been stopped
  registry_.observe(this);
  attendant_ = std::thread([this] { health_->attend(Deadline::max()); });
  const std::stop_callback cancel(request.stop, [this] { giving_up_.request_stop(); });
  Status status;
  for (const auto& worker : workers_) {
    // Deaths that were noticed before the observation began.
    const auto& link = worker->member->link;
    if (!link || !link->usable()) on_gone(*worker->member, {.message = "its connection is closed"});
  }
  if (auto error = health_->failure()) return tl::unexpected(std::move(*error));
  status = open_channels(deadline);
  if (status) status = assign();
  if (!status && !request.stop.stop_requested()) {
    // A worker that died on the way is a better explanation than the connection that noticed.
    return tl::unexpected(health_->explain(status.error()));
  }
  if (status) status = wait_until_ready(request, deadline);
  if (!status) return tl::unexpected(std::move(status).error());
  if (purpose_ == Purpose::kPrepare) return PipelineChannels{};
  PipelineChannels ends{.input = make_pipeline_channel(input_, health_),
                        .output = make_pipeline_channel(output_, health_),
                        .shares = std::vector<ReadyShare>(worker_of_share_.size())};
  std::lock_guard lock(mutex_);
  for (const auto& worker : workers_) {
    for (std::size_t i = 0; i < worker->shares.size(); ++i) ends.shares[worker->shares[i]] = worker->ready_shares[i];
  }
  return ends;
}

std::vector<StageWork> RemoteCluster::work() const {
  std::lock_guard lock(mutex_);
  std::vector<StageWork> all;
  for (std::size_t share = 0; share < worker_of_share_.size(); ++share) all.push_back(worker_of(share).work);
  return all;
}

std::vector<std::string> RemoteCluster::complaining() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> addresses;
  for (const auto& worker : workers_) {
    if (worker->complained) addresses.push_back(worker->member->address);
  }
  return addresses;
}

Result<DataTraffic> RemoteCluster::data_traffic(Deadline deadline) {
  const std::uint64_t sequence = registry_.ping();
  std::unique_lock lock(mutex_);
  const bool answered = changed_.wait_until(lock, deadline, [&] {
    return health_->failure() ||
           std::ranges::all_of(workers_, [&](const auto& worker) { return worker->pong_sequence >= sequence; });
  });
  if (auto error = health_->failure()) return tl::unexpected(std::move(*error));
  if (!answered) return make_error(ErrorCode::kTimeout, "not every worker said how much it sent");
  DataTraffic traffic;
  if (input_) traffic.add(input_->stats());
  for (const auto& worker : workers_) traffic.add(worker->sent);
  return traffic;
}

void RemoteCluster::stop() {
  if (std::exchange(stopped_, true)) return;
  if (!started_) return;
  health_->retire();
  registry_.forget(this);
  if (attendant_.joinable()) attendant_.join();
  for (const auto& channel : {input_, output_}) {
    if (channel) channel->close();
  }
  for (const auto& worker : workers_) {
    if (worker->weights) worker->weights->close();
    if (worker->weight_server.joinable()) worker->weight_server.join();
  }
}

}  // namespace butterfly
