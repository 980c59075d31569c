#include "butterfly/train/step/train_step.h"

#include <algorithm>
#include <cmath>

#include "butterfly/trace/trace.h"
#include "butterfly/train/config/learning_rate.h"

namespace butterfly {
namespace {

struct Phase {
  trace::Zone zone;
  double StepPhases::*sum;
};
constexpr Phase kData{trace::Zone::kPhaseData, &StepPhases::data_s};
constexpr Phase kForwardPass{trace::Zone::kPhaseForward, &StepPhases::forward_s};
constexpr Phase kBackwardPass{trace::Zone::kPhaseBackward, &StepPhases::backward_s};
constexpr Phase kCommunication{trace::Zone::kPhaseCommunication, &StepPhases::communication_exposed_s};
constexpr Phase kOptimizer{trace::Zone::kPhaseOptimizer, &StepPhases::optimizer_s};

/// Gives the time since the last call to a phase, in the report and as a span. A step that fails leaves no span of it.
class PhaseClock {
 public:
  explicit PhaseClock(StepReport& report) : report_(report) {}
  void lap(const Phase& phase, int micro_batch = 0) { end(phase, micro_batch, trace::now_ns()); }
  /// Of which `waited_s` were spent waiting for other ranks: as its end, wherever in it they were.
  void lap_of_pass(const Phase& phase, int micro_batch, double waited_s) {
    const std::uint64_t now = trace::now_ns();
    const auto waited = std::min(now - last_, static_cast<std::uint64_t>(waited_s * 1e9));
    end(phase, micro_batch, now - waited);
    if (waited > 0) end(kCommunication, micro_batch, now);
  }
  void stop(const StepContext& context) {
    const std::uint64_t now = trace::now_ns();
    const Collectives* ranks = context.collectives;
    trace::record(trace::Zone::kStepTrain, begin_, now,
                  {.number = static_cast<std::uint32_t>(report_.step),
                   .in = static_cast<std::uint32_t>(ranks == nullptr ? 0 : ranks->rank()),
                   .out = static_cast<std::uint32_t>(ranks == nullptr ? 1 : ranks->size())});
    const std::int64_t sequences = std::int64_t{context.share.last - context.share.first} * context.micro_batch;
    trace::add(trace::Counter::kTrainTokens, static_cast<std::uint64_t>(sequences * context.transformer.options().seq));
    report_.phases.total_s = static_cast<double>(now - begin_) * 1e-9;
  }

 private:
  void end(const Phase& phase, int micro_batch, std::uint64_t now) {
    trace::record(phase.zone, last_, now, {.number = static_cast<std::uint32_t>(micro_batch)});
    report_.phases.*phase.sum += static_cast<double>(now - last_) * 1e-9;
    last_ = now;
  }

  StepReport& report_;
  const std::uint64_t begin_ = trace::now_ns();
  std::uint64_t last_ = begin_;
};

/// What a pass has waited for the weights of others, and for room for its gradients.
double waited_s(StepContext& context) {
  return context.reducer.take_waited_s() + (context.weights == nullptr ? 0.0 : context.weights->take_waited_s());
}

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
  if (!fresh.empty()) context.transformer.clear_gradients(fresh, context.reducer.old_gradients());
  const auto scale = static_cast<float>(1.0 / static_cast<double>(tokens_of_step(context)));
  BF_TRY(context.transformer.backward(
      scale, [&](ParameterRange range) { context.reducer.gradients_ready(micro_batch, range); }));
  return {};
}

Status forward(StepContext& context, int micro_batch) {
  StepBuffers& buffers = context.buffers;
  double& loss = buffers.losses[static_cast<std::size_t>(micro_batch)];
  BF_ASSIGN_OR_RETURN(loss, context.transformer.forward(buffers.tokens, buffers.targets));
  const RouterReport router = context.transformer.router_report();
  buffers.balance_losses[static_cast<std::size_t>(micro_batch)] = router.balance_loss;
  for (std::size_t i = 0; i < router.tokens.size(); ++i) {
    buffers.expert_tokens[i] += static_cast<double>(router.tokens[i]);
  }
  return {};
}

double sum_of(std::span<const double> values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum;
}

/// The losses of all micro-batches, added in their order: no number of ranks shows in the mean.
Status share_losses(StepContext& context, StopWish wish, StepReport& report) {
  StepBuffers& buffers = context.buffers;
  buffers.numbers.back() = wish == StopWish::kStop ? 1.0 : 0.0;
  BF_TRY(share_numbers(context.collectives, buffers.numbers));
  report.loss = sum_of(buffers.losses) / static_cast<double>(report.tokens);
  report.router_aux_loss = sum_of(buffers.balance_losses) / static_cast<double>(buffers.losses.size());
  report.expert_tokens.assign(buffers.expert_tokens.begin(), buffers.expert_tokens.end());
  report.experts = context.transformer.config().moe.experts;
  report.stop = buffers.numbers.back() != 0.0;
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

/// This rank has no micro-batch in a round in which others have: they need its part of the weights, and it theirs of
/// the gradients.
Status serve_others(StepContext& context) {
  return context.transformer.idle([&](ParameterRange range) { context.reducer.gradients_ready(kIdle, range); });
}

Status finish_gradients(StepContext& context, std::int64_t step, ReduceReport& report) {
  BF_ASSIGN_OR_RETURN(report, context.reducer.finish());
  context.buffers.summed_step = step;
  if (context.weights == nullptr) return {};
  const GatherStats gathered = context.weights->take_stats();
  report.bytes_sent += gathered.bytes_sent;
  report.formula_bytes += gathered.formula_bytes;
  report.uncompressed_bytes += gathered.formula_bytes;
  report.communication_s += gathered.communication_s;
  report.exposed_s += gathered.exposed_s;
  return {};
}

void begin(StepContext& context) {
  std::fill(context.buffers.numbers.begin(), context.buffers.numbers.end(), 0.0);
  context.reducer.begin_step(context.share);
}

}  // namespace

Result<StepReport> train_step(StepContext& context, std::int64_t step, StopWish wish) {
  StepReport report{.step = step, .rate = rate_of_step(context.config, step), .tokens = tokens_of_step(context)};
  PhaseClock clock(report);
  begin(context);
  clock.lap(kOptimizer);
  for (const int micro : context.rounds) {
    if (micro != kIdle) {
      read_batch(context, step, micro);
      clock.lap(kData, micro);
      BF_TRY(forward(context, micro));
      clock.lap_of_pass(kForwardPass, micro, waited_s(context));
      BF_TRY(backward(context, micro));
      clock.lap_of_pass(kBackwardPass, micro, waited_s(context));
    } else {
      BF_TRY(serve_others(context));
    }
    context.reducer.micro_batch_done(micro);
    clock.lap(kCommunication, micro);
  }
  BF_TRY(finish_gradients(context, step, report.reduced));
  BF_TRY(share_losses(context, wish, report));
  clock.lap(kCommunication, context.share.last);

  BF_ASSIGN_OR_RETURN(report.gradient_norm, context.optimizer.gradient_norm(context.collectives));
  BF_TRY(check_finite(report));
  end_step(context, report);
  clock.lap(kOptimizer);
  clock.stop(context);
  return report;
}

void end_step(StepContext& context, StepReport& report) {
  report.left_out = context.guard.is_outlier(report.loss, report.gradient_norm);
  if (report.left_out) return;
  context.optimizer.update(report.rate, clip_factor(context, report.gradient_norm));
  context.transformer.weights_changed();
  if (context.weights != nullptr) context.weights->updated();
}

ExpertLoad expert_load(const StepReport& report) {
  ExpertLoad load;
  const auto experts = static_cast<std::size_t>(report.experts);
  for (std::size_t first = 0; experts > 0 && first < report.expert_tokens.size(); first += experts) {
    const std::span<const std::int64_t> layer = std::span(report.expert_tokens).subspan(first, experts);
    std::int64_t sum = 0, largest = 0, unused = 0;
    for (const std::int64_t tokens : layer) {
      sum += tokens;
      largest = std::max(largest, tokens);
      unused += tokens == 0 ? 1 : 0;
    }
    if (sum == 0) continue;  // a dense layer
    load.unused += static_cast<int>(unused);
    load.largest_over_mean = std::max(
        load.largest_over_mean, static_cast<double>(largest) * static_cast<double>(experts) / static_cast<double>(sum));
  }
  return load;
}

}  // namespace butterfly
