#include "butterfly/plan/cost/micro_batch_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace butterfly {
namespace {

Status check(int total, int ranks, std::span<const double> speeds) {
  if (ranks < 1) return make_error(ErrorCode::kInvalidArgument, "{} ranks; a run has at least 1", ranks);
  if (total < ranks) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a step of {} micro-batches cannot be divided among {} ranks: each needs at least one", total,
                      ranks);
  }
  if (!speeds.empty() && speeds.size() != static_cast<std::size_t>(ranks)) {
    return make_error(ErrorCode::kInvalidArgument, "speeds of {} ranks for a run of {}", speeds.size(), ranks);
  }
  for (std::size_t rank = 0; rank < speeds.size(); ++rank) {
    if (std::isfinite(speeds[rank]) && speeds[rank] > 0) continue;
    return make_error(ErrorCode::kInvalidArgument, "rank {} has speed {}, which is not above 0", rank, speeds[rank]);
  }
  return {};
}

/// How many each rank has: the whole part of its share, then one more for the largest remainders, the first of equals.
std::vector<int> largest_remainders(int total, const std::vector<double>& speeds) {
  const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::vector<int> counts;
  std::vector<double> remainders;
  for (const double speed : speeds) {
    const double share = total * (speed / sum);
    counts.push_back(std::min(total, static_cast<int>(share)));
    remainders.push_back(share - counts.back());
  }
  for (int left = total - std::accumulate(counts.begin(), counts.end(), 0); left > 0; --left) {
    const auto most = std::ranges::max_element(remainders);
    ++counts[static_cast<std::size_t>(most - remainders.begin())];
    *most = -1.0;
  }
  return counts;
}

int passes_of(int micro_batches, int in_a_pass) {
  return (micro_batches + in_a_pass - 1) / in_a_pass;
}

}  // namespace

Result<std::vector<MicroBatches>> divide_micro_batches(int total, int ranks, std::span<const double> speeds) {
  BF_TRY(check(total, ranks, speeds));
  std::vector<double> all(speeds.begin(), speeds.end());
  if (all.empty()) all.assign(static_cast<std::size_t>(ranks), 1.0);
  std::vector<int> counts = largest_remainders(total, all);
  // A rank without work could as well not be there, but its collectives are waited for: it takes one from the busiest.
  for (int& count : counts) {
    if (count > 0) continue;
    --*std::ranges::max_element(counts);
    count = 1;
  }
  std::vector<MicroBatches> shares;
  int first = 0;
  for (const int count : counts) {
    shares.push_back({.first = first, .last = first + count, .total = total});
    first += count;
  }
  return shares;
}

int shared_micro_batch(int batch, int micro_batch) {
  constexpr int kMost = 128;
  for (int sequences = 1; sequences < micro_batch; ++sequences) {
    if (micro_batch % sequences == 0 && batch / sequences <= kMost) return sequences;
  }
  return micro_batch;
}

int rounds_of(std::span<const MicroBatches> shares, PassSize size) {
  int most = 0, least = shares.empty() ? 0 : shares.front().total;
  for (const MicroBatches& share : shares) {
    most = std::max(most, share.last - share.first);
    least = std::min(least, share.last - share.first);
  }
  if (least == 0) return passes_of(most, size.usual);
  const int times = std::clamp((2 * most + least) / (2 * least), 1, size.most / size.usual);  // the nearest
  return std::max(passes_of(most, times * size.usual), passes_of(least, size.usual));
}

std::vector<PassMicroBatches> micro_batches_in_rounds(std::span<const MicroBatches> shares, int rank, int rounds) {
  std::vector<PassMicroBatches> mine(static_cast<std::size_t>(rounds));
  int next = 0;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t of = 0; of < shares.size(); ++of) {
      const int count =
          micro_batches_before(shares[of], round + 1, rounds) - micro_batches_before(shares[of], round, rounds);
      if (static_cast<int>(of) == rank && count > 0) mine[static_cast<std::size_t>(round)] = {next, count};
      next += count;
    }
  }
  return mine;
}

std::vector<PassMicroBatches> micro_batches_in_order(const MicroBatches& share, int in_a_pass) {
  std::vector<PassMicroBatches> mine;
  int first = share.first;
  for (int passes = passes_of(share.last - first, in_a_pass); passes > 0; --passes) {
    const int count = passes_of(share.last - first, passes);
    mine.push_back({first, count});
    first += count;
  }
  return mine;
}

}  // namespace butterfly
