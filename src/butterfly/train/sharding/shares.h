// Which micro-batches of a step each rank computes: runs of consecutive ones, as long as the ranks are fast.
// Plain functions, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

/// The micro-batches [first, last) of a step's `total` that this rank computes; at least one.
struct MicroBatches {
  int first = 0;
  int last = 0;
  int total = 0;
};

/// The micro-batches of each rank, in rank order, in proportion to `speeds` (empty: equal) by largest remainders; each
/// rank has at least one. The same on every rank. Errors: kInvalidArgument for fewer micro-batches than ranks, another
/// number of speeds than ranks, or a speed that is not above 0.
Result<std::vector<MicroBatches>> divide_micro_batches(int total, int ranks, std::span<const double> speeds);

/// Where the ranks of a step go through their micro-batches together, round by round: as many rounds as the busiest
/// rank has micro-batches, those of another one at equal distances and one of them in the last round. So a rank that is
/// a third as fast has the time of three rounds for each.
int rounds_of(std::span<const MicroBatches> shares);
/// How many of a rank's micro-batches belong to the first `rounds` of `all`.
inline int micro_batches_before(const MicroBatches& share, int rounds, int all) {
  return static_cast<int>(std::int64_t{rounds} * (share.last - share.first) / all);
}

/// Which micro-batch `rank` has in each round, or kIdle. Numbered along the rounds, and by rank within one.
inline constexpr int kIdle = -1;
std::vector<int> micro_batches_in_rounds(std::span<const MicroBatches> shares, int rank);

/// One after the other.
std::vector<int> micro_batches_in_order(const MicroBatches& share);

}  // namespace butterfly
