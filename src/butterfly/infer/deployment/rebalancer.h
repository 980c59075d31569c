// Whether another plan would be better than the one that runs: because workers came or began to leave, because stages
// turned out slower than planned, or because a client asked. What another plan needs is loaded while the old one works;
// when it is there, the epoch ends. Used by the thread that computes; rebalance() and close() from any.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <thread>

#include "butterfly/infer/deployment/rebalance_queue.h"
#include "butterfly/infer/deployment/running_epoch.h"
#include "butterfly/infer/deployment/straggler.h"

namespace butterfly {

class Rebalancer {
 public:
  explicit Rebalancer(DeployedModel& model) : model_(model) {}

  /// An epoch has begun; it and the membership are borrowed until drop().
  void watch(const RunningEpoch& epoch, Membership& membership);

  /// The epoch ends, and what is being prepared with it.
  void drop();

  /// Before each step. Errors: kUnavailable with the reason, when another plan can begin now.
  Status before_step();

  /// Waits until the plan has been looked at; what came of it, for people. Errors: kInvalidArgument where the split
  /// follows no times; kUnavailable where nothing is being computed.
  Result<std::string> rebalance();

  /// Nothing is computed any more: an answer for all who wait in rebalance(), and for all who come.
  void close() { wishes_.close(); }

 private:
  /// Weights on their way to where the next epoch needs them, while this one runs.
  struct Preparation {
    std::string reason;
    std::unique_ptr<ClusterSession> session;
    std::stop_source stop;
    std::atomic<bool> done{false};
    std::jthread thread;
    ~Preparation() { stop.request_stop(); }
  };

  bool follows_times() const;
  void consider_change();
  void consider_wish();
  void consider_straggler();
  Result<Plan> plan_again(std::span<const double> slowness);
  void prepare(const Members& members, const Plan& plan, const std::string& reason);

  DeployedModel& model_;
  const RunningEpoch* epoch_ = nullptr;
  Membership* membership_ = nullptr;
  std::uint64_t considered_ = 0;  // the version of the membership that was last looked at
  RebalanceQueue wishes_;
  StragglerDetector stragglers_;
  Deadline next_look_{};
  std::chrono::seconds straggler_cooldown_{20};  // after another plan because of a straggler
  std::unique_ptr<Preparation> preparation_;
};

}  // namespace butterfly
