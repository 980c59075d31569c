#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "butterfly/base/text/one_line.h"
#include "butterfly/base/units.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/trace/trace.h"
#include "butterfly/train/run/find_batch.h"
#include "butterfly/train/run/training_peak.h"
#include "train/train.h"

namespace butterfly::app {
namespace {

constexpr std::uint64_t kTerminalPauseNs = 100'000'000;
constexpr std::uint64_t kLinePauseNs = 10'000'000'000;

double seconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// "2 h 05 min", "3 min 20 s", "12 s".
std::string time_left(double left_s) {
  const auto whole = static_cast<std::int64_t>(left_s + 0.5);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

/// Adds the time of its life to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum_s) : sum_s_(sum_s), begin_ns_(trace::now_ns()) {}
  ~Stopwatch() { sum_s_ += seconds(trace::now_ns() - begin_ns_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& sum_s_;
  std::uint64_t begin_ns_;
};

}  // namespace

TrainDisplay::TrainDisplay(const RunConfig& config, RunLog& log)
    : config_(config), log_(log), terminal_(::isatty(STDERR_FILENO) != 0 && config.log == LogLevel::kNormal) {
  if (config.log != LogLevel::kSilent) find_peak();
}

/// What utilisation is a share of. Processes are forked from one with a single thread, which a measurement would end.
void TrainDisplay::find_peak() {
  const int ranks = ranks_of(config_.parallel);
  if (ranks > 1 && (config_.parallel.engine != RankEngine::kInproc || !config_.parallel.workers.empty())) return;
  const auto shape = shape_of_run(config_);
  const auto isa = choose_isa();
  if (!shape || !isa) return;  // the run will say what is wrong
  flops_per_token_ = training_flops_per_token(*shape, config_.seq > 0 ? config_.seq : shape->context);
  const auto peak = measured_training_peak(config_.precision, *isa, threads_of_run(config_));
  if (peak) peak_flops_ = peak->gflops * 1e9 * ranks;
}

TrainObserver TrainDisplay::observer() {
  TrainObserver observer;
  observer.step = [this](const StepReport& report, std::int64_t steps) {
    const Stopwatch watch(spent_s_);
    log_.step(report);
    step(report, steps);
  };
  observer.evaluating = [this](std::int64_t step, std::int64_t tokens, double seconds) {
    constexpr double kPatienceS = 2.0;
    const Stopwatch watch(spent_s_);
    if (seconds < kPatienceS) return;
    say(fmt::format("step {}: validating on {} tokens, about {:.0f} s", step, tokens, seconds));
  };
  observer.evaluated = [this](std::int64_t step, double loss) {
    const Stopwatch watch(spent_s_);
    log_.evaluated(step, loss);
    say(fmt::format("step {}: validation loss {:.4f}", step, loss));
  };
  observer.sampled = [this](std::int64_t step, const std::string& text) {
    const Stopwatch watch(spent_s_);
    log_.sampled(step, text);
    say(fmt::format("step {}: sample\n{}\n", step, text));
  };
  observer.saved = [this](std::int64_t step, const std::string& path) {
    const Stopwatch watch(spent_s_);
    log_.saved(step, path);
    say(fmt::format("step {}: saved as {}", step, path));
  };
  observer.note = [this](const std::string& message) {
    const Stopwatch watch(spent_s_);
    log_.note(message);
    say(one_line(message));
  };
  return observer;
}

void TrainDisplay::say(const std::string& line) {
  if (config_.log == LogLevel::kSilent) return;
  end();
  std::fprintf(stderr, "%s\n", line.c_str());
}

void TrainDisplay::end() {
  if (open_line_) std::fputc('\n', stderr);
  open_line_ = false;
}

bool TrainDisplay::is_due(const StepReport& report, std::int64_t steps) {
  const std::uint64_t now = trace::now_ns();
  const std::uint64_t pause = terminal_ ? kTerminalPauseNs : kLinePauseNs;
  const bool border = report.step == 0 || report.step + 1 == steps || report.stop;
  if (config_.log != LogLevel::kVerbose && !border && now - last_shown_ns_ < pause) return false;
  last_shown_ns_ = now;
  return true;
}

void TrainDisplay::step(const StepReport& report, std::int64_t steps) {
  const std::uint64_t now = trace::now_ns();
  const double last_s = last_step_ns_ == 0 ? report.phases.total_s : seconds(now - last_step_ns_);
  last_step_ns_ = now;
  step_s_ = step_s_ == 0.0 ? last_s : 0.9 * step_s_ + 0.1 * last_s;
  if (config_.log == LogLevel::kSilent || !is_due(report, steps)) return;
  const std::string line = progress(report, steps);
  // What was longer before is wiped out to the end of the line.
  std::fprintf(stderr, terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
  open_line_ = terminal_;
}

std::string TrainDisplay::progress(const StepReport& report, std::int64_t steps) const {
  const double tokens_per_s = step_s_ > 0.0 ? static_cast<double>(report.tokens) / step_s_ : 0.0;
  std::string line =
      fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s", report.step + 1, steps, report.loss, tokens_per_s);
  if (report.experts > 0) {
    line += fmt::format("  aux {:.3f}  busiest expert {:.2f}x", report.router_aux_loss,
                        expert_load(report).largest_over_mean);
  }
  if (peak_flops_ > 0.0) line += fmt::format("  MFU {:.1f} %", 100.0 * tokens_per_s * flops_per_token_ / peak_flops_);
  line += fmt::format("  {} left", time_left(step_s_ * static_cast<double>(steps - report.step - 1)));
  if (report.left_out) line += "  (left out: an outlier)";
  if (config_.log != LogLevel::kVerbose) return line;
  const StepPhases& phases = report.phases;
  line += fmt::format("  | rate {:.3g}  gradient {:.3g}  | data {}, forward {}, backward {}, exposed {}, optimizer {}",
                      report.rate, report.gradient_norm, format_seconds(phases.data_s),
                      format_seconds(phases.forward_s), format_seconds(phases.backward_s),
                      format_seconds(phases.communication_exposed_s), format_seconds(phases.optimizer_s));
  return line;
}

}  // namespace butterfly::app
