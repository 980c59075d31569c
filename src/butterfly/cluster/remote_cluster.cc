#include "butterfly/cluster/remote_cluster.h"

#include <unistd.h>

#include <algorithm>
#include <set>

#include "butterfly/base/log.h"
#include "butterfly/cluster/check_start.h"
#include "butterfly/cluster/weight_transfer.h"

namespace butterfly {

RemoteCluster::RemoteCluster(std::vector<Greeted> greeted, const SessionId& id, const ClusterOptions& options)
    : id_(id), options_(options), health_(std::make_shared<Health>([this] {
        std::lock_guard lock(mutex_);
        changed_.notify_all();
      })) {
  for (Greeted& one : greeted) {
    nodes_.push_back(std::move(one.node));
    nodes_.back().address = one.address;
    auto worker = std::make_unique<Worker>();
    worker->title = fmt::format("worker {}", one.address);
    worker->address = std::move(one.address);
    worker->link = std::move(one.link);
    workers_.push_back(std::move(worker));
  }
  for (const auto& worker : workers_) worker->monitor = std::thread([this, &one = *worker] { run_monitor(one); });
  heartbeat_ = std::thread([this] { run_heartbeat(); });
}

RemoteCluster::~RemoteCluster() {
  stop();
}

void RemoteCluster::run_monitor(Worker& worker) {
  for (;;) {
    const auto message = worker.link->receive(std::chrono::steady_clock::now() + options_.dead_after);
    if (message) {
      handle(worker, *message);
      continue;
    }
    std::string title;
    bool needed = true;
    {
      std::lock_guard lock(mutex_);
      worker.gone = true;
      title = worker.title;
      needed = stages_.empty() || std::ranges::find(stages_, &worker) != stages_.end();
      changed_.notify_all();
    }
    worker.link->close();
    if (!needed) {
      log().warn("{}, which stood by, went away: {}", title, message.error().message);
      return;
    }
    // Nothing is a failure any more once stop() has retired the health.
    health_->fail(
        {.code = ErrorCode::kUnavailable, .message = fmt::format("{} went away: {}", title, message.error().message)});
    return;
  }
}

void RemoteCluster::handle(Worker& worker, const control::ControlMessage& message) {
  std::unique_lock lock(mutex_);
  switch (message.body_case()) {
    case control::ControlMessage::kPong:
      worker.pong_sequence = std::max(worker.pong_sequence, message.pong().sequence());
      worker.data_bytes_sent = std::max(worker.data_bytes_sent, message.pong().data_bytes_sent());
      break;
    case control::ControlMessage::kReady:
      worker.ready = true;
      worker.memory_bytes = message.ready().memory_bytes();
      break;
    case control::ControlMessage::kReleased:
      worker.released = true;
      break;
    case control::ControlMessage::kFailure: {
      Error error = read_failure(message.failure(), worker.title);
      lock.unlock();
      // A closed connection or a late answer may be another worker's fault.
      const bool complaint = error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout;
      if (complaint) {
        health_->suspect(std::move(error));
      } else {
        health_->fail(std::move(error));
      }
      return;
    }
    default: {
      Error error{.code = ErrorCode::kProtocol,
                  .message = fmt::format("{} sent a message that only coordinators send", worker.title)};
      lock.unlock();
      health_->fail(std::move(error));
      return;
    }
  }
  changed_.notify_all();
}

void RemoteCluster::ping_all() {
  control::ControlMessage message;
  {
    std::lock_guard lock(mutex_);
    message.mutable_ping()->set_sequence(++ping_sequence_);
  }
  // A worker that cannot be reached is noticed by its monitor.
  for (const auto& worker : workers_) static_cast<void>(worker->link->send(message));
}

void RemoteCluster::run_heartbeat() {
  while (!stopping_) {
    ping_all();
    health_->attend(std::chrono::steady_clock::now() + options_.heartbeat);
  }
}

Result<ChannelPtr> RemoteCluster::open_data(const std::string& address, const char* label, Deadline deadline) const {
  ConnectOptions connecting;
  connecting.introduction = {.role = ConnectionRole::kData, .session = id_, .label = label};
  connecting.peer_name = fmt::format("worker {}", address);
  connecting.access = options_.access;
  connecting.channel.spin = options_.spin;
  return connect_tcp(address, connecting, deadline);
}

Status RemoteCluster::assign(const StartRequest& request, Deadline deadline) {
  const Plan& plan = request.plan;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    Worker& worker = *stages_[i];
    BF_ASSIGN_OR_RETURN(worker.weights, open_data(worker.address, kWeightsLabel, deadline));
    worker.weight_server = std::thread([this, &channel = *worker.weights] {
      static_cast<void>(serve_weights(channel, provider_, weight_bytes_));  // ends when the worker closes it
    });
    if (i == 0) {
      BF_ASSIGN_OR_RETURN(input_, open_data(worker.address, kInputLabel, deadline));
      health_->watch(input_);
    }
    if (i + 1 == plan.stages.size()) {
      BF_ASSIGN_OR_RETURN(output_, open_data(worker.address, kOutputLabel, deadline));
      health_->watch(output_);
    }
  }
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Assignment assignment{.epoch = request.epoch,
                                .model = request.model,
                                .config = request.config,
                                .options = request.options,
                                .stage = plan.stages[i],
                                .rank = Rank(static_cast<int>(i)),
                                .stages = static_cast<int>(plan.stages.size()),
                                .next_address = i + 1 < plan.stages.size() ? stages_[i + 1]->address : std::string()};
    control::ControlMessage message;
    store(assignment, *message.mutable_assign());
    BF_TRY(stages_[i]->link->send(message));
  }
  return {};
}

Status RemoteCluster::wait_until_ready(const StartRequest& request, Deadline deadline) {
  constexpr std::chrono::milliseconds kProgressInterval{100};
  for (;;) {
    StartProgress progress{.stages = static_cast<int>(stages_.size())};
    std::string waiting_for;
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] { return std::ranges::all_of(stages_, &Worker::ready); };
      changed_.wait_until(lock, std::min(deadline, std::chrono::steady_clock::now() + kProgressInterval),
                          [&] { return ready() || health_->failure(); });
      for (const Worker* worker : stages_) {
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
  }
}

Result<PipelineEnds> RemoteCluster::start(const StartRequest& request, Deadline deadline) {
  BF_TRY(check_start(request, nodes_.size(), started_));
  started_ = true;
  provider_ = request.weights;
  {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < request.plan.stages.size(); ++i) {
      Worker& worker = *workers_[static_cast<std::size_t>(request.plan.node_of_stage[i])];
      worker.title = fmt::format("worker {} (stage {} of {})", worker.address, i + 1, request.plan.stages.size());
      stages_.push_back(&worker);
    }
  }
  Status status = assign(request, deadline);
  if (status) status = wait_until_ready(request, deadline);
  if (!status) {
    const auto cause = health_->failure();
    return tl::unexpected(cause ? *cause : status.error());
  }
  PipelineEnds ends{.input = make_pipeline_channel(input_, health_),
                    .output = make_pipeline_channel(output_, health_),
                    .memory_bytes = {}};
  std::lock_guard lock(mutex_);
  for (const Worker* worker : stages_) ends.memory_bytes.push_back(worker->memory_bytes);
  return ends;
}

Result<std::uint64_t> RemoteCluster::data_bytes(Deadline deadline) {
  ping_all();
  std::unique_lock lock(mutex_);
  const std::uint64_t sequence = ping_sequence_;
  const bool answered = changed_.wait_until(lock, deadline, [&] {
    return std::ranges::all_of(stages_, [&](const Worker* worker) { return worker->pong_sequence >= sequence; }) ||
           health_->failure();
  });
  if (auto error = health_->failure()) return tl::unexpected(std::move(*error));
  if (!answered) return make_error(ErrorCode::kTimeout, "not every worker said how much it sent");
  std::uint64_t bytes = input_ ? input_->stats().bytes_sent : 0;
  for (const Worker* worker : stages_) bytes += worker->data_bytes_sent;
  return bytes;
}

void RemoteCluster::stop() {
  if (std::exchange(stopped_, true)) return;
  stopping_ = true;
  health_->retire();
  heartbeat_.join();
  control::ControlMessage release;
  release.mutable_release();
  for (const auto& worker : workers_) static_cast<void>(worker->link->send(release));
  for (const auto& channel : {input_, output_}) {
    if (channel) channel->close();
  }
  {
    std::unique_lock lock(mutex_);
    const auto free = [&] {
      return std::ranges::all_of(workers_, [](const auto& worker) { return worker->released || worker->gone; });
    };
    if (!changed_.wait_until(lock, std::chrono::steady_clock::now() + options_.release_timeout, free)) {
      log().warn("not every worker confirmed its release");
    }
  }
  for (const auto& worker : workers_) {
    worker->link->close();
    if (worker->weights) worker->weights->close();
    worker->monitor.join();
    if (worker->weight_server.joinable()) worker->weight_server.join();
  }
}

namespace {

std::string coordinator_name(const ClusterOptions& options) {
  if (!options.name.empty()) return options.name.substr(0, kLabelBytesMax);
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  const std::string process = fmt::format(", process {}", ::getpid());
  return std::string(host.data()).substr(0, kLabelBytesMax - process.size()) + process;
}

/// Connects and reads the worker's first words.
Result<Greeted> greet(const std::string& address, const Introduction& introduction, const NodeAccess& access,
                      Deadline deadline) {
  const std::string title = fmt::format("worker {}", address);
  ConnectOptions connecting;
  connecting.introduction = introduction;
  connecting.access = access;
  connecting.channel.spin = std::chrono::microseconds(0);  // nobody is in a hurry here
  BF_ASSIGN_OR_RETURN(ChannelPtr channel, connect_tcp(address, connecting, deadline));
  auto link = std::make_unique<ControlLink>(std::move(channel));
  BF_ASSIGN_OR_RETURN(const auto message, link->receive(deadline));
  if (message.has_failure()) return tl::unexpected(read_failure(message.failure(), title));
  if (!message.has_worker_hello()) return make_error(ErrorCode::kProtocol, "{} did not say hello", title);
  if (const auto& version = message.worker_hello().program_version(); version != BUTTERFLY_VERSION) {
    log().warn("{} runs version {}, this program is {}", title, version, BUTTERFLY_VERSION);
  }
  auto node = read_node(message.worker_hello().node());
  if (!node) return make_error(node.error().code, "{}: {}", title, node.error().message);
  return Greeted{.address = address, .node = std::move(*node), .link = std::move(link)};
}

}  // namespace

Result<std::unique_ptr<ClusterSession>> connect_cluster(const std::vector<std::string>& addresses, Deadline deadline,
                                                        const ClusterOptions& options) {
  if (addresses.empty()) return make_error(ErrorCode::kInvalidArgument, "no workers were named");
  std::set<std::string> seen;
  for (const std::string& address : addresses) {
    if (!seen.insert(address).second) {
      return make_error(ErrorCode::kInvalidArgument, "worker {} is named twice", address);
    }
  }
  const Introduction introduction{
      .role = ConnectionRole::kControl, .session = make_session_id(), .label = coordinator_name(options)};
  std::vector<std::optional<Result<Greeted>>> answers(addresses.size());
  {
    std::vector<std::jthread> dialling;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      dialling.emplace_back(
          [&, i] { answers[i].emplace(greet(addresses[i], introduction, options.access, deadline)); });
    }
  }
  std::vector<Greeted> greeted;
  for (auto& answer : answers) {
    BF_ASSIGN_OR_RETURN(Greeted one, std::move(*answer));
    greeted.push_back(std::move(one));
  }
  return std::make_unique<RemoteCluster>(std::move(greeted), introduction.session, options);
}

}  // namespace butterfly
