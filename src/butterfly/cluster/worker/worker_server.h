// A worker: listens on one port, serves one coordinator at a time, loads what it is assigned and runs it. A second
// coordinator is told who is there. When a coordinator goes away, however suddenly, the worker waits for the next; what
// it keeps loaded until then is its delegate's business. run() is called once, by one thread; the server owns every
// other thread and ends them before it returns.
#pragma once

#include <future>
#include <memory>
#include <stop_token>

#include "butterfly/cluster/control/control_label.h"
#include "butterfly/cluster/worker/local_models.h"
#include "butterfly/cluster/worker/rank_host.h"
#include "butterfly/cluster/worker/worker_delegate.h"
#include "butterfly/machine/node.h"
#include "butterfly/wire/channel/tcp.h"
#include "butterfly/wire/exchange/group_exchange.h"

namespace butterfly {

struct WorkerOptions {
  std::string listen = "127.0.0.1:0";
  NodeAccess access{};
  NodeDescriptor node{};  // told to every coordinator
  /// The same once its speed is measured; not valid: `node` is it already. A coordinator that connects earlier waits.
  std::shared_future<Result<NodeDescriptor>> measured{};
  WorkerIdentity identity = make_session_id();  // the same; of this process
  std::string join{};                           // "host:port" of a coordinator to announce this worker to; empty: none
  std::string model_directory{};                // empty: every weight comes from the coordinator
  ContentFunctions content{};                   // needed where there is a model directory
  std::chrono::milliseconds dead_after{5000};   // a coordinator that is silent for so long is gone
  std::chrono::milliseconds busy_grace{500};    // a second coordinator waits so long for the first to finish leaving
  std::chrono::milliseconds connect_timeout{3000};    // to the next node of an assignment
  std::chrono::milliseconds wait_timeout{60'000};     // for the node before to do so; it may be busy ending something
  std::chrono::milliseconds unreachable_after{2500};  // a next node that acknowledges nothing for so long is
  std::chrono::milliseconds drain_timeout{30'000};    // for a coordinator to go on without this worker
  std::chrono::microseconds spin{50};
  SharedMemoryUse shared_memory = SharedMemoryUse::kAllowed;  // with members of a tensor group on this host
  RankHost* ranks = nullptr;  // null: this worker does not train; must outlive the server
};

class WorkerServer {
 public:
  /// Opens the port. `delegate` must outlive the server. Errors: those of Listener::create().
  static Result<std::unique_ptr<WorkerServer>> create(WorkerOptions options, WorkerDelegate& delegate);
  virtual ~WorkerServer() = default;

  /// With the port that the system chose.
  virtual std::string address() const = 0;

  /// Serves until `stop` is requested and the coordinator, if there is one, has released this worker, for which
  /// drain_timeout is the limit. Errors: kIo.
  virtual Status run(std::stop_token stop) = 0;
};

}  // namespace butterfly
