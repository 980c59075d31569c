#include "butterfly/train/step/train_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "butterfly/trace/trace.h"
#include "butterfly/train/run/tiny_run_test.h"

namespace butterfly {
namespace {

/// Passes on what another transformer does; its loss and gradients may be changed.
class TamperedTransformer final : public TrainableTransformer {
 public:
  explicit TamperedTransformer(TrainableTransformer& inner) : inner_(inner) {}
  const ModelConfig& config() const override { return inner_.config(); }
  const TransformerOptions& options() const override { return inner_.options(); }
  ParameterSet& parameters() override { return inner_.parameters(); }
  ThreadTeam& team() override { return inner_.team(); }
  TrainingMemory memory() const override { return inner_.memory(); }
  void initialize(std::uint64_t seed, const ParameterMade& made) override { inner_.initialize(seed, made); }
  std::vector<ParameterUnit> units() const override { return inner_.units(); }
  void set_residency(WeightResidency* residency) override { inner_.set_residency(residency); }
  Status idle(const GradientsReady& ready) override { return inner_.idle(ready); }
  Status make_room(int sequences) override { return inner_.make_room(sequences); }
  Result<double> forward(std::span<const TokenId> tokens, std::span<const TokenId> targets) override {
    BF_ASSIGN_OR_RETURN(const double loss, inner_.forward(tokens, targets));
    return loss * loss_factor;
  }
  void clear_gradients(std::span<float> into, OldGradients old) override { inner_.clear_gradients(into, old); }
  Status backward(float scale, const GradientsReady& ready) override {
    return inner_.backward(scale * gradient_factor, ready);
  }
  Result<double> evaluate(std::span<const TokenId> tokens, std::span<const TokenId> targets) override {
    return inner_.evaluate(tokens, targets);
  }
  void weights_changed() override { inner_.weights_changed(); }
  PartPasses& part() override { return inner_.part(); }
  double forward_flops_per_token() const override { return inner_.forward_flops_per_token(); }
  RouterReport router_report() const override { return inner_.router_report(); }

  double loss_factor = 1.0;
  float gradient_factor = 1.0f;

 private:
  TrainableTransformer& inner_;
};

/// Everything that one rank needs for steps.
struct TrainedSteps {
  explicit TrainedSteps(const RunConfig& config)
      : parts(std::move(*make_run_parts(config, {}))),
        transformer(*parts.transformer),
        reducer(make_local_reducer(parts.transformer->parameters(), config.parallel.deterministic)),
        guard(config.guard),
        buffers({.micro_batch = config.micro_batch,
                 .seq = config.seq,
                 .micro_batches = config.global_batch / config.micro_batch,
                 .expert_counts = parts.transformer->router_report().tokens.size()}) {}

  Result<StepReport> take(std::int64_t step, StepWish wish = {}) {
    const int total = parts.config.global_batch / parts.config.micro_batch;
    StepContext context{.config = parts.config,
                        .transformer = transformer,
                        .data = *parts.data,
                        .reducer = *reducer,
                        .optimizer = *parts.optimizer,
                        .guard = guard,
                        .buffers = buffers,
                        .share = {.first = 0, .last = total, .total = total},
                        .rounds = micro_batches_in_order({.first = 0, .last = total, .total = total}, 1),
                        .micro_batch = parts.config.micro_batch};
    return train_step(context, step, wish);
  }
  std::string weights() { return transformer.parameters().hash(); }

  RunParts parts;
  TamperedTransformer transformer;
  std::unique_ptr<GradientReducer> reducer;
  OutlierGuard guard;
  StepBuffers buffers;
};

TEST(TrainStep, LearnsAndSaysWhatItDid) {
  RunConfig config = tiny_run();
  config.schedule = {.kind = ScheduleKind::kConstant};
  TrainedSteps steps(config);
  const StepReport first = *steps.take(0);
  EXPECT_NEAR(first.loss, std::log(16.0), 0.2);
  EXPECT_EQ(first.tokens, 8 * 16);
  EXPECT_EQ(first.rate, config.optimizer.rate);
  EXPECT_GT(first.gradient_norm, 0.0);
  EXPECT_FALSE(first.left_out);
  for (int step = 1; step < 150; ++step) ASSERT_TRUE(steps.take(step));
  EXPECT_LT(steps.take(150)->loss, first.loss - 0.5);
}

TEST(TrainStep, ItsSpansAreThePhasesOfItsReport) {
  if (trace::kRingSpans < 4096) GTEST_SKIP() << "a ring of " << trace::kRingSpans << " spans is too small";
  RunConfig config = tiny_run();
  config.parallel.deterministic = false;
  TrainedSteps steps(config);
  (void)steps.take(0);
  trace::reset();
  trace::set_recording(true);
  const auto report = steps.take(1);
  trace::set_recording(false);
  ASSERT_TRUE(report) << report.error().message;
  std::map<trace::Zone, double> seconds;
  std::map<trace::Zone, int> counts;
  double step_s = 0.0;
  for (const trace::Span& span : trace::drain().spans) {
    const double length_s = static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
    if (trace::kind_of(span.zone) == trace::ZoneKind::kPhase) seconds[span.zone] += length_s;
    if (span.zone == trace::Zone::kStepTrain) {
      step_s = length_s;
      EXPECT_EQ(span.work.number, 1U);
    }
    ++counts[span.zone];
  }
  const StepPhases& phases = report->phases;
  const std::map<trace::Zone, double> reported{{trace::Zone::kPhaseData, phases.data_s},
                                               {trace::Zone::kPhaseForward, phases.forward_s},
                                               {trace::Zone::kPhaseBackward, phases.backward_s},
                                               {trace::Zone::kPhaseCommunication, phases.communication_exposed_s},
                                               {trace::Zone::kPhaseOptimizer, phases.optimizer_s}};
  double sum = 0.0;
  for (const auto& [zone, length_s] : reported) {
    EXPECT_NEAR(seconds[zone], length_s, 1e-12) << trace::to_string(zone);
    sum += length_s;
  }
  EXPECT_DOUBLE_EQ(step_s, phases.total_s);
  EXPECT_LE(sum, step_s * (1.0 + 1e-9));
  // Four micro-batches through one layer, and one update.
  EXPECT_EQ(counts[trace::Zone::kPhaseForward], 4);
  EXPECT_EQ(counts[trace::Zone::kPhaseBackward], 4);
  EXPECT_EQ(counts[trace::Zone::kLayer], 2 * 4);
  EXPECT_EQ(counts[trace::Zone::kGateUp], 3 * 4);
  EXPECT_EQ(counts[trace::Zone::kGradientClear], 1);
  EXPECT_EQ(counts[trace::Zone::kGradientNorm], 1);
  EXPECT_EQ(counts[trace::Zone::kUpdate], 1);
  trace::reset();
}

TEST(TrainStep, PhasesAddUp) {
  // A thread that loses its CPU between two phases leaves a gap that is none's: one step without it is enough.
  TrainedSteps steps(tiny_run());
  double best = 0.0;
  for (int step = 0; step < 50 && best < 0.98; ++step) {
    const StepPhases phases = steps.take(step)->phases;
    const double sum =
        phases.data_s + phases.forward_s + phases.backward_s + phases.communication_exposed_s + phases.optimizer_s;
    ASSERT_LE(sum, phases.total_s * (1.0 + 1e-9));
    EXPECT_GT(phases.forward_s, 0.0);
    EXPECT_GT(phases.backward_s, 0.0);
    best = std::max(best, sum / phases.total_s);
  }
  EXPECT_GE(best, 0.98);
}

TEST(TrainStep, MicroBatchesOfAnySizeGiveTheSameGradient) {
  double norms[2], losses[2];
  for (const int micro_batch : {8, 1}) {
    RunConfig config = tiny_run();
    config.micro_batch = micro_batch;
    const StepReport report = *TrainedSteps(config).take(0);
    norms[micro_batch / 8] = report.gradient_norm;
    losses[micro_batch / 8] = report.loss;
  }
  EXPECT_NEAR(norms[0], norms[1], 1e-5 * norms[1]);
  EXPECT_NEAR(losses[0], losses[1], 1e-6);
}

TEST(TrainStep, ClipsTheGradientToItsNorm) {
  // SGD without momentum or decay moves by rate * gradient, whose norm is the clip.
  RunConfig config = tiny_run();
  config.optimizer = {
      .kind = OptimizerKind::kSgd, .rate = 1.0, .momentum = 0.0, .weight_decay = 0.0, .clip_norm = 1e-3};
  config.schedule = {.kind = ScheduleKind::kConstant};
  TrainedSteps steps(config);
  const std::vector<float> before(steps.transformer.parameters().weights().begin(),
                                  steps.transformer.parameters().weights().end());
  EXPECT_GT(steps.take(0)->gradient_norm, 1e-2);
  double squares = 0.0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double moved = double{before[i]} - double{steps.transformer.parameters().weights()[i]};
    squares += moved * moved;
  }
  EXPECT_NEAR(std::sqrt(squares), 1e-3, 2e-5);
}

TEST(TrainStep, ALossOrGradientThatIsNotFiniteEndsBeforeTheUpdate) {
  TrainedSteps steps(tiny_run());
  ASSERT_TRUE(steps.take(0));
  const std::string before = steps.weights();
  steps.transformer.loss_factor = std::numeric_limits<double>::quiet_NaN();
  const auto loss = steps.take(1);
  ASSERT_FALSE(loss);
  EXPECT_EQ(loss.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(loss.error().message.find("the run diverges: at step 2 the loss is nan"), std::string::npos)
      << loss.error().message;
  steps.transformer.loss_factor = 1.0;
  steps.transformer.gradient_factor = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(steps.take(1));
  EXPECT_EQ(steps.weights(), before);
  EXPECT_EQ(steps.parts.optimizer->updates(), 1);
  steps.transformer.gradient_factor = 1.0f;
  EXPECT_TRUE(steps.take(1));
}

TEST(TrainStep, AnOutlierIsLeftOut) {
  RunConfig config = tiny_run();
  config.steps = 100;
  config.guard = {.loss_sigmas = 4.0, .window_steps = 10};
  TrainedSteps steps(config);
  for (int step = 0; step < 10; ++step) EXPECT_FALSE(steps.take(step)->left_out);
  const std::string before = steps.weights();
  steps.transformer.loss_factor = 50.0;
  EXPECT_TRUE(steps.take(10)->left_out);
  EXPECT_EQ(steps.weights(), before);
  EXPECT_EQ(steps.parts.optimizer->updates(), 10);
}

TEST(TrainStep, AWishToStopIsReported) {
  TrainedSteps steps(tiny_run());
  EXPECT_FALSE(steps.take(0)->stop);
  EXPECT_TRUE(steps.take(1, {.stop = true})->stop);
}

}  // namespace
}  // namespace butterfly
