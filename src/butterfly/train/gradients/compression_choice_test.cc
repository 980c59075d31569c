#include "butterfly/train/gradients/compression_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace butterfly {
namespace {

using Purpose = CompressionChoice::Purpose;
using Method = GradientCompression;
using ::testing::Each;

constexpr int kMembers = 2;
constexpr double kMbit = 1e6 / 8;

/// A cluster that trains: 4 buckets of 4 MB and a backward pass of 50 ms, behind whose last third buckets can hide.
struct Cluster {
  static constexpr std::size_t kBuckets = 4;
  static constexpr double kBytes = 4e6, kBackward = 0.05;

  double link_bytes_per_s = 1e9;
  double codec_bytes_per_s = 2e9;  // each way, of bf16 and int8; LZ4 and zstd are slower
  double codec_delay = 1.0;        // of the step, for each second of a codec
  double noise = 0.0;              // standard deviation of a step, relative
  double hiccups = 0.0;            // the share of steps that take three times as long
  std::mt19937 random{5};

  double off_by() {
    const double factor = std::max(0.3, std::normal_distribution(1.0, noise)(random));
    return std::uniform_real_distribution(0.0, 1.0)(random) < hiccups ? 3.0 * factor : factor;
  }

  BucketCosts true_costs() const {
    BucketCosts made{.all_reduce_s = kBytes / link_bytes_per_s, .bytes = kBytes};
    for (std::size_t i = 0; i < kAutoMethods.size(); ++i) {
      const bool lossless = kAutoMethods[i] == Method::kLz4 || kAutoMethods[i] == Method::kZstd;
      const double s_per_byte = (lossless ? 8.0 : 1.0) / codec_bytes_per_s;
      made.codecs[i] = {.encode_s_per_byte = s_per_byte, .decode_s_per_byte = s_per_byte, .size = 0.9};
      if (kAutoMethods[i] == Method::kBf16) made.codecs[i].size = 0.5;
      if (kAutoMethods[i] == Method::kInt8) made.codecs[i].size = 0.27;
    }
    return made;
  }
  BucketCosts measured_costs() {
    BucketCosts made = true_costs();
    made.all_reduce_s *= off_by();
    for (auto& codec : made.codecs) {
      codec.encode_s_per_byte *= off_by();
      codec.decode_s_per_byte *= off_by();
    }
    return made;
  }

  StepTimes true_times(const std::vector<Method>& methods) const {
    double transfer_s = 0.0, codec_s = 0.0;
    const BucketCosts costs = true_costs();
    for (const Method method : methods) {
      const auto codec = static_cast<std::size_t>(std::ranges::find(kAutoMethods, method) - kAutoMethods.begin());
      const bool packed = codec < kAutoMethods.size();
      transfer_s += costs.all_reduce_s * (packed ? costs.codecs[codec].size : 1.0);
      codec_s += packed ? codec_seconds(costs.codecs[codec], costs.bytes, kMembers) : 0.0;
    }
    const double exposed_s = std::max(0.0, transfer_s - kBackward / 3);
    return {.step_s = kBackward + exposed_s + codec_delay * codec_s, .exposed_s = exposed_s};
  }
  StepTimes measured_times(const std::vector<Method>& methods) {
    StepTimes times = true_times(methods);
    const double factor = off_by();
    return {.step_s = times.step_s * factor, .exposed_s = times.exposed_s * factor};
  }
};

struct Tally {
  int steps = 0, probes = 0;
  double seconds = 0.0;      // without noise
  std::vector<Method> last;  // of the last ordinary step
  int changes = 0;           // of what ordinary steps do
};

class Steps {
 public:
  explicit Steps(Cluster cluster) : cluster_(std::move(cluster)) {}

  Cluster& cluster() { return cluster_; }

  Tally take(int steps) {
    Tally tally{.steps = steps, .last = last_};
    for (int step = 0; step < steps; ++step) {
      const Purpose purpose = choice_.next_step();
      std::vector<Method> methods(Cluster::kBuckets, Method::kOff);
      for (std::size_t bucket = 0; bucket < methods.size(); ++bucket) {
        if (purpose == Purpose::kProbe) choice_.observe(bucket, cluster_.measured_costs());
        if (purpose != Purpose::kProbe) methods[bucket] = choice_.method(bucket);
      }
      if (purpose == Purpose::kTrain || purpose == Purpose::kBaseline) {
        tally.changes += methods != last_ ? 1 : 0;
        last_ = methods;
      }
      tally.probes += purpose == Purpose::kProbe ? 1 : 0;
      tally.seconds += cluster_.true_times(methods).step_s;
      choice_.end_step(choice_.is_timed() ? cluster_.measured_times(methods) : StepTimes{});
    }
    tally.last = last_;
    return tally;
  }

 private:
  Cluster cluster_;
  CompressionChoice choice_{Cluster::kBuckets, kMembers};
  std::vector<Method> last_ = std::vector<Method>(Cluster::kBuckets, Method::kOff);
};

/// Seconds of steps that all do the same.
double seconds_of(const Cluster& cluster, Method method, int steps) {
  return steps * cluster.true_times(std::vector<Method>(Cluster::kBuckets, method)).step_s;
}

TEST(CompressionChoice, AFastLinkNeverPacks) {
  Steps run({.link_bytes_per_s = 10e9});
  const Tally tally = run.take(5000);
  EXPECT_THAT(tally.last, Each(Method::kOff));
  EXPECT_EQ(tally.changes, 0);
  EXPECT_NEAR(tally.seconds, seconds_of(run.cluster(), Method::kOff, 5000), 1e-6) << "not even in a trial";
}

TEST(CompressionChoice, ALinkOf100MbitPacksByTheBestMethodWithinAFewSteps) {
  Steps run({.link_bytes_per_s = 100 * kMbit});
  EXPECT_THAT(run.take(8).last, Each(Method::kInt8));
  EXPECT_THAT(run.take(3000).last, Each(Method::kInt8));
}

TEST(CompressionChoice, WhereOnlySomeWaitingCanBeWonTheCheaperMethodIsTaken) {
  // 16 MB take 16 ms and 9 ms of them show. bf16 saves 8 ms for 2 ms of codec, int8 11.7 ms for 4 ms.
  std::vector<BucketCosts> costs(4, Cluster{.link_bytes_per_s = 1e9}.true_costs());
  for (BucketCosts& bucket : costs) {
    bucket.codecs[0] = {.encode_s_per_byte = 0.6e-10, .decode_s_per_byte = 0.6e-10, .size = 0.5};
    bucket.codecs[1] = {.encode_s_per_byte = 1.25e-10, .decode_s_per_byte = 1.25e-10, .size = 0.27};
  }
  EXPECT_THAT(forecast_methods(costs, 9e-3, kMembers), Each(Method::kBf16));
  EXPECT_THAT(forecast_methods(costs, 1.0, kMembers), Each(Method::kInt8)) << "where all of it can be won";
  EXPECT_NEAR(forecast_gain(costs, std::vector(4, Method::kBf16), 9e-3, kMembers), 8e-3 - 1.92e-3, 1e-9);
}

TEST(CompressionChoice, NothingIsForecastWhereRanksWaitForLessThanTheCodecsTake) {
  const std::vector<BucketCosts> costs(4, Cluster{.link_bytes_per_s = 100 * kMbit}.true_costs());
  EXPECT_THAT(forecast_methods(costs, 1e-3, kMembers), Each(Method::kOff));
  EXPECT_THAT(forecast_methods(costs, 1.0, kMembers), Each(Method::kInt8));
}

TEST(CompressionChoice, EachBucketIsJudgedByItsOwnCosts) {
  std::vector<BucketCosts> costs(2, Cluster{.link_bytes_per_s = 100 * kMbit}.true_costs());
  for (auto& codec : costs[1].codecs) codec.size = 0.6;
  costs[1].codecs[2].size = 0.01;  // LZ4 finds zeros
  EXPECT_THAT(forecast_methods(costs, 10.0, kMembers), ::testing::ElementsAre(Method::kInt8, Method::kLz4));
}

TEST(CompressionChoice, AForecastThatStepsDoNotConfirmIsNotFollowed) {
  // Packing is forecast to win, but each second of a codec costs the backward pass four.
  Steps run({.link_bytes_per_s = 600e6, .codec_bytes_per_s = 8e9, .codec_delay = 4.0});
  const Cluster& cluster = run.cluster();
  const auto costs = std::vector(Cluster::kBuckets, cluster.true_costs());
  const double waited_s = cluster.true_times(std::vector(Cluster::kBuckets, Method::kOff)).exposed_s;
  const auto tempting = forecast_methods(costs, waited_s, kMembers);
  ASSERT_THAT(tempting, Each(::testing::Ne(Method::kOff)));
  ASSERT_GT(cluster.true_times(tempting).step_s, seconds_of(cluster, Method::kOff, 1));
  const Tally tally = run.take(3000);
  EXPECT_THAT(tally.last, Each(Method::kOff));
  EXPECT_EQ(tally.changes, 0);
}

TEST(CompressionChoice, FindingOutCostsLittleInTheLongRun) {
  constexpr int kSteps = 20'000;
  struct Case {
    Cluster cluster;
    Method best;
  };
  for (const Case& tried :
       {Case{{.link_bytes_per_s = 600e6, .codec_bytes_per_s = 8e9, .codec_delay = 4.0},
             Method::kOff},                                      // every forecast fails its trial
        Case{{.link_bytes_per_s = 100 * kMbit}, Method::kInt8},  // a step as it is takes three times as long
        Case{{.link_bytes_per_s = 1000 * kMbit}, Method::kInt8}}) {
    Steps run(tried.cluster);
    const Tally tally = run.take(kSteps);
    EXPECT_LT(tally.probes, 40);
    EXPECT_LT(tally.seconds, 1.01 * seconds_of(tried.cluster, tried.best, kSteps)) << tried.cluster.link_bytes_per_s;
  }
}

TEST(CompressionChoice, NoiseDoesNotFlipWhatWasChosen) {
  for (const unsigned seed : {1U, 2U, 3U, 4U, 5U}) {
    Steps slow({.link_bytes_per_s = 100 * kMbit, .noise = 0.2, .hiccups = 0.05, .random = std::mt19937(seed)});
    slow.take(300);
    const Tally packed = slow.take(10'000);
    EXPECT_EQ(packed.changes, 0) << "seed " << seed;
    EXPECT_THAT(packed.last, Each(Method::kInt8)) << "seed " << seed;
    Steps fast({.link_bytes_per_s = 10e9, .noise = 0.2, .hiccups = 0.05, .random = std::mt19937(seed)});
    const Tally plain = fast.take(10'000);
    EXPECT_EQ(plain.changes, 0) << "seed " << seed;
  }
}

TEST(CompressionChoice, IsNotSlowerThanOffWhateverTheLink) {
  for (const double mbit : {50.0, 100.0, 300.0, 1000.0, 2500.0, 5000.0, 10'000.0, 40'000.0}) {
    for (const double delay : {0.5, 1.0, 2.0}) {
      Steps run({.link_bytes_per_s = mbit * kMbit, .codec_delay = delay, .noise = 0.1, .hiccups = 0.02});
      const double off_s = seconds_of(run.cluster(), Method::kOff, 10'000);
      EXPECT_LT(run.take(10'000).seconds, 1.01 * off_s) << mbit << " Mbit/s, delay " << delay;
    }
  }
}

TEST(CompressionChoice, NoticesALinkThatBecomesSlowAndOneThatBecomesFast) {
  Steps run({.link_bytes_per_s = 10e9});
  EXPECT_THAT(run.take(1500).last, Each(Method::kOff));
  run.cluster().link_bytes_per_s = 100 * kMbit;
  EXPECT_THAT(run.take(2 * static_cast<int>(CompressionChoice::kPauseMax)).last, Each(Method::kInt8));
  run.cluster().link_bytes_per_s = 10e9;
  EXPECT_THAT(run.take(2 * static_cast<int>(CompressionChoice::kPauseMax)).last, Each(Method::kOff));
}

TEST(CompressionChoice, WhatIsPackedIsNowAndThenTriedBesideOff) {
  Steps run({.link_bytes_per_s = 600e6, .codec_bytes_per_s = 8e9});
  EXPECT_THAT(run.take(1500).last, Each(::testing::Ne(Method::kOff)));
  run.cluster().codec_delay = 4.0;  // which no forecast knows
  EXPECT_THAT(run.take(2 * static_cast<int>(CompressionChoice::kPauseMax)).last, Each(Method::kOff));
}

TEST(CompressionChoice, IsMeasuredAgainMoreRarelyWhileNothingChanges) {
  Steps run({.link_bytes_per_s = 10e9});
  EXPECT_EQ(run.take(100).probes, 3);
  EXPECT_LT(run.take(10 * CompressionChoice::kPauseMax).probes, 16);
}

}  // namespace
}  // namespace butterfly
