#include "butterfly/cluster/worker/worker_server.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/worker/announcer.h"
#include "butterfly/cluster/worker/status_server.h"
#include "butterfly/cluster/worker/worker_session.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

// A weight may be larger than any message of an ordinary channel; its receiver knows its size and refuses more.
constexpr std::uint64_t kPayloadBytesMax = 1ull << 38;

// What was measured before is known in a moment: the first announcement then waits for it rather than for its next
// turn.
constexpr std::chrono::milliseconds kAnnouncerPatience{200};

class Server final : public WorkerServer {
 public:
  Server(WorkerOptions options, WorkerDelegate& delegate, std::unique_ptr<Listener> listener)
      : options_(std::move(options)),
        delegate_(delegate),
        local_(options_.model_directory, options_.content),
        listener_(std::move(listener)) {}

  std::string address() const override { return listener_->address(); }

  Status run(std::stop_token stop) override {
    const std::stop_callback wake(stop, [this] { listener_->interrupt(); });
    std::optional<Announcer> announcer;
    if (!options_.join.empty())
      announcer.emplace(options_, address(), [this] { return !busy_.load() && is_measured(kAnnouncerPatience); });
    Status status;
    while (!stop.stop_requested() && status) status = serve_one_arrival();
    announcer.reset();
    if (status) status = drain();
    parked_.reset();
    end_session();
    return status;
  }

 private:
  Status serve_one_arrival(Deadline deadline = after_ms(3'600'000)) {
    auto arrival = listener_->accept(parked_ ? std::min(deadline, parked_until_) : deadline);
    if (session_ && session_->ended()) end_session();
    if (parked_ && !draining_) settle_parked();
    busy_ = session_ != nullptr;
    if (arrival) {
      if (status_server_.receive(*arrival)) return {};
      if (arrival->introduction.role == ConnectionRole::kControl) {
        if (!draining_) welcome(std::move(*arrival));
      } else if (session_ && session_->id() == arrival->introduction.session) {
        session_->deliver(std::move(*arrival));
      }
      return {};
    }
    const ErrorCode code = arrival.error().code;
    if (code == ErrorCode::kTimeout || code == ErrorCode::kCancelled) return {};
    return tl::unexpected(std::move(arrival).error());
  }

  /// Serves on until the coordinator has made its next epoch without this worker.
  Status drain() {
    draining_ = true;
    if (!session_) return {};
    log().info("leaving {}", session_->coordinator());
    session_->leave();
    const Deadline deadline = std::chrono::steady_clock::now() + options_.drain_timeout;
    Status status;
    while (session_ && status && std::chrono::steady_clock::now() < deadline) status = serve_one_arrival(deadline);
    if (session_) log().warn("{} did not go on without this worker in time", session_->coordinator());
    return status;
  }

  void welcome(Arrival control) {
    if (!session_) {
      std::lock_guard lock(mutex_);
      session_ = std::make_unique<WorkerSession>(options_, local_, delegate_, std::move(control),
                                                 [this] { listener_->interrupt(); });
      return;
    }
    const bool same = session_->id() == control.introduction.session;
    const bool lost = parse_control_label(control.introduction.label).lost == options_.identity;
    if (same && !lost && !session_->ending()) {
      refuse_again(std::move(control));
    } else if (!parked_) {
      // The first coordinator may be leaving at this moment, or be dead without our having noticed. If it is itself who
      // comes anew and knows that it has lost us, then its connection of before was cut on the way.
      if (same) session_->abandon();
      parked_ = std::move(control);
      parked_until_ = std::chrono::steady_clock::now() + options_.busy_grace;
    } else {
      refuse(std::move(control));
    }
  }

  void end_session() {
    std::unique_ptr<WorkerSession> ended;
    std::lock_guard lock(mutex_);
    ended = std::move(session_);
  }

  void describe(control::WorkerStatus& status) {
    const bool measured = is_measured();
    const NodeDescriptor node =
        measured && options_.measured.valid() ? options_.measured.get().value_or(options_.node) : options_.node;
    store(node, *status.mutable_node());
    status.set_measuring(!measured);
    status.set_steps(delegate_.done().steps);
    status.set_busy_ns(static_cast<std::uint64_t>(busy_s() * 1e9));
    status.set_uptime_ns(trace::now_ns() - began_ns_);
    std::lock_guard lock(mutex_);
    if (session_) session_->describe(status);
  }

  double busy_s() const {
    const double training_s = options_.ranks == nullptr ? 0.0 : options_.ranks->computing_s();
    return static_cast<double>(delegate_.done().busy_ns) * 1e-9 + training_s;
  }

  bool is_measured(std::chrono::milliseconds patience = {}) const {
    return !options_.measured.valid() || options_.measured.wait_for(patience) == std::future_status::ready;
  }

  bool works_in(const SessionId& session) {
    std::lock_guard lock(mutex_);
    return session_ && session_->id() == session;
  }

  void settle_parked() {
    if (!session_) {
      welcome(*std::exchange(parked_, std::nullopt));
    } else if (!session_->ending() && std::chrono::steady_clock::now() >= parked_until_) {
      refuse(*std::exchange(parked_, std::nullopt));
    } else if (session_->ending()) {
      parked_until_ = after_ms(1000);  // its end wakes us; unloading may take a while
    }
  }

  /// Its coordinator has found this worker at another address, or by another name of the same one.
  void refuse_again(Arrival control) {
    control::ControlMessage message;
    store(Error{.code = ErrorCode::kUnavailable, .message = "it serves this coordinator already"},
          *message.mutable_failure());
    message.mutable_failure()->set_serving(to_bytes(options_.identity));
    static_cast<void>(ControlLink(std::move(control.channel)).send(message));
  }

  void refuse(Arrival control) {
    control::ControlMessage message;
    store(Error{.code = ErrorCode::kUnavailable,
                .message = fmt::format("busy with coordinator {}", session_->coordinator())},
          *message.mutable_failure());
    static_cast<void>(ControlLink(std::move(control.channel)).send(message));
  }

  const WorkerOptions options_;
  WorkerDelegate& delegate_;
  LocalModels local_;
  const std::unique_ptr<Listener> listener_;
  const std::uint64_t began_ns_ = trace::now_ns();
  std::mutex mutex_;                        // session_ changes under it, status_server look
  std::unique_ptr<WorkerSession> session_;  // calls the listener as it ends: destroyed first
  std::optional<Arrival> parked_;
  Deadline parked_until_{};
  bool draining_ = false;
  std::atomic<bool> busy_{false};  // for the announcer
  StatusServer status_server_{
      options_.access,
      {.status = [this](control::ControlMessage& answer) { describe(*answer.mutable_worker_status()); },
       .is_session = [this](const SessionId& session) { return works_in(session); },
       .busy_s = [this] { return busy_s(); }}};
};

}  // namespace

Result<std::unique_ptr<WorkerServer>> WorkerServer::create(WorkerOptions options, WorkerDelegate& delegate) {
  options.identity = make_session_id();  // also where its options were copied from another one's
  TcpOptions channel{.spin = options.spin};
  channel.limits.payload_bytes_max = kPayloadBytesMax;
  BF_ASSIGN_OR_RETURN(auto listener,
                      Listener::create({.address = options.listen, .access = options.access, .channel = channel}));
  return std::make_unique<Server>(std::move(options), delegate, std::move(listener));
}

}  // namespace butterfly
