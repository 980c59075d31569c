#include "butterfly/cluster/worker_session.h"

#include <algorithm>
#include <cctype>

#include "butterfly/base/log.h"
#include "butterfly/cluster/cluster_session.h"

namespace butterfly {
namespace {

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
      coordinator_(printable(control.introduction.label, control.channel->peer())),
      on_end_(std::move(on_end)),
      link_(std::move(control.channel)),
      giver_(local, delegate),
      work_([this] { run_assignments(); }),
      preparations_([this] { run_preparations(); }),
      control_([this] { run_control(); }) {}

WorkerSession::~WorkerSession() {
  link_.close();
  control_.join();
}

void WorkerSession::describe(control::WorkerStatus& status) const {
  status.set_coordinator(coordinator_);
  std::lock_guard lock(mutex_);
  status.set_epoch(epoch_.value);
  if (!working_) return;
  control::Assign assign;
  store(*working_, assign);
  status.set_model(working_->model.name);
  *status.mutable_stage() = assign.stage();
  status.set_memory_bytes(memory_bytes_);
}

void WorkerSession::deliver(Arrival data) {
  const auto label = parse_data_label(data.introduction.label);
  if (!label || label->what != kHolderLabel) return hub_.deliver(data.introduction.label, std::move(data.channel));
  std::string hash;
  {
    std::lock_guard lock(mutex_);
    hash = model_hash_;
  }
  giver_.give(std::move(data.channel), hash);
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
  control::ControlMessage message;
  message.mutable_leave();
  static_cast<void>(link_.send(message));  // a coordinator that is gone need not be asked
}

void WorkerSession::run_control() {
  log().info("coordinator {} connected", coordinator_);
  control::ControlMessage hello;
  hello.mutable_worker_hello()->set_program_version(BUTTERFLY_VERSION);
  store(options_.node, *hello.mutable_worker_hello()->mutable_node());
  Status said = link_.send(hello);
  while (said && !released_) {
    const auto message = link_.receive(std::chrono::steady_clock::now() + options_.dead_after);
    if (!message) {
      log().info("coordinator {} is gone: {}", coordinator_, message.error().message);
      break;
    }
    if (!handle(*message)) break;
  }
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    work_stop_.request_stop();
    preparation_stop_.request_stop();
    changed_.notify_all();
  }
  hub_.end_through(Epoch(~0u));
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
      auto assignment = read_assignment(message.has_assign() ? message.assign() : message.prepare().assign());
      if (assignment && message.has_assign()) return begin(std::move(*assignment));
      if (assignment) {
        begin_preparation(std::move(*assignment));
        return true;
      }
      log().warn("coordinator {}: {}", coordinator_, assignment.error().message);
      return false;
    }
    default:
      log().warn("coordinator {} sent a message that only workers send", coordinator_);
      return false;
  }
}

bool WorkerSession::begin(Assignment assignment) {
  const Epoch epoch = assignment.epoch;
  {
    std::lock_guard lock(mutex_);
    if (epoch <= epoch_) {
      log().warn("coordinator {} assigned epoch {} after epoch {}", coordinator_, epoch.value, epoch_.value);
      return false;
    }
    epoch_ = epoch;
    model_hash_ = assignment.model.hash;
    next_ = std::move(assignment);
    next_preparation_.reset();
    work_stop_.request_stop();
    preparation_stop_.request_stop();
    changed_.notify_all();
  }
  hub_.end_through(Epoch(epoch.value - 1));
  return true;
}

void WorkerSession::begin_preparation(Assignment assignment) {
  std::lock_guard lock(mutex_);
  if (assignment.epoch <= epoch_) return;
  next_preparation_ = std::move(assignment);
  preparation_stop_.request_stop();
  changed_.notify_all();
}

void WorkerSession::run_preparations() {
  for (;;) {
    std::optional<Assignment> assignment;
    std::stop_token stop;
    {
      std::unique_lock lock(mutex_);
      preparing_ = false;
      changed_.notify_all();
      // Not beside load(): both fill the same store.
      changed_.wait(lock, [&] { return ending_ || (next_preparation_ && !loading_ && !next_); });
      if (ending_) return;
      assignment = std::exchange(next_preparation_, std::nullopt);
      preparation_stop_ = {};
      stop = preparation_stop_.get_token();
      preparing_ = true;
    }
    const Status status = prepare(*assignment, stop);
    if (stop.stop_requested()) continue;
    control::ControlMessage message;
    message.mutable_prepared()->set_epoch(assignment->epoch.value);
    if (status) {
      static_cast<void>(link_.send(message));
    } else {
      complain(assignment->epoch, status.error());
    }
  }
}

Status WorkerSession::prepare(const Assignment& assignment, const std::stop_token& stop) {
  BF_ASSIGN_OR_RETURN(const auto weights, wait_for_weights(assignment.epoch));
  RemoteWeightFetcher fetcher(*weights, local_, source_of(assignment, stop));
  const Status status = delegate_.prepare(assignment, fetcher, stop);
  weights->close();
  return status;
}

void WorkerSession::run_assignments() {
  for (;;) {
    std::optional<Assignment> assignment;
    std::stop_token stop;
    {
      std::unique_lock lock(mutex_);
      loading_ = false;
      working_.reset();
      changed_.notify_all();
      changed_.wait(lock, [&] { return ending_ || (next_ && !preparing_); });
      if (ending_) return;
      assignment = std::exchange(next_, std::nullopt);
      loading_ = true;
      work_stop_ = {};
      stop = work_stop_.get_token();
    }
    run_work(*assignment, stop);
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

void WorkerSession::run_work(const Assignment& assignment, const std::stop_token& stop) {
  const Status status = work(assignment, stop);
  hub_.end_through(assignment.epoch);  // so that the neighbours do not wait
  if (stop.stop_requested()) return;
  const Error ended{.code = ErrorCode::kUnavailable, .message = "its connection to a neighbour closed"};
  complain(assignment.epoch, status ? ended : status.error());
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

Status WorkerSession::work(const Assignment& assignment, const std::stop_token& stop) {
  StageConnections connections(options_, id_, hub_, assignment);
  BF_TRY(connections.open(stop));
  BF_ASSIGN_OR_RETURN(const auto weights, wait_for_weights(assignment.epoch));
  RemoteWeightFetcher fetcher(*weights, local_, source_of(assignment, stop));
  const auto memory_bytes = delegate_.load(assignment, fetcher, stop);
  weights->close();
  {
    std::lock_guard lock(mutex_);
    loading_ = false;
    if (memory_bytes) {
      working_ = assignment;
      memory_bytes_ = *memory_bytes;
    }
    changed_.notify_all();
  }
  const Status status =
      memory_bytes ? serve(assignment, *memory_bytes, connections, stop) : tl::unexpected(memory_bytes.error());
  delegate_.unload();
  return status;
}

Status WorkerSession::serve(const Assignment& assignment, std::uint64_t memory_bytes, StageConnections& connections,
                            const std::stop_token& stop) {
  BF_ASSIGN_OR_RETURN(const StageLinks links, connections.complete());
  control::ControlMessage ready;
  ready.mutable_ready()->set_memory_bytes(memory_bytes);
  ready.mutable_ready()->set_epoch(assignment.epoch.value);
  ready.mutable_ready()->set_has_file(local_.found(assignment.model.hash).has_value());
  ready.mutable_ready()->set_exchange(std::string(to_string(connections.engine())));
  BF_TRY(link_.send(ready));
  return delegate_.serve(assignment, links, stop);
}

}  // namespace butterfly
