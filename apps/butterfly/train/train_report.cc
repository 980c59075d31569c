#include <cmath>

#include "butterfly/base/units.h"
#include "butterfly/plan/simulation/forecast.h"
#include "train/train.h"

namespace butterfly::app {
namespace {

std::string row(const char* name, const std::string& text) {
  return fmt::format("{:<15} {}\n", name, text);
}

std::string memory(std::uint64_t allocated, std::uint64_t reserved) {
  return fmt::format("{} allocated, {} reserved", format_bytes(allocated), format_bytes(reserved));
}

std::string phases(const RunSummary& s) {
  std::string text = fmt::format("data {}, forward {}, backward {}, optimizer {}", format_seconds(s.phases.data_s),
                                 format_seconds(s.phases.forward_s), format_seconds(s.phases.backward_s),
                                 format_seconds(s.phases.optimizer_s));
  if (s.network_s > 0.0) {
    text += fmt::format(", communication {} exposed and {} hidden", format_seconds(s.phases.communication_exposed_s),
                        format_seconds(s.communication_hidden_s));
  }
  return text;
}

std::string work(const RunSummary& s) {
  const std::string flops = fmt::format("{:.3g} GFLOP per step, {:.3g} MFLOP per token ({})", s.flops_per_step * 1e-9,
                                        s.flops_per_token * 1e-6, s.flops_convention);
  return s.mfu > 0.0 ? fmt::format("MFU {:.1f} % of {:.0f} GFLOP/s ({}); {}", 100.0 * s.mfu, s.peak_gflops,
                                   s.peak_source, flops)
                     : flops;
}

/// One line for each rank, and what differs among them.
std::string rank_table(const std::vector<RankRow>& rows) {
  std::string text =
      fmt::format("\n{:<5} {:>13} {:>8} {:>10} {:>10} {:>10} {:>10} {:>12} {:>11} {:>11}\n", "rank", "micro-batches",
                  "samples", "compute", "exposed", "network", "packing", "sent", "allocated", "reserved");
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const RankRow& row = rows[rank];
    text += fmt::format("{:<5} {:>13} {:>8} {:>10} {:>10} {:>10} {:>10} {:>7.0f} KB/s {:>11} {:>11}\n", rank,
                        row.micro_batches, row.samples, format_seconds(row.compute_s),
                        format_seconds(row.communication_exposed_s), format_seconds(row.network_s),
                        format_seconds(row.compression_s), row.network_kb_per_s,
                        format_bytes(row.peak_memory_allocated), format_bytes(row.peak_memory_reserved));
  }
  const RankSpread spread = spread_of(rows);
  text += fmt::format(
      "a step's means; sent: best {:.0f}, worst {:.0f}, mean {:.0f} KB/s; deviation across ranks: compute {}, network "
      "{}, "
      "packing {}{}\n\n",
      spread.best_kb_per_s, spread.worst_kb_per_s, spread.mean_kb_per_s, format_seconds(spread.compute_s_deviation),
      format_seconds(spread.network_s_deviation), format_seconds(spread.compression_s_deviation),
      spread.straggler < 0 ? "; no straggler" : fmt::format("; rank {} is the straggler", spread.straggler));
  return text;
}

}  // namespace

std::string describe(const TrainResult& result, const RunConfig& config, const TrainAside& aside) {
  const RunSummary& s = result.summary;
  std::string text = result.ranks.empty() ? "\n" : rank_table(result.ranks);
  text += row("steps", result.steps_done == config.steps ? fmt::format("{}", result.steps_done)
                                                         : fmt::format("{} of {}", result.steps_done, config.steps));
  text += row("time per step",
              fmt::format("{} on average (deviation {}), {} to {}{}", format_seconds(s.avg_step_time),
                          format_seconds(std::sqrt(s.step_time_variance)), format_seconds(s.min_step_time),
                          format_seconds(s.max_step_time),
                          s.warmup_steps > 0 ? fmt::format(", without the first {}", s.warmup_steps) : std::string()));
  if (aside.step) {
    const Judged& step = *aside.step;
    text += row("predicted", fmt::format("{} per step ({} to {}), measured {:+.0f} %{}", format_seconds(step.predicted),
                                         format_seconds(step.interval.low), format_seconds(step.interval.high),
                                         100.0 * step.error(), remark(step)));
  }
  text += row("speed", fmt::format("{:.0f} tokens/s, {:.1f} samples/s", s.tokens_per_sec, s.samples_per_sec));
  text += row("phases", phases(s));
  text += row(
      "loss",
      fmt::format("{:.4f} on average, {:.4f} at the end{}", s.avg_loss, s.final_loss,
                  result.validation_loss > 0.0 ? fmt::format(", {:.4f} in validation", result.validation_loss) : ""));
  text += row("memory, peak", memory(s.peak_memory_allocated, s.peak_memory_reserved));
  if (aside.memory_bytes > 0) {
    text += row("memory, fits", fmt::format("{} for each rank at its peak, predicted, of {}",
                                            format_bytes(aside.memory_bytes), config.memory));
  }
  text += row("memory, average", memory(s.avg_memory_allocated, s.avg_memory_reserved));
  text += row("work", work(s));
  if (s.network_s > 0.0) {
    text += row("network",
                fmt::format("{:.0f} KB/s to each rank's others; {} per step (variance {:.3g} s^2), compression {} "
                            "(variance {:.3g} s^2)",
                            s.network_kb_per_s, format_seconds(s.network_s), s.network_s_variance,
                            format_seconds(s.compression_s), s.compression_s_variance));
  }
  if (ranks_of(config.parallel) > 1) {
    text += row(
        "balance",
        fmt::format("load_balance_factor {:.2f} (least / greatest of the ranks' time in forward and backward passes)",
                    s.load_balance_factor));
  }
  if (s.bubble_predicted > 0.0) {
    text += row("bubble", fmt::format("{:.0f} % of the ranks' time by the schedule, {:.0f} % measured (they wait for "
                                      "each other)",
                                      100.0 * s.bubble_predicted, 100.0 * s.bubble_measured));
  }
  text += row("display, logs", fmt::format("{} in all", format_seconds(aside.display_s)));
  if (!aside.disturbance.empty()) text += row("disturbed", aside.disturbance);
  text += row("weights", "sha256 " + result.weights_hash);
  if (config.log == LogLevel::kVerbose) {
    for (const std::string& check : result.verdict.checks) text += row("check", check);
  }
  return text + row("audit", to_string(result.verdict));
}

}  // namespace butterfly::app
