#include "butterfly/study/advice/advice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "butterfly/study/analysis/analysis.h"
#include "butterfly/study/read/recording_builder_test.h"

namespace butterfly::study {
namespace {

using trace::Zone;

Advice advice_for(const std::vector<RecordingBuilder>& builders) {
  const auto study = analyse({run_of(builders)}, {});
  EXPECT_TRUE(study) << study.error().message;
  return study ? advise(*study) : Advice{};
}

std::string first(const Advice& advice) {
  return advice.causes.empty() ? "nothing" : advice.causes.front().id;
}

/// Sixty steps of `step_us` with whatever `inside(builder, begin of the step, number)` puts into each.
template <typename Inside>
RecordingBuilder training(double step_us, const Inside& inside) {
  RecordingBuilder builder;
  for (int i = 0; i < 60; ++i) {
    const double at = i * step_us;
    builder.span(Zone::kStepTrain, at, at + step_us);
    inside(builder, at, i);
  }
  return builder;
}

/// 80 % of the peak for so long.
trace::Work good_work(double us) {
  return {.number = 4096,
          .flops = static_cast<std::uint64_t>(us * 80'000),
          .bytes = static_cast<std::uint64_t>(us * 800),
          .type = 0};
}

TEST(Advice, NothingIsRecommendedWhereNothingIsWrong) {
  const Advice advice = advice_for({good_training()});
  EXPECT_EQ(first(advice), "nothing") << advice.causes.front().what;
  ASSERT_EQ(advice.headings.size(), 6u);
  for (const HeadingVerdict& one : advice.headings) EXPECT_TRUE(one.verdict.starts_with("no problem")) << one.verdict;
  EXPECT_FALSE(advice.inconclusive);
  EXPECT_NEAR(advice.uncertainty, 0.08, 1e-9);
}

TEST(Advice, IdleCpus) {
  RecordingBuilder builder = good_training();
  builder.fact("threads", "1");
  const Advice advice = advice_for({builder});
  ASSERT_EQ(first(advice), "idle_cpus");
  const Cause& cause = advice.causes[0];
  EXPECT_NE(cause.remedy.find("--threads 4"), std::string::npos) << cause.remedy;
  EXPECT_NEAR(cause.speedup, 3.4, 0.01) << "one thread and 80 % of three more";
  EXPECT_LT(cause.speedup_low, cause.speedup);
  EXPECT_GT(cause.speedup_high, cause.speedup);
  EXPECT_EQ(cause.priority, Priority::kCritical);
}

/// Threads that used this number of CPUs and waited for that of others.
RecordingBuilder crowded(double used, double waited, const char* usable) {
  RecordingBuilder builder = training(1e4, [&](RecordingBuilder& into, double at, int i) {
    trace::Sample sample;
    sample.cpu_ns = 1 + static_cast<std::uint64_t>(i * used * 1e7);
    sample.machine_busy_ns = sample.cpu_ns;
    sample.run_queue_ns = 1 + static_cast<std::uint64_t>(i * waited * 1e7);
    into.sample(at, sample).span(Zone::kQkv, at, at + 1e4, good_work(1e4));
  });
  return builder.fact("cpus.usable", usable);
}

TEST(Advice, ThreadsThatShareCpus) {
  const Advice kept = advice_for({crowded(1, 1, "1")});
  ASSERT_EQ(first(kept), "threads_share_cpus");
  EXPECT_NEAR(kept.causes[0].gain, 0.5, 0.02) << "two CPUs wanted, one to have, three more in the machine";
  EXPECT_NE(kept.causes[0].remedy.find("all 4 CPUs"), std::string::npos) << kept.causes[0].remedy;
  const Advice many = advice_for({crowded(4, 4, "4")});
  ASSERT_EQ(first(many), "threads_share_cpus");
  EXPECT_NEAR(many.causes[0].gain, 0.25, 0.01);
  EXPECT_NE(many.causes[0].remedy.find("--threads 4"), std::string::npos) << many.causes[0].remedy;
  EXPECT_EQ(first(advice_for({crowded(1, 0.5, "4")})), "nothing") << "waits for a turn while CPUs are free";
}

TEST(Advice, ForeignLoad) {
  RecordingBuilder builder = training(1e5, [](RecordingBuilder& into, double at, int i) {
    const auto n = static_cast<std::uint64_t>(i);
    into.sample(
        at, {.cpu_ns = 1 + n * 200'000'000, .run_queue_ns = n * 60'000'000, .machine_busy_ns = 1 + n * 400'000'000});
    into.span(Zone::kQkv, at, at + 1e5, good_work(1e5));
  });
  const Advice advice = advice_for({builder});
  EXPECT_EQ(first(advice), "foreign_load");
  EXPECT_TRUE(advice.inconclusive) << "and no gain is promised on such a machine";
}

TEST(Advice, AThrottledStageIsAStraggler) {
  std::vector<RecordingBuilder> stages;
  for (int stage = 0; stage < 3; ++stage) {
    RecordingBuilder builder("worker");
    builder.fact("node", std::string(1, static_cast<char>('a' + stage)));
    const double busy = stage == 1 ? 80 : 30;
    for (int i = 0; i < 60; ++i) {
      const double at = 100.0 * i;
      builder.span(Zone::kStepDecode, at, at + busy).span(Zone::kQkv, at, at + busy, good_work(busy));
      builder.span(Zone::kWaitStep, at + busy, at + 100);
    }
    stages.push_back(builder);
  }
  const Advice advice = advice_for(stages);
  ASSERT_EQ(first(advice), "straggler");
  EXPECT_NE(advice.causes[0].what.find("worker b"), std::string::npos) << advice.causes[0].what;
  EXPECT_NE(advice.causes[0].remedy.find("--split balanced"), std::string::npos);
}

/// Three stages of one text, one after the other, of so much work each and at such speeds.
Advice stages_in_turn(const std::array<double, 3>& work, const std::array<double, 3>& speed) {
  std::vector<RecordingBuilder> stages;
  double begin = 0.0;
  for (std::size_t stage = 0; stage < 3; ++stage) {
    RecordingBuilder builder("worker");
    builder.fact("node", std::string(1, static_cast<char>('a' + stage)));
    const double busy = work[stage] / speed[stage];
    for (int i = 0; i < 60; ++i) {
      const double at = begin + 100.0 * i;
      builder.span(Zone::kStepDecode, at, at + busy).span(Zone::kQkv, at, at + busy, good_work(work[stage]));
      builder.span(Zone::kWaitStep, at + busy, at + 100);
    }
    begin += busy;
    stages.push_back(builder);
  }
  return advice_for(stages);
}

TEST(Advice, StagesThatTakeTurnsGainByOthersThatAreFasterAlone) {
  const Advice same = stages_in_turn({50, 25, 20}, {1, 1, 1});
  EXPECT_EQ(first(same), "nothing") << same.causes.front().what;
  const Advice slow = stages_in_turn({20, 20, 20}, {1.0 / 3, 1, 1});
  ASSERT_EQ(first(slow), "straggler");
  EXPECT_NEAR(slow.causes[0].gain, 1.0 - 9.0 / (5.0 * 7.0 / 3.0), 0.01) << "3 * 3 thirds of the work at 2.33 speeds";
}

TEST(Advice, AThinLinkAndARunThatCommunicationBounds) {
  const auto with_sending = [](double us) {
    return training(100, [us](RecordingBuilder& into, double at, int) {
      into.span(Zone::kQkv, at, at + 100 - us, good_work(100 - us));
      into.span(Zone::kAllReduce, at + 100 - us, at + 100, {.bytes = 1000});
    });
  };
  EXPECT_EQ(first(advice_for({with_sending(10)})), "nothing");
  EXPECT_EQ(first(advice_for({with_sending(30)})), "thin_link");
  EXPECT_EQ(first(advice_for({with_sending(70)})), "communication_bound");
}

TEST(Advice, ASmallBatch) {
  RecordingBuilder builder = training(100, [](RecordingBuilder& into, double at, int i) {
    trace::Sample sample;
    sample.counters[static_cast<std::size_t>(trace::Counter::kTrainTokens)] = 64 * static_cast<std::uint64_t>(i);
    trace::Work work = good_work(10);  // in ten times the time
    into.sample(at, sample).span(Zone::kQkv, at, at + 100, work);
  });
  const Advice advice = advice_for({builder});
  ASSERT_EQ(first(advice), "small_batch");
  EXPECT_NE(advice.causes[0].remedy.find("--micro-batch"), std::string::npos);
  builder.fact("train.micro_batch", "2").fact("train.seq", "32").fact("train.global_batch", "8");
  const Advice two = advice_for({builder});
  ASSERT_EQ(first(two), "small_batch");
  EXPECT_NE(two.causes[0].remedy.find("--micro-batch 8"), std::string::npos) << two.causes[0].remedy;
  EXPECT_NEAR(two.causes[0].gain, (1 - 0.08 / 0.85) * 0.75, 0.01)
      << "of what is lost to 85 % of the peak, three of four parts";
  builder.fact("train.seq", "512");
  EXPECT_EQ(first(advice_for({builder})), "low_utilisation") << "1024 rows are many";
}

TEST(Advice, AllocationInTheLoop) {
  RecordingBuilder builder = training(1000, [](RecordingBuilder& into, double at, int i) {
    into.sample(at, {.minor_faults = 1 + 600 * static_cast<std::uint64_t>(i)});
    into.span(Zone::kQkv, at, at + 1000, good_work(1000));
  });
  const Advice advice = advice_for({builder});
  ASSERT_EQ(first(advice), "allocation_in_loop");
  EXPECT_NEAR(advice.causes[0].gain, 0.3, 0.02) << "half a microsecond for each of 600 pages, at least";
  RecordingBuilder dear = training(1000, [](RecordingBuilder& into, double at, int i) {
    const auto n = static_cast<std::uint64_t>(i);
    into.sample(at, {.system_ns = 1 + n * 500'000, .minor_faults = 1 + 600 * n});
    into.span(Zone::kQkv, at, at + 1000, good_work(1000));
  });
  EXPECT_NEAR(advice_for({dear}).causes.at(0).gain, 0.5, 0.02) << "the kernel's time, where it is more";
}

TEST(Advice, UnfusedProjections) {
  const auto block = [](RecordingBuilder& into, double at, const std::vector<Zone>& zones) {
    into.span(Zone::kLayer, at, at + 100);
    const double each = 100.0 / static_cast<double>(zones.size());
    for (std::size_t i = 0; i < zones.size(); ++i) {
      into.span(zones[i], at + each * static_cast<double>(i), at + each * static_cast<double>(i + 1), good_work(each));
    }
  };
  const Advice qkv = advice_for({training(100, [&](RecordingBuilder& into, double at, int) {
    block(into, at, {Zone::kQuery, Zone::kKey, Zone::kValue, Zone::kGateUp});
  })});
  ASSERT_EQ(first(qkv), "separate_qkv");
  EXPECT_NE(qkv.causes[0].what.find("3 matmuls per layer"), std::string::npos) << qkv.causes[0].what;
  EXPECT_NE(qkv.causes[0].remedy.find("--fusion all"), std::string::npos);
  EXPECT_EQ(qkv.headings[0].verdict, qkv.causes[0].what);
  EXPECT_EQ(first(advice_for({training(100,
                                       [&](RecordingBuilder& into, double at, int) {
                                         block(into, at, {Zone::kQkv, Zone::kGate, Zone::kUp});
                                       })})),
            "separate_gate_up");
}

TEST(Advice, UnfusedMatmulsGainWhatTheLargestOneReaches) {
  const auto block = [](RecordingBuilder& into, double at, int) {
    into.span(Zone::kLayer, at, at + 100);
    into.span(Zone::kQuery, at, at + 10, good_work(5)).span(Zone::kKey, at + 10, at + 20, good_work(5));
    into.span(Zone::kValue, at + 20, at + 30, good_work(5)).span(Zone::kRotary, at + 30, at + 34, {.bytes = 10});
    into.span(Zone::kDown, at + 34, at + 100, good_work(66));
  };
  const Advice advice = advice_for({training(100, block)});
  ASSERT_EQ(first(advice), "separate_qkv");
  EXPECT_NEAR(advice.causes[0].gain, 0.15 + 0.04, 0.01) << "half of the three, and rotary goes with them";
}

TEST(Advice, AttentionSoftmaxAndUpdateThatAreNotFused) {
  const auto block = [](RecordingBuilder& into, double at, int) {
    trace::Work scores = good_work(10);
    scores.type = trace::kNoType;
    into.span(Zone::kAttention, at, at + 40, scores).span(Zone::kSoftmaxLoss, at + 40, at + 44, {.bytes = 10});
    into.span(Zone::kDown, at + 44, at + 100, good_work(56));
  };
  RecordingBuilder builder = training(100, block);
  builder.fact("train.fusion", "qkv,swiglu,adamw");
  const Advice advice = advice_for({builder});
  ASSERT_EQ(first(advice), "attention_memory");
  EXPECT_NEAR(advice.causes[0].gain, 0.40 - 2 * 0.63 * 0.10, 0.02) << "63 % of the work at half of a matmul's rate";
  EXPECT_TRUE(std::ranges::any_of(advice.causes, [](const Cause& one) { return one.id == "softmax"; }));
  builder.fact("train.fusion", "qkv,swiglu,attention,cross_entropy,adamw");
  EXPECT_EQ(first(advice_for({builder})), "nothing");
}

TEST(Advice, LaunchesThatCostMoreThanTheyShould) {
  RecordingBuilder builder = training(100, [](RecordingBuilder& into, double at, int i) {
    trace::Sample sample;
    sample.counters[static_cast<std::size_t>(trace::Counter::kTeamRuns)] = 1 + 10 * static_cast<std::uint64_t>(i);
    into.sample(at, sample).span(Zone::kQkv, at, at + 100, good_work(100));
  });
  builder.fact("team.dispatch_us", "4");
  EXPECT_EQ(first(advice_for({builder})), "launch_overhead");
  builder.fact("team.dispatch_us", "0.4");
  EXPECT_EQ(first(advice_for({builder})), "nothing");
}

TEST(Advice, ACacheThatFillsIsNoLeak) {
  RecordingBuilder builder = training(1e5, [](RecordingBuilder& into, double at, int i) {
    trace::Sample sample{.resident_bytes = (100 + static_cast<std::uint64_t>(i)) << 20};
    sample.held_bytes[static_cast<std::size_t>(trace::Owner::kKvCache)] = static_cast<std::uint64_t>(i) << 20;
    into.sample(at, sample);
    into.span(Zone::kQkv, at, at + 1e5, good_work(1e5));
  });
  EXPECT_EQ(first(advice_for({builder})), "nothing");
}

TEST(Advice, ALeakComesBeforeEverythingElse) {
  RecordingBuilder builder = training(1e5, [](RecordingBuilder& into, double at, int i) {
    into.sample(at, {.resident_bytes = (100 + static_cast<std::uint64_t>(i)) << 20});
    into.span(Zone::kQkv, at, at + 4e4, good_work(4e4)).span(Zone::kAllReduce, at + 4e4, at + 1e5);
  });
  const Advice advice = advice_for({builder});
  ASSERT_EQ(first(advice), "memory_leak");
  EXPECT_EQ(advice.causes[0].priority, Priority::kCritical);
  EXPECT_EQ(advice.causes.at(1).id, "communication_bound");
}

TEST(Advice, FragmentationAndVariance) {
  RecordingBuilder heap = good_training();
  heap.sample(1e6, {.heap_bytes = 300u << 20, .heap_free_bytes = 400u << 20});
  EXPECT_EQ(first(advice_for({heap})), "fragmentation");
  RecordingBuilder uneven;
  double at = 0.0;
  for (int i = 0; i < 60; ++i) {
    const double step = i % 10 == 9 ? 500 : 100;
    uneven.span(Zone::kStepTrain, at, at + step).span(Zone::kQkv, at, at + step, good_work(step));
    at += step;
  }
  EXPECT_EQ(first(advice_for({uneven})), "step_variance");
}

}  // namespace
}  // namespace butterfly::study
