// Epoch after epoch over the workers that there are: begins one, ends it when it fails, and tries again with those that
// remain until one runs or nothing more can be done. Used by the thread that computes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/infer/deployment/rebalancer.h"
#include "butterfly/infer/deployment/running_epoch.h"

namespace butterfly {

class EpochLoop {
 public:
  /// All of them outlive the loop. The pipeline is connected with the epoch that runs.
  EpochLoop(const DeployedModel& model, Membership& membership, ChannelPipeline& pipeline, Rebalancer& rebalancer)
      : model_(model), membership_(membership), pipeline_(pipeline), rebalancer_(rebalancer) {}
  ~EpochLoop() { end(); }
  EpochLoop(const EpochLoop&) = delete;
  EpochLoop& operator=(const EpochLoop&) = delete;

  /// Tries until an epoch runs. `cause` is why the last one ended; nothing for the first. Errors: those of planning and
  /// of starting that no other members would mend; kCancelled.
  Status begin(const std::optional<Error>& cause);

  /// Another epoch, where `cause` is a reason for one. Errors: `cause` where it is not; those of begin().
  Status recover(const Error& cause);

  const RunningEpoch& running() const { return running_; }
  const std::vector<EpochReport>& reports() const { return reports_; }
  /// On data channels, in epochs that have ended.
  std::uint64_t ended_wire_bytes() const { return ended_wire_bytes_; }

 private:
  Status start();
  void end();
  Status wait_for_workers(const Error& why, Deadline deadline);
  void leave_out_complaining();
  void retry_alike(int times);
  void report(const std::string& cause, std::chrono::steady_clock::time_point began);

  const DeployedModel& model_;
  Membership& membership_;
  ChannelPipeline& pipeline_;
  Rebalancer& rebalancer_;
  RunningEpoch running_;
  std::vector<EpochReport> reports_;
  int fruitless_ = 0;  // epochs since a step last came back
  bool waited_at_start_ = false;
  std::uint64_t sent_weight_bytes_ = 0;
  std::uint64_t ended_wire_bytes_ = 0;
};

}  // namespace butterfly
