#include "butterfly/train/step/train_step.h"

#include <algorithm>
#include <cmath>

#include "butterfly/train/config/learning_rate.h"
#include "butterfly/train/step/phase_clock.h"
#include "butterfly/train/step/stage_step.h"

namespace butterfly {
namespace {

/// What a pass has waited for the weights of others, and for room for its gradients.
double waited_s(StepContext& context) {
  return context.reducer.take_waited_s() + (context.weights == nullptr ? 0.0 : context.weights->take_waited_s());
}

Status backward(StepContext& context, const PassMicroBatches& pass) {
  const std::span<float> fresh = context.reducer.fresh_gradients(pass.first);
  if (!fresh.empty()) context.transformer.clear_gradients(fresh, context.reducer.old_gradients());
  BF_TRY(context.transformer.backward(
      loss_scale(context), [&](ParameterRange range) { context.reducer.gradients_ready(pass.last(), range); }));
  return {};
}

Status forward(StepContext& context, int micro_batch) {
  StepBuffers& buffers = context.buffers;
  BF_ASSIGN_OR_RETURN(const double loss, context.transformer.forward(buffers.tokens, buffers.targets));
  note_forward(context, micro_batch, loss);
  return {};
}

/// This rank has no micro-batch in a round in which others have: they need its part of the weights, and it theirs of
/// the gradients.
Status serve_others(StepContext& context) {
  return context.transformer.idle([&](ParameterRange range) { context.reducer.gradients_ready(kIdle, range); });
}

/// All layers, for this rank's micro-batches.
Status pass_rounds(StepContext& context, std::int64_t step, PhaseClock& clock) {
  for (const PassMicroBatches& pass : context.rounds) {
    const int micro = pass.first;
    if (micro != kIdle) {
      read_batch(context, step, pass);
      clock.lap(kData, micro);
      BF_TRY(forward(context, micro));
      double& pass_s = context.buffers.pass_s[static_cast<std::size_t>(micro)];
      pass_s = clock.lap_of_pass(kForwardPass, micro, waited_s(context));
      BF_TRY(backward(context, pass));
      pass_s += clock.lap_of_pass(kBackwardPass, micro, waited_s(context));
    } else {
      BF_TRY(serve_others(context));
    }
    context.reducer.micro_batch_done(pass.last());
    clock.lap(kCommunication, micro);
  }
  return {};
}

double sum_of(std::span<const double> values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum;
}

/// The losses of all micro-batches, added in their order: no number of ranks shows in the mean.
Status share_losses(StepContext& context, StepWish wish, StepReport& report) {
  StepBuffers& buffers = context.buffers;
  const std::span<double> wishes = std::span(buffers.numbers).last(StepBuffers::kWishes);
  wishes[0] = wish.stop ? 1.0 : 0.0;
  wishes[1] = wish.regroup ? 1.0 : 0.0;
  wishes[2] = wish.saving ? 1.0 : 0.0;
  BF_TRY(share_numbers(context.collectives, buffers.numbers));
  report.loss = sum_of(buffers.losses) / static_cast<double>(report.tokens);
  report.router_aux_loss = sum_of(buffers.balance_losses) / static_cast<double>(buffers.losses.size());
  report.expert_tokens.assign(buffers.expert_tokens.begin(), buffers.expert_tokens.end());
  report.experts = context.transformer.config().moe.experts;
  report.stop = wishes[0] != 0.0;
  report.regroup = wishes[1] != 0.0;
  report.saving = wishes[2] != 0.0;
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

void add(const GatherStats& moved, ReduceReport& report) {
  report.bytes_sent += moved.bytes_sent;
  report.formula_bytes += moved.formula_bytes;
  report.uncompressed_bytes += moved.formula_bytes;
  report.communication_s += moved.communication_s;
  report.exposed_s += moved.exposed_s;
}

Status finish_gradients(StepContext& context, std::int64_t step, ReduceReport& report) {
  BF_ASSIGN_OR_RETURN(const ReduceReport reduced, context.reducer.finish());
  context.buffers.summed_step = step;
  const GatherStats of_stages{.bytes_sent = report.bytes_sent,
                              .formula_bytes = report.formula_bytes,
                              .communication_s = report.communication_s,
                              .exposed_s = report.exposed_s};
  report = reduced;
  add(of_stages, report);
  if (context.weights != nullptr) add(context.weights->take_stats(), report);
  return {};
}

void begin(StepContext& context) {
  std::fill(context.buffers.numbers.begin(), context.buffers.numbers.end(), 0.0);
  context.reducer.begin_step(context.share);
}

}  // namespace

std::int64_t tokens_of_step(const StepContext& context) {
  return static_cast<std::int64_t>(context.config.global_batch) * context.transformer.options().seq;
}

void read_batch(StepContext& context, std::int64_t step, PassMicroBatches micro_batches) {
  const auto seq = static_cast<std::size_t>(context.transformer.options().seq);
  const int sequences = micro_batches.count * context.micro_batch;
  std::vector<TokenId>&tokens = context.buffers.tokens, &targets = context.buffers.targets;
  tokens.resize(static_cast<std::size_t>(sequences) * seq);
  targets.resize(tokens.size());
  for (int i = 0; i < sequences; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * seq;
    context.data.sequence(step, micro_batches.first * context.micro_batch + i, std::span(tokens).subspan(at, seq),
                          std::span(targets).subspan(at, seq));
  }
}

float loss_scale(const StepContext& context) {
  return static_cast<float>(1.0 / static_cast<double>(tokens_of_step(context)));
}

void note_forward(StepContext& context, int micro_batch, double loss) {
  StepBuffers& buffers = context.buffers;
  buffers.losses[static_cast<std::size_t>(micro_batch)] = loss;
  const RouterReport router = context.transformer.router_report();
  buffers.balance_losses[static_cast<std::size_t>(micro_batch)] = router.balance_loss;
  for (std::size_t i = 0; i < router.tokens.size(); ++i) {
    buffers.expert_tokens[i] += static_cast<double>(router.tokens[i]);
  }
}

Result<StepReport> train_step(StepContext& context, std::int64_t step, StepWish wish) {
  StepReport report{.step = step, .rate = rate_of_step(context.config, step), .tokens = tokens_of_step(context)};
  PhaseClock clock(report);
  begin(context);
  clock.lap(kOptimizer);
  BF_TRY(context.stages == nullptr ? pass_rounds(context, step, clock) : pass_stages(context, step, report, clock));
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
