// From shares on nodes to predicted times and bytes: one function, used by strategies to compare, by plans to print
// and by simulations as the truth that they disturb. Pure arithmetic, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/range.h"
#include "butterfly/plan/cost/cost.h"
#include "butterfly/plan/cost/share.h"
#include "butterfly/plan/description/cluster_model.h"

namespace butterfly {

/// What the first stage receives of each row.
inline constexpr double kTokenBytes = 4.0;

/// Members of a group are never done with their parts of a matmul at the same moment; who waits for longer than it
/// spins blocks, and is woken so much later. Assumed, with each exchange, of groups that did not measure theirs
/// (PlanCluster::measured_groups): 40 us is what a wake across cores takes on virtual machines.
inline constexpr double kAssumedWakeS = 40e-6;

struct StagePrediction {
  double decode_s = 0.0;    // one decode step of all sequences, without waiting for others; infinite where unknown
  double exchange_s = 0.0;  // of that step, what sums cost among the members of the group
  double prefill_s = 0.0;   // the whole prompt of one sequence, with its exchanges
  std::uint64_t weight_bytes = 0;
  std::uint64_t kv_bytes = 0;          // of all sequences at full context
  std::uint64_t activation_bytes = 0;  // of the largest step
  std::uint64_t memory_bytes() const { return weight_bytes + kv_bytes + activation_bytes; }
};

/// Payload that one direction of a link carries. Its ends are nodes or kCoordinator.
struct LinkUse {
  int from = 0;
  int to = 0;
  double decode_bytes = 0.0;   // per token of one sequence
  double prefill_bytes = 0.0;  // per prompt of one sequence
};

/// Of an encoder the prompt is a text, its first token the text's end, and tokens are those of texts.
struct PlanPrediction {
  double ttft_s = 0.0;        // prompt of one request, alone: its chunks follow each other through the stages
  double token_s = 0.0;       // one request, alone: between two of its tokens
  double tokens_per_s = 0.0;  // all sequences at once: the smaller of what the pipeline passes when full and what
                              // these sequences can ask for (https://doi.org/10.1145/356733.356735)
  double slowest_s = 0.0;     // the busiest node's part of a decode step of all sequences
  double load_balance_factor = 0.0;    // of the nodes at work (load_balance.h)
  int groups = 0;                      // stages of the pipeline, a tensor group counting as one
  int hops = 0;                        // transfers between them and with the coordinator, per token
  double hop_s = 0.0;                  // of token_s
  double exchange_s = 0.0;             // of token_s
  double memory_use = 0.0;             // of the fullest node whose memory is known, 1 is full
  std::uint64_t memory_bytes_max = 0;  // on the node that holds most
  std::vector<LinkUse> links;
};

struct Prediction {
  std::vector<StagePrediction> shares;  // as the shares given
  PlanPrediction whole;
};

/// What prediction looks at. The cluster must outlive it.
struct PredictionInput {
  int layers = 0;
  ModelCost cost;
  Load load;
  const PlanCluster* cluster = nullptr;
  std::vector<NodeRates> rates;  // of every node
};

/// Half-open runs of shares that form one group each: [begin, end) in `shares`, in pipeline order.
using GroupRange = Range<std::size_t>;
std::vector<GroupRange> groups_of(std::span<const Share> shares);
std::vector<GroupRange> groups_of(std::span<const StageAssignment> stages);

/// `shares` as a Plan has them. Never fails: what is unknown or not connected takes infinitely long.
Prediction predict(const PredictionInput& input, std::span<const Share> shares);

/// Single figures of it, for searches that ask often; a token is charged with its part of encoding (decode_shape()).
double predicted_token_s(const PredictionInput& input, std::span<const Share> shares);
double predicted_tokens_per_s(const PredictionInput& input, std::span<const Share> shares);

/// What each node of the cluster holds. Its stages run one at a time: the largest workspace serves all.
std::vector<ShareBytes> node_bytes(const PredictionInput& input, std::span<const Share> shares);

/// Parts of it, for those who run the plan step by step.
/// A group's compute and exchanges in one step, the slowest member deciding. Seconds.
struct GroupTime {
  double compute_s = 0.0;
  double exchange_s = 0.0;
  double total() const { return compute_s + exchange_s; }
};
GroupTime group_time(const PredictionInput& input, std::span<const Share> group, const StepShape& step);

/// What an exchange adds up: matmuls over reduction slices, or experts, of which members may have other runs.
enum class ExchangeOf : std::uint8_t { kSlices, kExperts };

/// One exchange of `rows` positions among the members of a group: each sends its subtrees to all (direct), or sums
/// its share of the positions and hands them out, whichever is sooner. Where the group measured its exchanges, their
/// times; the links say what lies between the two sizes that were measured, and beyond them.
double exchange_s(const PredictionInput& input, std::span<const Share> group, double rows,
                  ExchangeOf of = ExchangeOf::kSlices);

/// All exchanges of sums that these blocks need in one step. Seconds.
double exchanges_s(const PredictionInput& input, std::span<const Share> group, const BlockCounts& blocks,
                   const StepShape& step);

/// Activations from the first member of a group to every member of the next, which slept meanwhile: the one that waits
/// for the message, and its threads. An empty span is the coordinator, who sends tokens and receives logits. Seconds.
double hop_s(const PredictionInput& input, std::span<const Share> from, std::span<const Share> to,
             const StepShape& step);

}  // namespace butterfly
