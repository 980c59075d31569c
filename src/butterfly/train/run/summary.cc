#include "butterfly/train/run/summary.h"

#include <algorithm>
#include <cmath>

#include "butterfly/base/check.h"
#include "butterfly/base/json.h"

namespace butterfly {
namespace {

constexpr std::int64_t kFirstSteps = 2;
constexpr const char* kFlopsConvention =
    "6 N + 6 L C T per token: N weights of the matmuls that it goes through, attention counted causally, nothing for "
    "recomputation";

double mean(double sum, std::int64_t count) {
  return count > 0 ? sum / static_cast<double>(count) : 0.0;
}
double gigabytes(std::uint64_t bytes) {
  return static_cast<double>(bytes) * 1e-9;
}
double variance(double sum, double squares, std::int64_t count) {
  const double average = mean(sum, count);
  return std::max(0.0, mean(squares, count) - average * average);
}

}  // namespace

void Statistics::Times::add(const StepReport& report, double rank_share) {
  const double total = report.phases.total_s;
  least_s = steps == 0 ? total : std::min(least_s, total);
  most_s = std::max(most_s, total);
  ++steps;
  phases.data_s += report.phases.data_s;
  phases.forward_s += report.phases.forward_s;
  phases.backward_s += report.phases.backward_s;
  phases.communication_exposed_s += report.phases.communication_exposed_s;
  phases.optimizer_s += report.phases.optimizer_s;
  phases.total_s += total;
  squares += total * total;
  tokens += report.tokens;
  share_tokens += rank_share * static_cast<double>(report.tokens);
  bytes_sent += report.reduced.bytes_sent;
  hidden_s += std::max(0.0, report.reduced.communication_s - report.reduced.exposed_s);
  network_s += report.reduced.communication_s;
  network_squares += report.reduced.communication_s * report.reduced.communication_s;
  codec_s += report.reduced.codec_s;
  codec_squares += report.reduced.codec_s * report.reduced.codec_s;
}

void Statistics::add(const StepReport& report, double rank_share, std::uint64_t allocated, std::uint64_t reserved) {
  (steps_ < kFirstSteps ? first_ : rest_).add(report, rank_share);
  ++steps_;
  losses_ += report.loss;
  last_loss_ = report.loss;
  allocated_peak_ = std::max(allocated_peak_, allocated);
  reserved_peak_ = std::max(reserved_peak_, reserved);
  allocated_sum_ += static_cast<double>(allocated);
  reserved_sum_ += static_cast<double>(reserved);
}

RunSummary Statistics::summary(const SummaryFacts& facts) const {
  const Times& times = rest_.steps > 0 ? rest_ : first_;
  RunSummary summary{.num_steps = steps_,
                     .warmup_steps = rest_.steps > 0 ? first_.steps : 0,
                     .avg_step_time = mean(times.phases.total_s, times.steps),
                     .min_step_time = times.least_s,
                     .max_step_time = times.most_s,
                     .step_time_variance = variance(times.phases.total_s, times.squares, times.steps),
                     .avg_loss = mean(losses_, steps_),
                     .final_loss = last_loss_,
                     .peak_memory_allocated = allocated_peak_,
                     .avg_memory_allocated = static_cast<std::uint64_t>(mean(allocated_sum_, steps_)),
                     .peak_memory_reserved = reserved_peak_,
                     .avg_memory_reserved = static_cast<std::uint64_t>(mean(reserved_sum_, steps_)),
                     .communication_hidden_s = mean(times.hidden_s, times.steps),
                     .flops_per_token = 3.0 * facts.forward_flops_per_token,
                     .flops_convention = kFlopsConvention,
                     .peak_gflops = facts.peak_gflops,
                     .peak_source = facts.peak_source,
                     .network_s = mean(times.network_s, times.steps),
                     .network_s_variance = variance(times.network_s, times.network_squares, times.steps),
                     .compression_s = mean(times.codec_s, times.steps),
                     .compression_s_variance = variance(times.codec_s, times.codec_squares, times.steps)};
  summary.phases = {.data_s = mean(times.phases.data_s, times.steps),
                    .forward_s = mean(times.phases.forward_s, times.steps),
                    .backward_s = mean(times.phases.backward_s, times.steps),
                    .communication_exposed_s = mean(times.phases.communication_exposed_s, times.steps),
                    .optimizer_s = mean(times.phases.optimizer_s, times.steps),
                    .total_s = summary.avg_step_time};
  summary.flops_per_step = summary.flops_per_token * mean(static_cast<double>(times.tokens), times.steps);
  if (times.phases.total_s > 0) {
    summary.tokens_per_sec = static_cast<double>(times.tokens) / times.phases.total_s;
    summary.samples_per_sec = static_cast<double>(facts.sequences_per_step) / summary.avg_step_time;
    summary.network_kb_per_s = static_cast<double>(times.bytes_sent) / 1000.0 / times.phases.total_s;
  }
  if (times.tokens > 0) summary.rank_share = times.share_tokens / static_cast<double>(times.tokens);
  if (facts.peak_gflops > 0) {
    const double gflops = summary.tokens_per_sec * summary.rank_share * summary.flops_per_token * 1e-9;
    summary.mfu = gflops / facts.peak_gflops;
  }
  return summary;
}

std::string to_json(const RunSummary& s) {
  const nlohmann::ordered_json json{{"num_steps", s.num_steps},
                                    {"avg_step_time", s.avg_step_time},
                                    {"min_step_time", s.min_step_time},
                                    {"max_step_time", s.max_step_time},
                                    {"step_time_std", std::sqrt(s.step_time_variance)},
                                    {"warmup_steps", s.warmup_steps},
                                    {"tokens_per_sec", s.tokens_per_sec},
                                    {"samples_per_sec", s.samples_per_sec},
                                    {"throughput_samples_per_sec", s.samples_per_sec},
                                    {"avg_loss", s.avg_loss},
                                    {"final_loss", s.final_loss},
                                    {"peak_memory_allocated", s.peak_memory_allocated},
                                    {"avg_memory_allocated", s.avg_memory_allocated},
                                    {"peak_memory_reserved", s.peak_memory_reserved},
                                    {"avg_memory_reserved", s.avg_memory_reserved},
                                    {"peak_memory_allocated_gb", gigabytes(s.peak_memory_allocated)},
                                    {"avg_memory_allocated_gb", gigabytes(s.avg_memory_allocated)},
                                    {"peak_memory_reserved_gb", gigabytes(s.peak_memory_reserved)},
                                    {"avg_memory_reserved_gb", gigabytes(s.avg_memory_reserved)},
                                    {"data_s", s.phases.data_s},
                                    {"forward_s", s.phases.forward_s},
                                    {"backward_s", s.phases.backward_s},
                                    {"optimizer_s", s.phases.optimizer_s},
                                    {"communication_exposed_s", s.phases.communication_exposed_s},
                                    {"communication_hidden_s", s.communication_hidden_s},
                                    {"load_balance_factor", s.load_balance_factor},
                                    {"bubble_predicted", s.bubble_predicted},
                                    {"bubble_measured", s.bubble_measured},
                                    {"flops_per_step", s.flops_per_step},
                                    {"flops_per_token", s.flops_per_token},
                                    {"flops_convention", s.flops_convention},
                                    {"mfu", s.mfu},
                                    {"peak_gflops", s.peak_gflops},
                                    {"peak_source", s.peak_source},
                                    {"network_kb_per_s", s.network_kb_per_s},
                                    {"network_s", s.network_s},
                                    {"network_s_variance", s.network_s_variance},
                                    {"compression_s", s.compression_s},
                                    {"compression_s_variance", s.compression_s_variance}};
  return dump_json(json);
}

std::vector<double> to_numbers(const RankRow& row) {
  return {static_cast<double>(row.micro_batches),
          static_cast<double>(row.samples),
          row.compute_s,
          row.communication_exposed_s,
          row.network_s,
          row.network_s_variance,
          row.compression_s,
          row.compression_s_variance,
          row.network_kb_per_s,
          static_cast<double>(row.peak_memory_allocated),
          static_cast<double>(row.peak_memory_reserved)};
}

RankRow rank_row(std::span<const double> numbers) {
  BF_CHECK(numbers.size() == kRankNumbers, "the numbers of a rank");
  return {.micro_batches = static_cast<int>(numbers[0]),
          .samples = static_cast<int>(numbers[1]),
          .compute_s = numbers[2],
          .communication_exposed_s = numbers[3],
          .network_s = numbers[4],
          .network_s_variance = numbers[5],
          .compression_s = numbers[6],
          .compression_s_variance = numbers[7],
          .network_kb_per_s = numbers[8],
          .peak_memory_allocated = static_cast<std::uint64_t>(numbers[9]),
          .peak_memory_reserved = static_cast<std::uint64_t>(numbers[10])};
}

RankSpread spread_of(std::span<const RankRow> rows) {
  RankSpread spread;
  if (rows.empty()) return spread;
  const auto count = static_cast<std::int64_t>(rows.size());
  const auto mean_of = [&](double RankRow::*field) {
    double sum = 0.0;
    for (const RankRow& row : rows) sum += row.*field;
    return mean(sum, count);
  };
  const auto deviation_of = [&](double RankRow::*field) {
    double sum = 0.0, squares = 0.0;
    for (const RankRow& row : rows) sum += row.*field, squares += row.*field * row.*field;
    return std::sqrt(variance(sum, squares, count));
  };
  const auto by_rate = [](const RankRow& a, const RankRow& b) { return a.network_kb_per_s < b.network_kb_per_s; };
  spread.best_kb_per_s = std::ranges::max_element(rows, by_rate)->network_kb_per_s;
  spread.worst_kb_per_s = std::ranges::min_element(rows, by_rate)->network_kb_per_s;
  spread.mean_kb_per_s = mean_of(&RankRow::network_kb_per_s);
  spread.network_s_deviation = deviation_of(&RankRow::network_s);
  spread.compression_s_deviation = deviation_of(&RankRow::compression_s);
  spread.compute_s_deviation = deviation_of(&RankRow::compute_s);
  const auto slowest = std::ranges::max_element(rows, {}, &RankRow::compute_s);
  const double usual = mean_of(&RankRow::compute_s);
  if (rows.size() > 1 && slowest->compute_s > (1.0 + kStraggles) * usual) {
    spread.straggler = static_cast<int>(slowest - rows.begin());
  }
  return spread;
}

}  // namespace butterfly
