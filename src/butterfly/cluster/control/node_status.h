// The state of a node, as an answer to a connection of role status: a worker's work and speed, a coordinator's members,
// and the links from a node to others. Plain functions, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/node.h"
#include "butterfly/machine/usage/process_usage.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

/// A rank of a training run, and how far it is.
struct RankStatus {
  std::string model{};
  int rank = 0, ranks = 0;  // 0 ranks: the run has not begun here
  std::int64_t step = 0, steps = 0;
  double loss = 0.0;                          // of the last step, nats per token
  double computing_s = 0.0, waiting_s = 0.0;  // since it took part; waiting: for other ranks
};

struct WorkerStatus {
  NodeDescriptor node{};
  std::string coordinator{};  // empty: none
  Epoch epoch{};
  std::string model{};                    // empty: no work
  std::vector<StageAssignment> stages{};  // in pipeline order
  std::uint64_t memory_bytes = 0;         // of all of them
  std::uint64_t steps = 0;                // since the worker began
  double busy_s = 0, uptime_s = 0;
  std::vector<UsageWindow> usage{};  // of its process, the shortest first
  bool measuring = false;            // its speed, which `node` does not have yet
  std::optional<RankStatus> training{};
};

struct MemberStatus {
  NodeDescriptor node{};
  double phi = 0;  // how surprising its silence is (phi_accrual.h)
  bool leaving = false;
};

struct CoordinatorStatus {
  std::string name{};
  Epoch epoch{};
  std::vector<MemberStatus> members{};
  std::string last_change{};
  std::vector<UsageWindow> usage{};
};

/// One of the two.
struct NodeStatus {
  std::optional<WorkerStatus> worker{};
  std::optional<CoordinatorStatus> coordinator{};
};

/// Errors: those of connect_tcp(), kTimeout, kProtocol.
Result<NodeStatus> ask_status(const std::string& address, const NodeAccess& access, Deadline deadline);

/// How long a message of one size is on its way.
struct LinkTime {
  std::uint64_t bytes = 0;
  double us = 0;  // one way
};

/// A link as the node at `from` measured it.
struct LinkStatus {
  std::string to{};
  LinkDescriptor link{};
  std::vector<LinkTime> times{};  // ascending by size
  double age_s = 0;               // since it was measured
  std::string error{};            // empty: measured
};

struct LinkQuestion {
  std::vector<std::string> to{};          // addresses
  SessionId session = make_session_id();  // a coordinator's, where a worker shall know its own
  bool fresh = false;                     // measured now, instead of some minutes ago
  std::stop_token stop{};                 // gives the question up
};

/// The links of the node at `from` to others, measured or remembered (link_book.h). Errors: as ask_status().
Result<std::vector<LinkStatus>> ask_links(const std::string& from, const LinkQuestion& question,
                                          const NodeAccess& access, Deadline deadline);

/// Half a round trip of 64 bytes, the median of several; the same for larger messages, whose answer is small; bandwidth
/// of some megabytes one way, of less where the link is slow. Two tenths of a second, 1 Mbit/s takes four. The node at
/// `address` echoes (status_server.h). Errors: those of connect_tcp(), kTimeout.
Result<LinkStatus> measure_link(const std::string& address, const NodeAccess& access, Deadline deadline,
                                const std::stop_token& stop = {});

/// Makes the coordinator at `address` plan again with the stage times that it has measured; one sentence about what
/// came of it. Errors: as ask_status(); kInvalidArgument where its split follows no times; kUnavailable where it
/// computes nothing.
Result<std::string> ask_rebalance(const std::string& address, const NodeAccess& access, Deadline deadline);

}  // namespace butterfly
