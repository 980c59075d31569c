// A pipeline at work that is not there: a discrete-event simulation of requests that pass stages and links, with the
// schedule of the real program (infer/scheduler/schedule.h), queues in front of nodes and links, jitter, and deaths
// that end epochs. The same inputs give the same report. Knows times and bytes, no models: simulated_plan.h has those.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/node.h"
#include "butterfly/plan/cost/cost.h"
#include "butterfly/plan/description/cluster_model.h"

namespace butterfly {

/// A pipeline as the simulator sees it. A stage is one node, or a tensor group whose members start together and end
/// together; its first member sends to every member of the next, one after the other. A node may serve several stages,
/// one step at a time.
struct SimulatedPipeline {
  int nodes = 0;
  RequestKind requests = RequestKind::kContinued;
  std::vector<std::vector<int>> stages;  // the members of each, indices below `nodes`
  /// Seconds that a member of a stage computes for a step.
  std::function<double(int stage, std::size_t member, const StepShape& shape)> compute_s;
  /// Seconds that the members of a stage spend on talking to each other, on top of the slowest one's computing.
  std::function<double(int stage, const StepShape& shape)> exchange_s;
  /// Bytes of the message to each member of stage `hop`; to the coordinator where `hop` is stages.size().
  std::function<double(int hop, const StepShape& shape)> message_bytes;
  /// Between nodes, by index, or kCoordinator.
  std::function<LinkDescriptor(int from, int to)> link;
};

struct SimulationOptions {
  int requests = 1;
  double rate_per_s = 0.0;    // of arrivals, a Poisson process; 0: all at once
  int prompt = 128;           // tokens of each request, or of its text that is encoded
  int generated = 128;        // tokens that each request is answered with; a text that is encoded has no answer
  int sequences_max = 8;      // requests at work at once; others wait for their turn
  int prefill_chunk = 512;    // rows of one step at most
  double jitter = 0.0;        // coefficient of variation of every computation and transfer
  bool shared_nic = false;    // a node sends one message at a time, and receives one, whatever the number of links
  double fail_every_s = 0.0;  // mean seconds between deaths of nodes, a Poisson process; 0: none
  double detect_s = 1.5;      // from a death to the next epoch, in which the node takes its shares again
  std::uint64_t seed = 0;
};

/// The smallest of the values that this share of them does not exceed.
struct Percentiles {
  double p50 = 0.0, p95 = 0.0, p99 = 0.0;
};

struct SimulationReport {
  double seconds = 0.0;                  // from the first arrival to the last token
  Percentiles first_token_s, request_s;  // from a request's arrival
  double tokens_per_s = 0.0;             // generated, or those of texts that are encoded and no more, over `seconds`
  std::vector<double> utilisation;       // of each node: seconds of computing over `seconds`
  int failures = 0;
  std::uint64_t replayed_rows = 0;  // read again after failures
  std::uint64_t events = 0;
};

/// Errors: kInvalidArgument naming the option and its value; kUnavailable where failures come so fast that no request
/// ends any more.
Result<SimulationReport> simulate(const SimulatedPipeline& pipeline, const SimulationOptions& options);

}  // namespace butterfly
