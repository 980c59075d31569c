#include "butterfly/infer/deployment/straggler.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

/// Three stages that were predicted to need 1, 2 and 1 ms for a step.
Plan plan() {
  Plan plan;
  plan.shares = {{.node = 0, .prediction = {.decode_s = 0.001}},
                 {.node = 1, .prediction = {.decode_s = 0.002}},
                 {.node = 2, .prediction = {.decode_s = 0.001}}};
  return plan;
}

/// Feeds windows of a second in which each stage makes `steps` steps of the given milliseconds.
class Watched {
 public:
  Watched() { stragglers_.watch(plan(), now_); }
  std::optional<std::vector<double>> second(const std::vector<double>& step_ms, std::uint64_t steps = 100) {
    now_ += std::chrono::seconds(1);
    work(step_ms, steps);
    return stragglers_.look(work_, now_);
  }
  void work(const std::vector<double>& step_ms, std::uint64_t steps) {
    for (std::size_t i = 0; i < work_.size(); ++i) {
      work_[i].steps += steps;
      work_[i].busy_ns += static_cast<std::uint64_t>(step_ms[i] * 1e6 * static_cast<double>(steps));
    }
  }
  std::optional<std::vector<double>> glance() const { return stragglers_.glance(work_); }

 private:
  StragglerDetector stragglers_;
  StragglerDetector::Clock::time_point now_{std::chrono::hours(1)};
  std::vector<StageWork> work_{3};
};

TEST(StragglerDetector, StagesThatAreAllSlowerAreNone) {
  Watched watched;
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(watched.second({5, 10, 5}));
}

TEST(StragglerDetector, AStageThatStaysSlowIsOneAfterSomeWindows) {
  Watched watched;
  EXPECT_FALSE(watched.second({1, 2, 1}));
  EXPECT_FALSE(watched.second({1, 2, 4}));
  EXPECT_FALSE(watched.second({1, 2, 4}));
  const auto slowness = watched.second({1, 2, 4});
  ASSERT_TRUE(slowness);
  EXPECT_NEAR((*slowness)[0], 1, 1e-6);
  EXPECT_NEAR((*slowness)[1], 1, 1e-6);
  EXPECT_NEAR((*slowness)[2], 4, 1e-6);
  EXPECT_FALSE(watched.second({1, 2, 4})) << "it begins anew";
}

// Fails when the steps of a node with two stages are compared with what one of them needs.
TEST(StragglerDetector, ANodeWithSeveralStagesIsAsSlowAsTheirMean) {
  Plan scattered = plan();
  scattered.shares[2] = {.node = 0, .prediction = {.decode_s = 0.003}};
  StragglerDetector straggler({.windows = 1});
  StragglerDetector::Clock::time_point now{std::chrono::hours(1)};
  straggler.watch(scattered, now);
  std::vector<StageWork> work(3);
  // As predicted: 100 steps of stage 0 and 100 of stage 2, which node 0 counts together.
  const auto second = [&](double slower) {
    now += std::chrono::seconds(1);
    for (const std::size_t i : {0, 2}) {
      work[i].steps += 200;
      work[i].busy_ns += static_cast<std::uint64_t>(400e6 * slower);
    }
    work[1].steps += 100;
    work[1].busy_ns += 200'000'000;
    return straggler.look(work, now);
  };
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(second(1));
  EXPECT_FALSE(second(1.2));
  const auto slowness = second(0.5);
  ASSERT_TRUE(slowness) << "node 1 is twice as slow as the others";
  EXPECT_NEAR((*slowness)[1], 2 * (*slowness)[0], 1e-6);
  EXPECT_EQ((*slowness)[0], (*slowness)[2]);
}

TEST(StragglerDetector, AStageThatIsSlowNowAndThenIsNone) {
  Watched watched;
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(watched.second({1, 2, i % 3 == 0 ? 1.0 : 4.0}));
}

TEST(StragglerDetector, AGlanceTellsOfTheWindowThatIsUnderWay) {
  Watched watched;
  EXPECT_FALSE(watched.glance());
  EXPECT_FALSE(watched.second({1, 2, 1}));
  EXPECT_FALSE(watched.glance()) << "no steps since";
  watched.work({1, 2, 4}, 7);
  EXPECT_FALSE(watched.glance()) << "7 steps are too few";
  watched.work({1, 2, 4}, 1);
  const auto slowness = watched.glance();
  ASSERT_TRUE(slowness);
  EXPECT_NEAR((*slowness)[2], 4, 1e-6);
}

TEST(StragglerDetector, FewStepsMakeWindowsLonger) {
  Watched watched;
  int seconds = 1;
  while (!watched.second({1, 2, 9}, 2)) ASSERT_LT(++seconds, 100);
  EXPECT_EQ(seconds, 1 + 3 * 4) << "windows of 8 steps";
}

}  // namespace
}  // namespace butterfly
