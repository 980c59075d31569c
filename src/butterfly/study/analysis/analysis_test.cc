#include "butterfly/study/analysis/analysis.h"

#include <gtest/gtest.h>

#include "butterfly/study/read/recording_builder_test.h"

namespace butterfly::study {
namespace {

using trace::Zone;

Study study_of(const std::vector<RecordingBuilder>& builders, const StepSelection& selection = {}) {
  auto study = analyse({run_of(builders)}, selection);
  EXPECT_TRUE(study) << study.error().message;
  return study ? *study : Study{};
}

const PhaseTime* phase(const TrackTime& track, const std::string& name) {
  const auto found = std::ranges::find(track.phases, name, &PhaseTime::name);
  return found == track.phases.end() ? nullptr : &*found;
}

const OperatorTime* operation(const WorkloadStudy& work, const std::string& name) {
  const auto found = std::ranges::find(work.operators, name, &OperatorTime::name);
  return found == work.operators.end() ? nullptr : &*found;
}

TEST(Analysis, WithoutAStepItSaysSo) {
  RecordingBuilder builder;
  builder.span(Zone::kLoadModel, 0, 10);
  const auto study = analyse({run_of({builder})}, {});
  ASSERT_FALSE(study);
  EXPECT_EQ(study.error().code, ErrorCode::kNotFound);
  EXPECT_NE(study.error().message.find("1 spans and no step"), std::string::npos) << study.error().message;
}

TEST(Analysis, FirstStepsAreDroppedAndNoMoreThanAskedForAreMeasured) {
  RecordingBuilder builder;
  for (int i = 0; i < 100; ++i) {
    const double length = i < 10 ? 50 : i < 60 ? 10 : 90;  // what is dropped and what is left out would show
    builder.span(Zone::kStepTrain, 1000.0 * i, 1000.0 * i + length);
  }
  const Study study = study_of({builder});
  const WorkloadStudy& work = study.workloads.at(0);
  EXPECT_EQ(work.step_s.count, 50);
  EXPECT_NEAR(work.tracks[0].wall_s, 50 * 1e-3, 1e-9) << "what follows a step belongs to it until the next";
  EXPECT_NEAR(phase(work.tracks[0], "rest of the step")->seconds, 50 * 10e-6, 1e-9);
  EXPECT_EQ(work.selection, "50 of 100 steps, after 10 that were dropped as warm-up");
}

TEST(Analysis, OfFewStepsAFifthIsDropped) {
  RecordingBuilder builder;
  for (int i = 0; i < 10; ++i) builder.span(Zone::kStepTrain, 10.0 * i, 10.0 * i + 10);
  EXPECT_EQ(study_of({builder}).workloads.at(0).step_s.count, 8);
  RecordingBuilder one;
  one.span(Zone::kStepTrain, 0, 10);
  const Study study = study_of({one});
  EXPECT_EQ(study.workloads.at(0).step_s.count, 1);
  ASSERT_EQ(study.notes.size(), 1u);
  EXPECT_NE(study.notes[0].find("no interval"), std::string::npos);
}

TEST(Analysis, PrefillAndDecodeAreNeverOne) {
  RecordingBuilder builder("generate");
  builder.span(Zone::kStepPrefill, 0, 100);
  for (int i = 0; i < 20; ++i) builder.span(Zone::kStepDecode, 200.0 + 10 * i, 208.0 + 10 * i);
  const Study study = study_of({builder}, {.warmup = 0});
  ASSERT_EQ(study.workloads.size(), 2u);
  EXPECT_EQ(study.workloads[0].kind, WorkKind::kPrefill);
  EXPECT_NEAR(study.workloads[0].step_s.mean, 100e-6, 1e-12) << "the gap to the first decode step is not its own";
  EXPECT_EQ(study.workloads[1].kind, WorkKind::kDecode);
  EXPECT_NEAR(study.workloads[1].step_s.median, 10e-6, 1e-12);
}

TEST(Analysis, PhasesAreAllOfTheWallTime) {
  const Study study = study_of({good_training()});
  const WorkloadStudy& work = study.workloads.at(0);
  const TrackTime& track = work.tracks.at(0);
  double sum = 0.0;
  for (const PhaseTime& one : track.phases) sum += one.share;
  EXPECT_NEAR(sum, 1.0, 1e-9);
  EXPECT_NEAR(phase(track, "forward")->share, 0.3, 1e-9);
  EXPECT_NEAR(phase(track, "backward")->share, 0.6, 1e-9);
  EXPECT_NEAR(phase(track, "backward")->rest_s, 50 * 50e-6, 1e-9);
  EXPECT_NEAR(phase(track, "optimizer")->share, 0.1, 1e-9);
}

TEST(Analysis, WhatRecordingTakesIsNoRestOfAPhase) {
  const auto backward = [](const std::string& zone_ns) {
    const Study study = study_of({good_training().fact("trace.zone_ns", zone_ns)});
    return *phase(study.workloads.at(0).tracks.at(0), "backward");
  };
  const PhaseTime cheap = backward("1000"), dear = backward("1000000");
  EXPECT_NEAR(cheap.recording_s, 50 * 2 * 1e-6, 1e-9) << "of the phase and of its one operation";
  EXPECT_NEAR(cheap.rest_s, 50 * 48e-6, 1e-9);
  EXPECT_NEAR(dear.recording_s, 50 * 50e-6, 1e-9) << "no more than there is";
  EXPECT_EQ(dear.rest_s, 0.0);
  EXPECT_EQ(dear.seconds, cheap.seconds);
}

TEST(Analysis, OperationsHaveTimeRatesAndTheirShareOfTheRoof) {
  RecordingBuilder builder = good_training();
  builder.fact("cache.l2.gb_per_s", "40");
  const Study study = study_of({builder});
  const WorkloadStudy& work = study.workloads.at(0);
  const OperatorTime* qkv = operation(work, "qkv");
  ASSERT_NE(qkv, nullptr);
  EXPECT_EQ(qkv->calls, 50u);
  EXPECT_EQ(qkv->type, "f32");
  EXPECT_NEAR(qkv->own_s, 50 * 100e-6, 1e-9);
  EXPECT_NEAR(qkv->share, 0.1, 1e-9);
  EXPECT_NEAR(qkv->gflops_per_s, 80.0, 1e-6);
  EXPECT_NEAR(qkv->intensity, 100.0, 1e-9);
  EXPECT_NEAR(qkv->ridge, 10.0, 1e-9);
  EXPECT_FALSE(qkv->memory_bound);
  EXPECT_NEAR(qkv->share_of_roof, 0.8, 1e-6);
  const OperatorTime* update = operation(work, "update");
  ASSERT_NE(update, nullptr);
  EXPECT_NEAR(update->gb_per_s, 5.0, 1e-6);
  EXPECT_NEAR(update->share_of_roof, 0.5, 1e-6) << "5 of 10 GB/s";
  EXPECT_NEAR(update->share_of_cache_roof[1], 0.125, 1e-6) << "5 of 40 GB/s";
  EXPECT_EQ(update->share_of_cache_roof[0], 0.0) << "nobody measured that level";
  EXPECT_NEAR(qkv->share_of_cache_roof[1], 0.8, 1e-6) << "arithmetic is its limit at every level";
  EXPECT_NEAR(work.efficiency.cache_gb_per_s[1], 40.0, 1e-9);
  EXPECT_NEAR(work.matmul_share, 0.85, 1e-9) << "with the weight gradient, which has a row of its own";
  EXPECT_NE(operation(work, "gate_up weight_gradient"), nullptr);
  EXPECT_EQ(work.projections_per_layer, 1);
}

TEST(Analysis, UtilisationCountsWhatTheModelNeedsOnceAndHfuAll) {
  RecordingBuilder builder;
  builder.fact("model.parameters", "1000");
  for (int i = 0; i < 4; ++i) {
    const double at = 100.0 * i;
    trace::Sample sample;
    sample.counters[static_cast<std::size_t>(trace::Counter::kTrainTokens)] = static_cast<std::uint64_t>(i) * 200;
    builder.sample(at, sample);
    builder.span(Zone::kStepTrain, at, at + 100);
    // 40 % and 20 % of 100 GFLOP/s for 100 us.
    builder.span(Zone::kQkv, at, at + 50, {.flops = 4'000'000, .bytes = 8'000'000, .type = 0});
    builder.span(Zone::kQkv, at + 50, at + 80,
                 {.flops = 2'000'000, .bytes = 0, .type = 0, .pass = trace::Pass::kRecompute});
  }
  trace::Sample last;
  last.counters[static_cast<std::size_t>(trace::Counter::kTrainTokens)] = 800;
  builder.sample(400, last);
  const Efficiency found = study_of({builder}, {.warmup = 0}).workloads.at(0).efficiency;
  EXPECT_NEAR(found.mfu, 0.4, 1e-6);
  EXPECT_NEAR(found.hfu, 0.6, 1e-6);
  EXPECT_EQ(mfu_band(found.mfu), "40 to 60 %");
  EXPECT_NEAR(found.tokens_per_step, 200.0, 1e-6);
  EXPECT_NEAR(found.flops_per_parameter_token, 4'000'000.0 / 200 / 1000, 1e-6);
  EXPECT_NEAR(found.intensity, 0.75, 1e-9);
  EXPECT_TRUE(found.memory_bound);
  EXPECT_NEAR(found.bandwidth_share, 8.0, 1e-6) << "80 GB/s of 10: a cache served them";
}

TEST(Analysis, WithoutACountATrainingStepHasTheTokensOfItsGlobalBatch) {
  RecordingBuilder builder = good_training();
  builder.fact("train.global_batch", "8").fact("train.seq", "16").fact("model.parameters", "1000");
  const Efficiency found = study_of({builder}).workloads.at(0).efficiency;
  EXPECT_NEAR(found.tokens_per_step, 128.0, 1e-6);
  EXPECT_NEAR(found.flops_per_parameter_token, 68e6 / 128 / 1000, 1e-3);
}

TEST(Analysis, MfuBandsHaveTheirBorders) {
  EXPECT_EQ(mfu_band(0.1999), "under 20 %");
  EXPECT_EQ(mfu_band(0.2), "20 to 40 %");
  EXPECT_EQ(mfu_band(0.4), "40 to 60 %");
  EXPECT_EQ(mfu_band(0.6), "40 to 60 %");
  EXPECT_EQ(mfu_band(0.6001), "over 60 %");
}

TEST(Analysis, WhatIsNotRecordedIsUnknown) {
  RecordingBuilder builder;
  builder.fact("peak.fp32_gflops", "").fact("peak.memory_gb_per_s", "nan").fact("peak.int8_gops", "-3");
  for (int i = 0; i < 5; ++i) {
    builder.span(Zone::kStepTrain, 10.0 * i, 10.0 * i + 10).span(Zone::kQkv, 10.0 * i, 10.0 * i + 5, {.flops = 100});
  }
  const WorkloadStudy work = study_of({builder}).workloads.at(0);
  EXPECT_EQ(work.efficiency.peak_flops, 0.0);
  EXPECT_EQ(work.efficiency.mfu, 0.0);
  EXPECT_EQ(operation(work, "qkv")->share_of_roof, 0.0);
}

/// Two stages that take turns: a of 60 us, b of 20 us, and a scheduler around both.
std::vector<RecordingBuilder> pipeline() {
  RecordingBuilder scheduler("generate"), a("worker"), b("worker");
  a.fact("node", "a");
  b.fact("node", "b");
  for (int i = 0; i < 30; ++i) {
    const double at = 100.0 * i;
    scheduler.span(Zone::kStepTurn, at, at + 95).span(Zone::kWaitAnswer, at + 5, at + 90);
    scheduler.span(Zone::kSample, at + 90, at + 95);
    a.span(Zone::kStepDecode, at + 5, at + 65, {.number = 2}).span(Zone::kQkv, at + 5, at + 60, {.type = 4});
    a.span(Zone::kSend, at + 60, at + 65, {.bytes = 500});
    a.span(Zone::kWaitStep, at + 65, at + 105);
    b.span(Zone::kStepDecode, at + 65, at + 85, {.number = 2}).span(Zone::kQkv, at + 65, at + 85, {.type = 4});
    b.span(Zone::kWaitStep, at + 85, at + 165);
  }
  return {scheduler, a, b};
}

TEST(Analysis, WhoIsBusyWhoWaitsAndForWhom) {
  const Study study = study_of(pipeline());
  ASSERT_EQ(study.workloads.size(), 1u);
  const WorkloadStudy& work = study.workloads[0];
  ASSERT_EQ(work.tracks.size(), 3u);
  EXPECT_EQ(work.kind, WorkKind::kDecode) << "turns of the scheduler are of the kind of the steps in them";
  EXPECT_EQ(work.tracks[work.lead].name, "generate, scheduler");
  EXPECT_NEAR(work.step_s.median, 100e-6, 1e-9);
  const TrackTime& a = work.tracks[1];
  EXPECT_EQ(a.name, "worker a");
  EXPECT_NEAR(a.busy_s / a.wall_s, 0.55, 0.02);
  EXPECT_NEAR(a.communication_s / a.wall_s, 0.05, 0.01);
  EXPECT_NEAR(a.wait_s / a.wall_s, 0.40, 0.02);
  const TrackTime& b = work.tracks[2];
  EXPECT_NEAR(b.wait_s / b.wall_s, 0.80, 0.02);
  EXPECT_NEAR(work.load_balance_factor, 0.55 / 0.375, 0.05);
  EXPECT_EQ(work.straggler, "worker a");
  const auto wait = std::ranges::find(work.waits, "worker b", &WaitFor::waiter);
  ASSERT_NE(wait, work.waits.end());
  EXPECT_EQ(wait->other, "worker a");
  EXPECT_NEAR(wait->share, 0.55, 0.03) << "a's sending is not its being busy";
  EXPECT_NEAR(work.on_the_way_share, 0.10, 0.01) << "from a to b, and back";
  EXPECT_NEAR(work.efficiency.tokens_per_step, 2.0, 0.1);
}

TEST(Analysis, AStageOnTheSchedulersThreadIsCountedOnce) {
  RecordingBuilder builder("generate");
  for (int i = 0; i < 30; ++i) {
    const double at = 100.0 * i;
    builder.span(Zone::kStepTurn, at, at + 100).span(Zone::kStepDecode, at + 10, at + 90, {.number = 1});
    builder.span(Zone::kQkv, at + 10, at + 70, {.flops = 6000, .type = 4}).span(Zone::kSample, at + 90, at + 95);
  }
  const WorkloadStudy work = study_of({builder}).workloads.at(0);
  ASSERT_EQ(work.tracks.size(), 2u);
  const TrackTime& scheduler = work.tracks[work.lead];
  EXPECT_TRUE(scheduler.scheduler);
  EXPECT_NEAR(phase(scheduler, "forward")->share, 0.8, 1e-9);
  EXPECT_EQ(phase(scheduler, "forward")->rest_s, 0.0);
  EXPECT_NEAR(phase(scheduler, "sample")->share, 0.05, 1e-9);
  EXPECT_NEAR(work.matmul_share, 0.6, 0.02) << "of the stage's time alone";
  EXPECT_NEAR(work.efficiency.flops_per_step, 6000.0, 1e-6);
  EXPECT_NEAR(work.efficiency.tokens_per_step, 1.0, 1e-9);
  EXPECT_EQ(work.load_balance_factor, 0.0);
}

TEST(Analysis, AStepOfAStageIsNoTurnOfTheSchedulerAndRatesAreOfTheTurn) {
  RecordingBuilder scheduler("generate"), worker("worker");
  scheduler.span(Zone::kStepTurn, 0, 1000);
  worker.span(Zone::kStepPrefill, 100, 200, {.number = 7}).span(Zone::kQkv, 100, 200, {.flops = 10'000'000, .type = 0});
  const Efficiency found = study_of({scheduler, worker}).workloads.at(0).efficiency;
  EXPECT_NEAR(found.flops_per_step, 1e7, 1.0);
  EXPECT_NEAR(found.tokens_per_step, 7.0, 1e-9);
  EXPECT_NEAR(found.mfu, 0.1, 1e-6) << "10 GFLOP/s over the turn, of 100";
}

TEST(Analysis, LinksHaveBytesMessagesAndRates) {
  const WorkloadStudy work = study_of(pipeline()).workloads.at(0);
  ASSERT_EQ(work.links.size(), 1u);
  EXPECT_EQ(work.links[0].process, "worker a");
  EXPECT_EQ(work.links[0].messages, static_cast<std::uint64_t>(work.tracks[1].steps));
  EXPECT_NEAR(work.links[0].gb_per_s, 0.1, 1e-6);
}

TEST(Analysis, CommunicationOfAnotherThreadIsHidden) {
  RecordingBuilder builder;
  builder.fact("ranks", "4");
  for (int i = 0; i < 10; ++i) {
    builder.span(Zone::kStepTrain, 100.0 * i, 100.0 * i + 100);
    builder.span(Zone::kAllReduce, 100.0 * i + 20, 100.0 * i + 60, {.bytes = 40'000}, 1);
    builder.span(Zone::kWaitMembers, 100.0 * i + 20, 100.0 * i + 25, {}, 1);
    builder.span(Zone::kWaitMembers, 100.0 * i + 70, 100.0 * i + 80, {}, 1);  // in no collective
  }
  const WorkloadStudy work = study_of({builder}, {.warmup = 0}).workloads.at(0);
  EXPECT_NEAR(work.tracks[0].hidden_s, 10 * 40e-6, 1e-9);
  EXPECT_EQ(work.tracks[0].communication_s, 0.0);
  EXPECT_NEAR(work.links.at(0).gb_per_s, 1.0, 1e-6);
  EXPECT_NEAR(work.links.at(0).bus_gb_per_s, 1.5, 1e-6);
  EXPECT_NEAR(work.links.at(0).wait_s, 10 * 5e-6, 1e-9);
}

TEST(Analysis, LayersHaveTheirTimeAndFlops) {
  RecordingBuilder builder("generate");
  for (int i = 0; i < 10; ++i) {
    const double at = 100.0 * i;
    builder.span(Zone::kStepDecode, at, at + 100);
    builder.span(Zone::kLayer, at, at + 30, {.number = 3}).span(Zone::kLayer, at + 30, at + 100, {.number = 4});
    for (const auto zone : {Zone::kQuery, Zone::kKey, Zone::kValue}) {
      builder.span(zone, at + 30, at + 35, {.flops = 7, .type = 4});
    }
  }
  const WorkloadStudy work = study_of({builder}, {.warmup = 0}).workloads.at(0);
  ASSERT_EQ(work.layers.size(), 2u);
  EXPECT_EQ(work.layers[0].layer, 3);
  EXPECT_NEAR(work.layers[1].seconds_per_step, 70e-6, 1e-12);
  EXPECT_NEAR(work.layers[1].share, 0.7, 1e-9);
  EXPECT_NEAR(work.layers[1].flops_per_step, 21.0, 1e-9);
  EXPECT_EQ(work.projections_per_layer, 3);
}

TEST(Analysis, CountersThatJumpAreCountedToTheStepWhereSpansSayWhen) {
  RecordingBuilder builder;
  for (int i = 0; i < 20; ++i) {
    const double at = 1000.0 * i;
    builder.span(Zone::kStepTrain, at, at + 1000);
    builder.span(Zone::kSend, at + 890, at + 900, {.number = 1, .bytes = i % 2 == 0 ? 100u : 300u}, 1);
  }
  for (int at = 0; at <= 20'300; at += 700) {  // on a straight line, both would be off by more than a tenth of a step
    trace::Sample sample;
    const auto steps = static_cast<std::uint64_t>(std::min(at / 1000, 20));
    const auto sends = static_cast<std::uint64_t>(std::min((at + 100) / 1000, 20));
    sample.counters[static_cast<std::size_t>(trace::Counter::kTrainTokens)] = 64 * steps;
    sample.counters[static_cast<std::size_t>(trace::Counter::kWireBytesSent)] = sends / 2 * 400 + sends % 2 * 100;
    sample.counters[static_cast<std::size_t>(trace::Counter::kWireMessagesSent)] = sends;
    builder.sample(at, sample);
  }
  const Study study = study_of({builder}, {.warmup = 4, .measure = 50});
  const WorkloadStudy& work = study.workloads[0];
  EXPECT_NEAR(work.efficiency.tokens_per_step, 64.0, 1e-6);
  ASSERT_EQ(work.wire.size(), 1u);
  EXPECT_NEAR(work.wire[0].sent_per_step, 200.0, 1e-6);
  EXPECT_NEAR(work.wire[0].messages_per_step, 1.0, 1e-6);
}

TEST(Analysis, WhatIsSentAfterTheLastStepOfAKindIsItsOwn) {
  RecordingBuilder builder("worker");
  builder.span(Zone::kStepPrefill, 0, 100).span(Zone::kSend, 110, 120, {.number = 1, .bytes = 5000});
  for (int i = 0; i < 5; ++i) {
    builder.span(Zone::kStepDecode, 200 + 100 * i, 250 + 100 * i);
    builder.span(Zone::kSend, 260 + 100 * i, 270 + 100 * i, {.number = 1, .bytes = 100});
  }
  for (const auto& [at, sent] : {std::pair{0, 0u}, {150, 5000u}, {800, 5500u}}) {
    trace::Sample sample;
    sample.counters[static_cast<std::size_t>(trace::Counter::kWireBytesSent)] = sent;
    builder.sample(at, sample);
  }
  const Study study = study_of({builder}, {.warmup = 0, .measure = 50});
  ASSERT_EQ(study.workloads.at(0).kind, WorkKind::kPrefill);
  ASSERT_EQ(study.workloads[0].wire.size(), 1u);
  EXPECT_NEAR(study.workloads[0].wire[0].sent_per_step, 5000.0, 1e-6);
  EXPECT_NEAR(study.workloads[1].wire.at(0).sent_per_step, 80.0, 1e-6) << "of the last one nobody knows the end";
}

TEST(Analysis, CountersAreOfTheStepsAndNotOfTheWarmUp) {
  RecordingBuilder builder;
  builder.fact("team.dispatch_us", "0.5");
  for (int i = 0; i <= 40; ++i) {
    trace::Sample sample;
    const auto after = static_cast<std::uint64_t>(std::max(0, i - 10));
    sample.counters[static_cast<std::size_t>(trace::Counter::kTeamRuns)] = 5000 + 20 * after;
    sample.minor_faults = 1 + 3 * after;
    builder.sample(100.0 * i, sample);
    if (i < 40) builder.span(Zone::kStepTrain, 100.0 * i, 100.0 * i + 100);
  }
  const WorkloadStudy work = study_of({builder}).workloads.at(0);
  EXPECT_NEAR(work.launches.per_step, 20.0, 1e-6);
  EXPECT_NEAR(work.launches.seconds_per_step, 10e-6, 1e-9);
  EXPECT_NEAR(work.launches.share, 0.1, 1e-6);
  EXPECT_NEAR(work.allocations.faults_per_step, 3.0, 1e-6);
}

TEST(Analysis, MemoryByOwnerAtThePeakAndItsGrowth) {
  RecordingBuilder builder;
  for (int i = 0; i <= 20; ++i) {
    trace::Sample sample;
    sample.resident_bytes = (100u + static_cast<unsigned>(i)) << 20;
    sample.held_bytes[static_cast<std::size_t>(trace::Owner::kWeights)] = 60u << 20;
    sample.heap_bytes = 75;
    sample.heap_free_bytes = 25;
    builder.sample(1e5 * i, sample);
    builder.span(Zone::kStepTrain, 1e5 * i, 1e5 * i + 1e5);
  }
  const MemoryUse use = study_of({builder}, {.warmup = 0}).memory.at(0);
  EXPECT_EQ(use.peak, 120.0 * (1 << 20));
  EXPECT_EQ(use.held.at("weights"), 60.0 * (1 << 20));
  EXPECT_EQ(use.other, 60.0 * (1 << 20));
  EXPECT_NEAR(use.growth_per_s, 10.0 * ((1 << 20) - sizeof(trace::Span)), 1.0);
  EXPECT_NEAR(use.growth_fit, 1.0, 1e-9);
  EXPECT_NEAR(use.heap_free_share, 0.25, 1e-9);
  EXPECT_EQ(use.timeline.size(), 21u);
}

TEST(Analysis, AQuietMachineIsTrustedAndADisturbedOneIsNot) {
  EXPECT_EQ(study_of({good_training()}).quality.trust, Trust::kQuiet);
  const auto disturbed = [](auto change) {
    RecordingBuilder builder;
    for (int i = 0; i <= 30; ++i) {
      trace::Sample sample;
      sample.cpu_ns = static_cast<std::uint64_t>(i) * 200'000'000;  // two CPUs
      sample.machine_busy_ns = sample.cpu_ns;
      change(sample, static_cast<std::uint64_t>(i));
      builder.sample(1e5 * i, sample);
      builder.span(Zone::kStepTrain, 1e5 * i, 1e5 * i + 1e5);
    }
    return study_of({builder}, {.warmup = 0}).quality;
  };
  const Quality stolen =
      disturbed([](trace::Sample& sample, std::uint64_t i) { sample.machine_stolen_ns = i * 100'000'000; });
  EXPECT_EQ(stolen.trust, Trust::kInconclusive);
  EXPECT_NEAR(stolen.stolen_share, 1.0 / 3, 1e-6);
  ASSERT_FALSE(stolen.reasons.empty());
  const Quality idle_neighbour =
      disturbed([](trace::Sample& sample, std::uint64_t i) { sample.machine_busy_ns += i * 200'000'000; });
  EXPECT_EQ(idle_neighbour.trust, Trust::kDisturbed) << "others had CPUs of their own";
  EXPECT_NEAR(idle_neighbour.foreign_cpus, 2.0, 0.1);
  const Quality foreign = disturbed([](trace::Sample& sample, std::uint64_t i) {
    sample.machine_busy_ns += i * 200'000'000;
    sample.run_queue_ns = i * 100'000'000;
  });
  EXPECT_EQ(foreign.trust, Trust::kInconclusive);
  const Quality slower =
      disturbed([](trace::Sample& sample, std::uint64_t i) { sample.loop_ns = i < 5 ? 5000.0 : 6000.0; });
  EXPECT_EQ(slower.trust, Trust::kDisturbed);
  EXPECT_NEAR(slower.slowdown, 0.2, 1e-9);
}

TEST(Analysis, RepeatsGiveIntervalsBetweenThem) {
  const auto study = analyse(
      {run_of({good_training(60, 1000)}), run_of({good_training(60, 1100)}), run_of({good_training(60, 1050)})}, {});
  ASSERT_TRUE(study);
  EXPECT_EQ(study->repeats, 3);
  const WorkloadStudy& work = study->workloads.at(0);
  EXPECT_EQ(work.step_s.count, 150);
  EXPECT_NEAR(work.step_s.mean, 1050e-6, 1e-9);
  EXPECT_NEAR(work.step_s.half_width, 4.303 * 50e-6 / std::sqrt(3.0), 1e-9);
  EXPECT_NEAR(work.tracks[0].step_s.mean, 1050e-6, 1e-9) << "all else is of the repeat in the middle";
}

}  // namespace
}  // namespace butterfly::study
