// A model made ready to run, wherever its layers are: all in this process, over nodes that are threads of this
// process, or over worker processes. Owns stages, threads and channels; the pipeline is valid as long as it lives.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/infer/deployment/deployment_config.h"
#include "butterfly/infer/deployment/pipeline.h"
#include "butterfly/machine/node.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/plan/simulation/forecast.h"
#include "butterfly/stage/stage_parts.h"
#include "butterfly/wire/channel/tcp.h"
#include "butterfly/wire/exchange/group_exchange.h"

namespace butterfly {

/// One unchanging membership of a cluster, and why it came to be.
struct EpochReport {
  std::uint32_t epoch = 0;
  int workers = 0;                 // that work; others may stand by
  std::string cause{};             // of the end of the epoch before; empty for the first
  double ready_s = 0;              // from the moment when that was noticed
  std::uint64_t weight_bytes = 0;  // that the coordinator sent
};

/// What a deployment tells while it goes; all but progress only on workers. Calls may come before create() returns.
struct DeploymentObserver {
  /// An epoch began. Called by the thread that computes.
  std::function<void(const EpochReport& epoch)> epoch{};
  /// Too few workers are left; computing stops until one comes. Called by the thread that computes.
  std::function<void(const std::string& why)> waiting{};
  /// The workers that can be given work, first as they were found and then after each change, with a sentence about
  /// it. Called by create(), then from a thread of the deployment's own.
  std::function<void(const std::vector<NodeDescriptor>& members, const std::string& change)> members{};
  /// Lines for people, on long work. Called by the thread that computes.
  std::function<void(const std::string& line)> progress{};
  /// How far the weights of all nodes of this process are loaded; one call at a time, from threads that load.
  std::function<void(const LoadProgress& progress)> loading{};
};

/// What one working node holds.
struct NodeReport {
  std::string name;
  StageAssignment assignment;
  std::uint64_t memory_bytes = 0;
  ExchangeEngine exchange = ExchangeEngine::kNone;  // with the other members of its tensor group, in other processes
  ExchangeTimes exchange_times{};                   // as they measured it before their first step
  double busy_s = 0;  // that its steps took since it began, as it said last; 0 where it does not say
};

class Deployment {
 public:
  /// `stop` ends waiting for workers. Errors: those of resolved(), of planning (kNoMemory, kInvalidArgument), of the
  /// weights, of reaching workers.
  static Result<std::unique_ptr<Deployment>> create(const Checkpoint& checkpoint, const DeploymentConfig& config,
                                                    const DeploymentObserver& observer = {},
                                                    const std::stop_token& stop = {});
  virtual ~Deployment() = default;

  virtual Pipeline& pipeline() = 0;

  /// Working nodes in pipeline order.
  virtual std::vector<NodeReport> nodes() const = 0;

  virtual const Plan& plan() const = 0;

  /// What the plan that runs predicts for such a run, from what nodes and links measured before it; nothing within one
  /// process, or where a node was not measured.
  virtual std::optional<RunForecast> forecast(const RunShape&) const { return std::nullopt; }

  /// What the node of each share has done since its worker began, as it last said; empty within one process.
  virtual std::vector<StageWork> work() const { return {}; }

  /// Makes the thread that computes look for a better plan for the times measured so far, and waits until it has; one
  /// sentence about what came of it. From any other thread. Errors: kInvalidArgument where the split follows no times,
  /// or within one process; kUnavailable where nothing is being computed.
  virtual Result<std::string> rebalance() {
    return make_error(ErrorCode::kInvalidArgument, "the nodes of one process are alike: there is nothing to balance");
  }

  /// Why the model of costs says nothing about the times of such a run, a sentence; empty where it does.
  virtual std::string unpredictable(const RunShape&) const { return {}; }

  /// Every epoch so far; none within one process.
  virtual std::vector<EpochReport> epochs() const { return {}; }

  /// Bytes that steps moved between processes, tokens and logits included; 0 within one process.
  virtual std::uint64_t wire_bytes() const = 0;

  /// The same in more detail, for the epoch that runs; nothing within one process.
  virtual DataTraffic traffic() const { return {}; }
};

}  // namespace butterfly
