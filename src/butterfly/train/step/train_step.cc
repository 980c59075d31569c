#include "butterfly/train/step/train_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "butterfly/trace/trace.h"
#include "butterfly/train/config/learning_rate.h"

namespace butterfly {
namespace {

/// Gives the time since the last call to a phase.
class PhaseClock {
 public:
  explicit PhaseClock(StepPhases& phases) : phases_(phases) {}
  void lap(double StepPhases::*phase) {
    const std::uint64_t now = trace::now_ns();
    phases_.*phase += static_cast<double>(now - last_) * 1e-9;
    last_ = now;
  }
  void stop() { phases_.total_s = static_cast<double>(trace::now_ns() - begin_) * 1e-9; }

 private:
  StepPhases& phases_;
  std::uint64_t begin_ = trace::now_ns();
  std::uint64_t last_ = trace::now_ns();
};

std::int64_t tokens_of_step(const StepContext& context) {
  return static_cast<std::int64_t>(context.config.global_batch) * context.transformer.options().seq;
}

/// Micro-batch m of a step holds its sequences [m micro_batch, (m + 1) micro_batch), whichever rank computes it.
void read_batch(StepContext& context, std::int64_t step, int micro_batch) {
  const auto seq = static_cast<std::size_t>(context.transformer.options().seq);
  for (int i = 0; i < context.micro_batch; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * seq;
    context.data.sequence(step, micro_batch * context.micro_batch + i,
                          std::span(context.buffers.tokens).subspan(at, seq),
                          std::span(context.buffers.targets).subspan(at, seq));
  }
}

Status backward(StepContext& context, int micro_batch) {
  const std::span<float> fresh = context.reducer.fresh_gradients(micro_batch);
  if (!fresh.empty()) context.transformer.clear_gradients(fresh);
  const auto scale = static_cast<float>(1.0 / static_cast<double>(tokens_of_step(context)));
  BF_TRY(context.transformer.backward(
      scale, [&](ParameterRange range) { context.reducer.gradients_ready(micro_batch, range); }));
  return {};
}

/// The losses of all micro-batches, added in their order: no number of ranks shows in the mean.
Status share_losses(StepContext& context, StopWish wish, StepReport& report) {
  std::vector<double>& numbers = context.buffers.numbers;
  numbers.back() = wish == StopWish::kStop ? 1.0 : 0.0;
  BF_TRY(share_numbers(context.collectives, numbers));
  double sum = 0.0;
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) sum += numbers[i];
  report.loss = sum / static_cast<double>(report.tokens);
  report.stop = numbers.back() != 0.0;
  return {};
}

Status check_finite(const StepReport& report) {
  if (std::isfinite(report.loss) && std::isfinite(report.gradient_norm)) return {};
  return make_error(
      ErrorCode::kInvalidArgument,
      "the run diverges: at step {} the loss is {:.6g}, the norm of its gradient {:.6g} and the rate {:.6g}",
      report.step + 1, std::abs(report.loss), std::abs(report.gradient_norm), report.rate);
}

double clip_factor(const StepContext& context, double norm) {
  const double most = context.config.optimizer.clip_norm;
  return most > 0 && norm > most ? most / norm : 1.0;
}

void begin(StepContext& context) {
  std::fill(context.buffers.numbers.begin(), context.buffers.numbers.end(), 0.0);
  context.reducer.begin_step(context.share);
}

}  // namespace

Result<StepReport> train_step(StepContext& context, std::int64_t step, StopWish wish) {
  StepReport report{.step = step, .rate = rate_of_step(context.config, step), .tokens = tokens_of_step(context)};
  PhaseClock clock(report.phases);
  begin(context);
  clock.lap(&StepPhases::optimizer_s);
  for (int micro = context.share.first; micro < context.share.last; ++micro) {
    read_batch(context, step, micro);
    clock.lap(&StepPhases::data_s);
    double& loss = context.buffers.numbers[static_cast<std::size_t>(micro)];
    BF_ASSIGN_OR_RETURN(loss, context.transformer.forward(context.buffers.tokens, context.buffers.targets));
    clock.lap(&StepPhases::forward_s);
    BF_TRY(backward(context, micro));
    clock.lap(&StepPhases::backward_s);
    context.reducer.micro_batch_done(micro);
    clock.lap(&StepPhases::communication_exposed_s);
  }
  BF_ASSIGN_OR_RETURN(report.reduced, context.reducer.finish());
  BF_TRY(share_losses(context, wish, report));
  clock.lap(&StepPhases::communication_exposed_s);

  report.gradient_norm = context.optimizer.gradient_norm();
  BF_TRY(check_finite(report));
  report.left_out = context.guard.is_outlier(report.loss, report.gradient_norm);
  if (!report.left_out) {
    context.optimizer.update(report.rate, clip_factor(context, report.gradient_norm));
    context.transformer.weights_changed();
  }
  clock.lap(&StepPhases::optimizer_s);
  clock.stop();
  return report;
}

Status share_numbers(Collectives* collectives, std::span<double> numbers) {
  if (collectives == nullptr || collectives->size() == 1) return {};
  const ReduceFunction add = [](MutableByteSpan into, ByteSpan from) {
    for (std::size_t at = 0; at < into.size(); at += sizeof(double)) {
      double sum = 0.0, term = 0.0;
      std::memcpy(&sum, into.data() + at, sizeof(double));
      std::memcpy(&term, from.data() + at, sizeof(double));
      sum += term;
      std::memcpy(into.data() + at, &sum, sizeof(double));
    }
  };
  return collectives->all_reduce(std::as_writable_bytes(numbers), sizeof(double), add, AllReduceAlgorithm::kAuto);
}

}  // namespace butterfly
