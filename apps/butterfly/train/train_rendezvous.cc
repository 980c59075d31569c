#include "train/train_rendezvous.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "butterfly/base/log.h"
#include "butterfly/cluster/control/node_status.h"
#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/cluster/worker/worker_server.h"
#include "butterfly/machine/node.h"
#include "butterfly/machine/topology.h"
#include "butterfly/stage/stage_host.h"
#include "butterfly/train/ranks/train_host.h"
#include "butterfly/wire/channel/address.h"
#include "commands.h"

namespace butterfly::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kBeforeFirst{600};  // for the leader to be started
constexpr std::chrono::seconds kAfterLoss{30};     // for one that was there to be there again
constexpr std::int64_t kLeaderAnswersMs = 2000;

/// Takes part in one run, and then lets its worker end.
class OneRun final : public RankHost {
 public:
  OneRun(RankHost& host, std::stop_source& end) : host_(host), end_(end) {}

  Status take_part(const RankConnections& connections, std::stop_token stop) override {
    running_ = true;
    Status done = host_.take_part(connections, std::move(stop));
    if (done || !ends_epoch(done.error())) finish(done);
    if (!done && ends_epoch(done.error())) log().warn("{}; this process asks to join again", done.error().message);
    running_ = false;
    return done;
  }

  RankStatus status() const override { return host_.status(); }
  Epoch epoch() const override { return host_.epoch(); }
  double computing_s() const override { return host_.computing_s(); }

  void finish(const Status& outcome) {
    std::lock_guard lock(mutex_);
    if (!outcome_) outcome_ = outcome;
    end_.request_stop();
  }
  bool running() const { return running_; }
  std::optional<Status> outcome() const {
    std::lock_guard lock(mutex_);
    return outcome_;
  }

 private:
  RankHost& host_;
  std::stop_source& end_;
  std::atomic<bool> running_{false};
  mutable std::mutex mutex_;
  std::optional<Status> outcome_;
};

/// Ends the wait for a leader that does not come, or does not come back.
void watch_leader(const std::string& address, const NodeAccess& access, OneRun& run, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any pause;
  auto last_seen = Clock::now();
  bool seen = false;
  while (!stop.stop_requested()) {
    const bool there = run.running() || ask_status(address, access, after_ms(kLeaderAnswersMs)).has_value();
    seen = seen || there;
    if (there) last_seen = Clock::now();
    const auto patience = seen ? kAfterLoss : kBeforeFirst;
    if (Clock::now() - last_seen > patience) {
      return run.finish(make_error(ErrorCode::kUnavailable, "nobody leads a run at {}: {} within {} s", address,
                                   seen ? "rank 0 went away and did not come back" : "no rank 0 came",
                                   patience.count()));
    }
    std::unique_lock lock(mutex);
    pause.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
  }
}

}  // namespace

Result<std::unique_ptr<Listener>> listen_at_rendezvous(const std::string& address, const NodeAccess& access) {
  auto listener = Listener::create({.address = address, .access = access});
  if (listener) return listener;
  const ErrorCode code = listener.error().code;
  if (code != ErrorCode::kUnavailable && code != ErrorCode::kNotFound) return tl::unexpected(listener.error());
  return std::unique_ptr<Listener>();
}

Result<int> take_part_at_rendezvous(const RunConfig& config, const NodeAccess& access) {
  const std::string& leader = config.parallel.rendezvous;
  const int threads = config.threads > 0 ? config.threads : usable_threads();
  WorkerOptions options{.access = access, .join = leader};
  BF_ASSIGN_OR_RETURN(options.listen, own_address_towards(leader, after_ms(kLeaderAnswersMs)));
  BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
  BF_ASSIGN_OR_RETURN(options.node, unmeasured_node({.isa = isa, .threads = threads}));
  options.shared_memory = config.parallel.shared_memory ? SharedMemoryUse::kAllowed : SharedMemoryUse::kForbidden;
  StageHost no_stages({.threads = threads, .isa = isa});
  TrainHost host({.threads = threads, .isa = isa, .shared_memory = options.shared_memory, .run_end = warned()});
  std::stop_source end;
  const std::stop_callback on_interrupt(interrupted(), [&end] { end.request_stop(); });
  OneRun run(host, end);
  options.ranks = &run;
  BF_ASSIGN_OR_RETURN(const std::unique_ptr<WorkerServer> server, WorkerServer::create(options, no_stages));
  if (config.log != LogLevel::kSilent) {
    std::fprintf(stderr, "another process leads the run at %s: this one takes part as %s\n", leader.c_str(),
                 server->address().c_str());
  }
  Status served;
  {
    const std::jthread watching([&](const std::stop_token& stop) { watch_leader(leader, access, run, stop); });
    served = server->run(end.get_token());
  }
  BF_TRY(served);
  if (interrupted().stop_requested() || warned().stop_requested()) return kExitInterrupted;
  if (const auto outcome = run.outcome()) BF_TRY(*outcome);
  return kExitOk;
}

}  // namespace butterfly::app
