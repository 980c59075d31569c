#include "butterfly/cluster/worker/worker_session.h"

#include <algorithm>
#include <cctype>
#include <numeric>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/data_traffic.h"

namespace butterfly {
namespace {

constexpr std::chrono::seconds kRunEndTimeout{2};

/// A peer chose the label: only what can be printed safely.
std::string printable(const std::string& label, const std::string& peer) {
  std::string text = label;
  std::ranges::replace_if(
      text, [](unsigned char c) { return std::isprint(c) == 0; }, '?');
  return text.empty() ? peer : fmt::format("{} ({})", text, peer);
}

}  // namespace

WorkerSession::WorkerSession(const WorkerOptions& options, LocalModels& local, WorkerDelegate& delegate,
                             Arrival control, std::function<void()> on_end)
    : options_(options),
      local_(local),
      delegate_(delegate),
      id_(control.introduction.session),
      coordinator_(printable(parse_control_label(control.introduction.label).coordinator, control.channel->peer())),
      on_end_(std::move(on_end)),
      link_(std::move(control.channel)),
      weight_server_(local, delegate),
      work_([this] { run_assignments(); }),
      preparations_([this] { run_preparations(); }),
      control_([this] { run_control(); }) {}

WorkerSession::~WorkerSession() {
  link_.close();
  control_.join();
}

static void store(const RankStatus& rank, control::TrainingStatus& message) {
  message.set_model(rank.model);
  message.set_rank(static_cast<std::uint32_t>(rank.rank));
  message.set_ranks(static_cast<std::uint32_t>(rank.ranks));
  message.set_step(static_cast<std::uint64_t>(rank.step));
  message.set_steps(static_cast<std::uint64_t>(rank.steps));
  message.set_loss(rank.loss);
  message.set_computing_ns(static_cast<std::uint64_t>(rank.computing_s * 1e9));
  message.set_waiting_ns(static_cast<std::uint64_t>(rank.waiting_s * 1e9));
}

void WorkerSession::describe(control::WorkerStatus& status) const {
  status.set_coordinator(coordinator_);
  std::lock_guard lock(mutex_);
  status.set_epoch(epoch_.value);
  if (training_now_) {
    status.set_epoch(options_.ranks->epoch().value);
    store(options_.ranks->status(), *status.mutable_training());
  }
  if (working_.empty()) return;
  status.set_model(working_.front().model.name);
  for (const Assignment& one : working_) store(one.stage, *status.add_stages());
  status.set_memory_bytes(memory_bytes_);
}

void WorkerSession::deliver(Arrival data) {
  if (data.introduction.label == kTrainLabel) return begin_training(std::move(data.channel));
  if (data.introduction.label.starts_with(kRankLabelStart)) return members_.deliver(std::move(data));
  const auto label = parse_data_label(data.introduction.label);
  if (!label || label->what != kHolderLabel) return hub_.deliver(data.introduction.label, std::move(data.channel));
  std::string hash;
  {
    std::lock_guard lock(mutex_);
    hash = model_hash_;
  }
  weight_server_.give(std::move(data.channel), hash);
}

/// A connection that finds no host, or a run already, is closed.
void WorkerSession::begin_training(ChannelPtr leader) {
  std::lock_guard lock(mutex_);
  if (ending_ || options_.ranks == nullptr || training_.joinable()) return;
  training_now_ = true;
  training_ = std::thread([this, channel = std::shared_ptr<Channel>(std::move(leader))] {
    log().info("a rank of a training run of {}", coordinator_);
    const RankConnections connections{
        .session = id_, .leader = channel, .members = members_, .access = options_.access};
    const Status done = options_.ranks->take_part(connections, training_stop_.get_token());
    channel->close();
    if (!done) log().warn("the training run of {} ended here: {}", coordinator_, done.error().message);
    std::lock_guard ending(mutex_);
    training_now_ = false;
    changed_.notify_all();
  });
}

RemoteWeightFetcher::Source WorkerSession::source_of(const Assignment& assignment, const std::stop_token& stop) const {
  const auto connect = [this, stop, epoch = assignment.epoch](const std::string& address) {
    ConnectOptions connecting;
    connecting.access = options_.access;
    connecting.introduction = {.role = ConnectionRole::kData, .session = id_, .label = data_label(kHolderLabel, epoch)};
    connecting.stop = stop;
    return connect_tcp(address, connecting, std::chrono::steady_clock::now() + options_.connect_timeout);
  };
  return {.hash = assignment.model.hash,
          .bytes = assignment.model.bytes,
          .holders = assignment.holders,
          .connect = connect};
}

void WorkerSession::leave() {
  training_stop_.request_stop();
  control::ControlMessage message;
  message.mutable_leave();
  static_cast<void>(link_.send(message));  // a coordinator that is gone need not be asked
}

/// As soon as this node knows its speed; until then a sign of life now and then.
Status WorkerSession::say_hello() {
  constexpr std::chrono::milliseconds kSignInterval{500};
  control::ControlMessage hello;
  Result<NodeDescriptor> node = options_.node;
  if (options_.measured.valid()) {
    control::ControlMessage measuring;
    measuring.mutable_measuring();
    while (options_.measured.wait_for(kSignInterval) != std::future_status::ready) BF_TRY(link_.send(measuring));
    node = options_.measured.get();
  }
  if (node) {
    hello.mutable_worker_hello()->set_program_version(BUTTERFLY_VERSION);
    store(*node, *hello.mutable_worker_hello()->mutable_node());
    hello.mutable_worker_hello()->set_trains(options_.ranks != nullptr);
    hello.mutable_worker_hello()->set_identity(to_bytes(options_.identity));
  } else {
    store(node.error(), *hello.mutable_failure());
  }
  return link_.send(hello);
}

void WorkerSession::run_control() {
  log().info("coordinator {} connected", coordinator_);
  Status said = say_hello();
  while (said && !released_) {
    const auto message = link_.receive(std::chrono::steady_clock::now() + options_.dead_after);
    if (!message) {
      log().info("coordinator {} is gone: {}", coordinator_, message.error().message);
      break;
    }
    if (!handle(*message)) break;
  }
  {
    std::unique_lock lock(mutex_);
    ending_ = true;
    work_stop_.request_stop();
    preparation_stop_.request_stop();
    changed_.notify_all();
    // What ended the run is on its way over the run's own connection.
    if (released_) changed_.wait_for(lock, kRunEndTimeout, [&] { return !training_now_; });
  }
  training_stop_.request_stop();
  members_.close();
  hub_.end_through(Epoch(~0u));
  if (training_.joinable()) training_.join();
  preparations_.join();
  work_.join();
  if (released_) {
    control::ControlMessage released;
    released.mutable_released();
    static_cast<void>(link_.send(released));  // a coordinator that has left already needs no answer
  }
  link_.close();
  ended_ = true;
  on_end_();
}

bool WorkerSession::handle(const control::ControlMessage& message) {
  switch (message.body_case()) {
    case control::ControlMessage::kPing:
      say_pong(message.ping().sequence());
      return true;
    case control::ControlMessage::kRelease:
      released_ = true;
      return true;
    case control::ControlMessage::kAssign:
    case control::ControlMessage::kPrepare: {
      const control::Assign& said = message.has_assign() ? message.assign() : message.prepare().assign();
      auto assignments = read_assignments(said);
      if (assignments && message.has_assign()) return begin(std::move(*assignments));
      if (assignments) {
        begin_preparation(std::move(*assignments));
        return true;
      }
      log().warn("coordinator {}: {}", coordinator_, assignments.error().message);
      complain(Epoch(said.epoch()), assignments.error());
      return false;
    }
    default:
      log().warn("coordinator {} sent a message that only workers send", coordinator_);
      return false;
  }
}

bool WorkerSession::begin(std::vector<Assignment> assignments) {
  const Epoch epoch = assignments.front().epoch;
  {
    std::lock_guard lock(mutex_);
    if (epoch <= epoch_) {
      log().warn("coordinator {} assigned epoch {} after epoch {}", coordinator_, epoch.value, epoch_.value);
      return false;
    }
    epoch_ = epoch;
    model_hash_ = assignments.front().model.hash;
    next_ = std::move(assignments);
    next_preparation_.reset();
    work_stop_.request_stop();
    preparation_stop_.request_stop();
    changed_.notify_all();
  }
  hub_.end_through(Epoch(epoch.value - 1));
  return true;
}

void WorkerSession::begin_preparation(std::vector<Assignment> assignments) {
  std::lock_guard lock(mutex_);
  if (assignments.front().epoch <= epoch_) return;
  next_preparation_ = std::move(assignments);
  preparation_stop_.request_stop();
  changed_.notify_all();
}

void WorkerSession::run_preparations() {
  for (;;) {
    std::vector<Assignment> assignments;
    std::stop_token stop;
    {
      std::unique_lock lock(mutex_);
      preparing_ = false;
      changed_.notify_all();
      // Not beside load(): both fill the same store.
      changed_.wait(lock, [&] { return ending_ || (next_preparation_ && !loading_ && !next_); });
      if (ending_) return;
      assignments = *std::exchange(next_preparation_, std::nullopt);
      preparation_stop_ = {};
      stop = preparation_stop_.get_token();
      preparing_ = true;
    }
    const Status status = prepare(assignments, stop);
    if (stop.stop_requested()) continue;
    control::ControlMessage message;
    message.mutable_prepared()->set_epoch(assignments.front().epoch.value);
    if (status) {
      static_cast<void>(link_.send(message));
    } else {
      complain(assignments.front().epoch, status.error());
    }
  }
}

Status WorkerSession::prepare(std::span<const Assignment> assignments, const std::stop_token& stop) {
  BF_ASSIGN_OR_RETURN(const auto weights, wait_for_weights(assignments.front().epoch));
  RemoteWeightFetcher fetcher(*weights, local_, source_of(assignments.front(), stop));
  const Status status = delegate_.prepare(assignments, fetcher, stop);
  weights->close();
  return status;
}

void WorkerSession::run_assignments() {
  for (;;) {
    std::vector<Assignment> assignments;
    std::stop_token stop;
    {
      std::unique_lock lock(mutex_);
      loading_ = false;
      working_.clear();
      changed_.notify_all();
      changed_.wait(lock, [&] { return ending_ || (next_ && !preparing_); });
      if (ending_) return;
      assignments = *std::exchange(next_, std::nullopt);
      loading_ = true;
      work_stop_ = {};
      stop = work_stop_.get_token();
    }
    run_work(assignments, stop);
  }
}

void WorkerSession::say_pong(std::uint64_t sequence) {
  Epoch epoch;
  {
    std::lock_guard lock(mutex_);
    epoch = epoch_;
  }
  control::ControlMessage message;
  message.mutable_pong()->set_sequence(sequence);
  const auto channels = hub_.step_channels(epoch);
  check_neighbours(epoch, channels);
  DataTraffic sent;
  for (const auto& channel : channels) sent.add(channel->stats());
  message.mutable_pong()->set_data_bytes_sent(sent.bytes);
  message.mutable_pong()->set_data_bytes_saved(sent.bytes_saved);
  message.mutable_pong()->set_lz4_messages(sent.lz4_messages);
  message.mutable_pong()->set_zstd_messages(sent.zstd_messages);
  message.mutable_pong()->set_epoch(epoch.value);
  const StageWork done = delegate_.done();
  message.mutable_pong()->set_steps(done.steps);
  message.mutable_pong()->set_busy_ns(done.busy_ns);
  static_cast<void>(link_.send(message));  // the control thread's next receive says why this failed
}

/// Nobody else would notice: both nodes answer their coordinator.
void WorkerSession::check_neighbours(Epoch epoch, std::span<const std::shared_ptr<Channel>> channels) {
  for (const auto& channel : channels) {
    if (channel->unacknowledged() <= options_.unreachable_after) continue;
    complain(epoch, {.code = ErrorCode::kTimeout,
                     .message = fmt::format("{} has acknowledged nothing for {} ms", channel->peer(),
                                            options_.unreachable_after.count())});
  }
}

void WorkerSession::run_work(std::span<const Assignment> assignments, const std::stop_token& stop) {
  const Epoch epoch = assignments.front().epoch;
  const Status status = work(assignments, stop);
  hub_.end_through(epoch);  // so that the neighbours do not wait
  if (stop.stop_requested()) return;
  const Error ended{.code = ErrorCode::kUnavailable, .message = "its connection to a neighbour closed"};
  complain(epoch, status ? ended : status.error());
}

void WorkerSession::complain(Epoch epoch, const Error& error) {
  control::ControlMessage message;
  store(error, *message.mutable_failure(), epoch);
  static_cast<void>(link_.send(message));
}

Result<std::shared_ptr<Channel>> WorkerSession::wait_for_weights(Epoch epoch) {
  auto channel = hub_.wait(kWeightsLabel, epoch, std::chrono::steady_clock::now() + options_.wait_timeout);
  if (!channel) {
    return make_error(ErrorCode::kUnavailable, "nobody opened its connection for weights within {} ms",
                      options_.wait_timeout.count());
  }
  return channel;
}

/// Every worker opens the connections of its stages in the order of the pipeline: a worker that waits for another waits
/// for an earlier stage or a lower member of the same one, so nobody waits in a circle.
Status WorkerSession::work(std::span<const Assignment> assignments, const std::stop_token& stop) {
  std::vector<std::unique_ptr<StageConnections>> connections;
  for (const Assignment& assignment : assignments) {
    connections.push_back(std::make_unique<StageConnections>(options_, id_, hub_, assignment));
    BF_TRY(connections.back()->open(stop));
  }
  BF_ASSIGN_OR_RETURN(const auto weights, wait_for_weights(assignments.front().epoch));
  const auto memory_bytes = load(assignments, *weights, stop);
  const Status status =
      memory_bytes ? serve(assignments, *memory_bytes, connections, stop) : tl::unexpected(memory_bytes.error());
  delegate_.unload();
  return status;
}

Result<std::vector<std::uint64_t>> WorkerSession::load(std::span<const Assignment> assignments, Channel& weights,
                                                       const std::stop_token& stop) {
  RemoteWeightFetcher fetcher(weights, local_, source_of(assignments.front(), stop));
  auto memory_bytes = delegate_.load(assignments, fetcher, stop);
  weights.close();
  std::lock_guard lock(mutex_);
  loading_ = false;
  if (memory_bytes) {
    working_.assign(assignments.begin(), assignments.end());
    memory_bytes_ = std::accumulate(memory_bytes->begin(), memory_bytes->end(), std::uint64_t{0});
  }
  changed_.notify_all();
  return memory_bytes;
}

Status WorkerSession::serve(std::span<const Assignment> assignments, std::span<const std::uint64_t> memory_bytes,
                            std::span<const std::unique_ptr<StageConnections>> connections,
                            const std::stop_token& stop) {
  const Epoch epoch = assignments.front().epoch;
  std::vector<StageLinks> links;
  control::ControlMessage message;
  control::Ready& ready = *message.mutable_ready();
  ready.set_epoch(epoch.value);
  ready.set_has_file(local_.found(assignments.front().model.hash).has_value());
  // All groups of this worker hear of it before it waits for one of them.
  for (const auto& one : connections) BF_TRY(one->announce_loaded());
  for (std::size_t i = 0; i < assignments.size(); ++i) {
    BF_ASSIGN_OR_RETURN(links.emplace_back(), connections[i]->complete());
    control::ReadyShare& share = *ready.add_shares();
    share.set_memory_bytes(memory_bytes[i]);
    share.set_exchange(static_cast<std::uint32_t>(connections[i]->engine()));
    if (connections[i]->exchange() == nullptr) continue;
    BF_TRY(connections[i]->await_loaded());
    BF_ASSIGN_OR_RETURN(const ExchangeTimes times, delegate_.join_group(assignments[i], *connections[i]->exchange()));
    store(times, share);
  }
  BF_TRY(link_.send(message));
  std::mutex ending;
  std::optional<Status> first;  // the cause; what ends later are its consequences
  serve_all(delegate_, assignments, links, stop, [&](std::size_t, Status status) {
    {
      std::lock_guard lock(ending);
      if (!first) first = std::move(status);
    }
    hub_.end_through(epoch);
  });
  return *first;
}

}  // namespace butterfly
