// The numbers of a run, in the field's words and keys. A Statistics is fed by the thread that trains and allocates
// nothing; the rest are plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "butterfly/train/step/train_step.h"

namespace butterfly {

struct RunSummary {
  std::int64_t num_steps = 0;
  std::int64_t warmup_steps = 0;  // of them, which do not count for times
  double avg_step_time = 0.0, min_step_time = 0.0, max_step_time = 0.0, step_time_variance = 0.0;  // s, s^2
  double tokens_per_sec = 0.0, samples_per_sec = 0.0;                                              // all ranks together
  double avg_loss = 0.0, final_loss = 0.0;
  std::uint64_t peak_memory_allocated = 0, avg_memory_allocated = 0;  // bytes that the run asked for, on this rank
  std::uint64_t peak_memory_reserved = 0,
                avg_memory_reserved = 0;  // bytes resident, of the process; gradients of other ranks that
                                          // it reads in their memory among them
  StepPhases phases{};                    // means, without the first two steps
  double communication_hidden_s = 0.0;    // behind the backward pass
  double load_balance_factor = 0.0;       // of the ranks' forward and backward passes (plan/cost/load_balance.h)
  /// Of a pipeline: the share of the ranks' time in which they wait for each other, by the simulated schedule and as
  /// measured since its layers were last divided, sums of losses and mirrors included.
  double bubble_predicted = 0.0, bubble_measured = 0.0;
  double flops_per_step = 0.0, flops_per_token = 0.0;
  std::string flops_convention{};
  double rank_share = 0.0;  // of the steps' work, on this rank: it grows where others are lost
  double mfu = 0.0;         // share of peak_gflops that this rank used; 0: the peak is not known
  double peak_gflops = 0.0;
  std::string peak_source{};  // how it was measured
  /// 1000 bytes of gradients that this rank sent to others, over connections or by their reading them in its memory:
  /// what an algorithm moves, whichever way. Headers, acknowledgements and what ranks agree upon are not counted.
  double network_kb_per_s = 0.0;
  double network_s = 0.0, network_s_variance = 0.0, compression_s = 0.0, compression_s_variance = 0.0;  // per step
};

std::string to_json(const RunSummary& summary);

/// What one rank did, means of a step unless said otherwise.
struct RankRow {
  int micro_batches = 0;
  int samples = 0;         // sequences
  double compute_s = 0.0;  // forward and backward passes
  double communication_exposed_s = 0.0;
  double network_s = 0.0, network_s_variance = 0.0, compression_s = 0.0, compression_s_variance = 0.0;
  double network_kb_per_s = 0.0;
  std::uint64_t peak_memory_allocated = 0, peak_memory_reserved = 0;
};
/// A row as numbers that ranks can share, and back.
std::vector<double> to_numbers(const RankRow& row);
inline constexpr std::size_t kRankNumbers = 11;
RankRow rank_row(std::span<const double> numbers);

/// Best, worst and mean of what ranks send, the spread of their times, and who is slowest.
struct RankSpread {
  double best_kb_per_s = 0.0, worst_kb_per_s = 0.0, mean_kb_per_s = 0.0;
  double network_s_deviation = 0.0, compression_s_deviation = 0.0, compute_s_deviation = 0.0;  // across ranks
  int straggler = -1;  // the rank whose passes take kStraggles longer than the mean of all, and longest
};
inline constexpr double kStraggles = 0.1;
RankSpread spread_of(std::span<const RankRow> rows);

/// What the steps themselves do not tell.
struct SummaryFacts {
  std::int64_t sequences_per_step = 0;  // all ranks
  double forward_flops_per_token = 0.0;
  double peak_gflops = 0.0;  // of this rank's threads; 0: not known
  std::string peak_source{};
};

class Statistics {
 public:
  /// After each step, of whose work this rank did `rank_share`; `allocated` and `reserved` are bytes at its end.
  void add(const StepReport& report, double rank_share, std::uint64_t allocated, std::uint64_t reserved);

  RunSummary summary(const SummaryFacts& facts) const;

 private:
  /// Sums over steps that count for times.
  struct Times {
    std::int64_t steps = 0;
    double least_s = 0.0, most_s = 0.0, squares = 0.0;
    StepPhases phases{};
    std::int64_t tokens = 0;
    std::uint64_t bytes_sent = 0;
    double hidden_s = 0.0;
    double network_s = 0.0, network_squares = 0.0, codec_s = 0.0, codec_squares = 0.0;
    double share_tokens = 0.0;  // of them, what this rank did
    void add(const StepReport& report, double rank_share);
  };

  std::int64_t steps_ = 0;
  double losses_ = 0.0, last_loss_ = 0.0;
  std::uint64_t allocated_peak_ = 0, reserved_peak_ = 0;
  double allocated_sum_ = 0.0, reserved_sum_ = 0.0;
  Times first_, rest_;  // the first two steps plan and touch memory; they count where there are no others
};

}  // namespace butterfly
