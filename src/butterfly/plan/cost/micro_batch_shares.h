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

/// Sequences of the micro-batches into which a step of `batch` is cut where sums may be in any order: the fewest that
/// divide `micro_batch`, what a rank is meant to compute in one pass, and leave at most 128 of them. So shares follow
/// speeds to about a hundredth of the step, and a pass takes several.
int shared_micro_batch(int batch, int micro_batch);

/// How many micro-batches a rank computes in one pass; a pass keeps the activations of all of them.
struct PassSize {
  static constexpr int kTimes = 4;
  int usual = 1;
  int most = 1;  // a multiple of `usual`: of a rank that is several times as fast as another one
};

/// Where the ranks of a step go through their micro-batches together, round by round. A rank that has several times as
/// many as the one that has least computes as many times as many in one pass, up to `size.most`: all take equally long
/// for a round. One by one there are as many rounds as the busiest rank has micro-batches, those of another one
/// at equal distances and one of them in the last round, so a rank that is a third as fast has the time of three rounds
/// for each.
int rounds_of(std::span<const MicroBatches> shares, PassSize size);
/// The most of one rank in one of `rounds`.
inline int most_in_a_round(const MicroBatches& share, int rounds) {
  return (share.last - share.first + rounds - 1) / rounds;
}
/// How many of a rank's micro-batches belong to the first `rounds` of `all`.
inline int micro_batches_before(const MicroBatches& share, int rounds, int all) {
  return static_cast<int>(std::int64_t{rounds} * (share.last - share.first) / all);
}

/// Consecutive micro-batches that a rank computes in one pass.
inline constexpr int kIdle = -1;
struct PassMicroBatches {
  int first = kIdle;
  int count = 0;
  int last() const { return count == 0 ? kIdle : first + count - 1; }
  bool operator==(const PassMicroBatches&) const = default;
};

/// Those of `rank` in each of `rounds` rounds. Numbered along the rounds, and by rank within one.
std::vector<PassMicroBatches> micro_batches_in_rounds(std::span<const MicroBatches> shares, int rank, int rounds);

/// All of a rank that goes through them by itself: in the fewest passes of at most `in_a_pass`, as even as possible.
std::vector<PassMicroBatches> micro_batches_in_order(const MicroBatches& share, int in_a_pass);

}  // namespace butterfly
