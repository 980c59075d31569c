// One epoch: nodes, a plan and the channels between them, which never change. The nodes are worker processes
// (membership.h makes their epochs) or threads of this process. The session owns its threads; the channels it hands out
// may be used until stop(). start() and stop() belong to one thread; failed() and the channels may be used from others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/cluster/control/assignment.h"
#include "butterfly/cluster/control/data_traffic.h"
#include "butterfly/cluster/worker/weights.h"
#include "butterfly/cluster/worker/worker_delegate.h"
#include "butterfly/machine/node.h"
#include "butterfly/wire/channel/tcp.h"
#include "butterfly/wire/exchange/group_exchange.h"

namespace butterfly {

struct StartProgress {
  int ready = 0;                   // nodes
  int stages = 0;                  // nodes that work
  std::uint64_t weight_bytes = 0;  // that the coordinator has sent so far
};

/// What a session is for: to run a plan, or to load what a plan needs while another session runs. The latter moves no
/// data, and nothing is left of it but the weights that its workers keep.
enum class Purpose : std::uint8_t { kRun, kPrepare };

struct StartRequest {
  Epoch epoch{1};
  Purpose purpose = Purpose::kRun;
  Plan plan{};
  ModelIdentity model{};
  ModelConfig config{};
  StageSettings settings{};
  WeightProvider weights{};                              // called from other threads until every node is ready
  std::function<void(const StartProgress&)> progress{};  // called by start()'s thread, at most every 100 ms
  std::stop_token stop{};                                // gives the start up
};

/// What is known of a share when it is ready.
struct ReadyShare {
  std::uint64_t memory_bytes = 0;
  ExchangeEngine exchange = ExchangeEngine::kNone;  // that its group moves sums with
  ExchangeTimes times{};                            // that its group measured before
};

/// The two ends of a running pipeline; null where nothing runs. Their errors name the worker that caused them where one
/// did.
struct PipelineChannels {
  ChannelPtr input;                // into the first stage, at the leader of its group
  ChannelPtr output;               // from the last
  std::vector<ReadyShare> shares;  // as those of the plan

  std::vector<ExchangeTimes> exchange_times() const {
    std::vector<ExchangeTimes> times;
    for (const ReadyShare& share : shares) times.push_back(share.times);
    return times;
  }
};

/// Whether an error is a reason to begin another epoch, with the nodes that remain, rather than to give up: a node or a
/// connection is lost, or what came over it was damaged.
inline bool ends_epoch(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout ||
         error.code == ErrorCode::kProtocol;
}

class ClusterSession {
 public:
  virtual ~ClusterSession() = default;

  /// What a plan is made from, with address set where they are workers.
  virtual const std::vector<NodeDescriptor>& nodes() const = 0;

  /// Assigns every stage at once and waits until all are ready. Once per session.
  /// Errors: what a worker answered, naming it; kUnavailable (one went away), kTimeout.
  virtual Result<PipelineChannels> start(const StartRequest& request, Deadline deadline) = 0;

  /// Why the pipeline is broken, naming the node; nothing while it works. Its channels are closed by then.
  virtual std::optional<Error> failed() const = 0;

  /// Addresses of workers that could not reach a neighbour, or gave it up.
  virtual std::vector<std::string> complaining() const { return {}; }

  /// What the node of each share has done, as it last said; empty where nobody says.
  virtual std::vector<StageWork> work() const { return {}; }

  /// What data connections have carried so far, all hops together; asks the workers.
  virtual Result<DataTraffic> data_traffic(Deadline deadline) = 0;

  /// Ends the epoch: closes the channels. Workers stay members. Idempotent; the destructor does it too.
  virtual void stop() = 0;
};

/// Whether a worker that was lost is dialled until it is back.
enum class LostWorkers : std::uint8_t { kDialAgain, kLetGo };

struct ClusterOptions {
  std::string name{};  // told to workers, who name it to others; empty: "HOST, process N"
  std::chrono::milliseconds heartbeat{200};
  std::chrono::milliseconds dead_after{1500};       // a worker that is silent for so long is gone
  std::chrono::milliseconds release_timeout{5000};  // for workers to confirm that they are free
  std::chrono::microseconds spin{50};
  NodeAccess access{};
  LostWorkers lost = LostWorkers::kDialAgain;
};

struct InprocNode {
  NodeDescriptor node{};
  WorkerDelegate* delegate = nullptr;  // one for each node; must outlive the session
};

/// An epoch of threads of this process: payloads and weights change hands without being copied.
std::unique_ptr<ClusterSession> make_inproc_cluster(std::vector<InprocNode> nodes);

}  // namespace butterfly
