#include "butterfly/train/sharding/speed_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/train/gradients/rank_shards.h"

namespace butterfly {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SpeedWatch, SaysSpeedsAtTheEndOfWindowsThatGrow) {
  SpeedWatch watch;
  const std::vector<double> even{0.5, 0.5};
  EXPECT_THAT(watch.observe(std::vector<double>{9.0, 9.0}, even), IsEmpty()) << "a first step says nothing";
  EXPECT_THAT(watch.observe(std::vector<double>{0.2, 1.0}, even), IsEmpty());
  EXPECT_THAT(watch.observe(std::vector<double>{0.3, 1.0}, even), ElementsAre(DoubleNear(2.0, 1e-12), 0.5));
  EXPECT_EQ(watch.least_gain(), 0.1) << "two steps have shown it";
  for (int step = 0; step < 3; ++step) EXPECT_THAT(watch.observe(std::vector<double>{0.25, 1.0}, even), IsEmpty());
  EXPECT_THAT(watch.observe(std::vector<double>{0.25, 1.0}, even), ElementsAre(2.0, 0.5));
  EXPECT_EQ(watch.least_gain(), 0.05);
}

TEST(SpeedWatch, CountsNothingOfTheDivisionBefore) {
  SpeedWatch watch;
  const std::vector<double> even{0.5, 0.5}, uneven{0.75, 0.25};
  (void)watch.observe(std::vector<double>{9.0, 9.0}, even);
  (void)watch.observe(std::vector<double>{1.0, 1.0}, even);
  watch.divided_anew();
  EXPECT_THAT(watch.observe(std::vector<double>{7.0, 7.0}, uneven), IsEmpty());
  EXPECT_THAT(watch.observe(std::vector<double>{1.5, 1.0}, uneven), IsEmpty());
  EXPECT_THAT(watch.observe(std::vector<double>{1.5, 1.0}, uneven), ElementsAre(0.5, 0.25));
}

TEST(SpeedWatch, ARankThatDidNothingHasNoSpeed) {
  SpeedWatch watch;
  const std::vector<double> even{0.5, 0.5};
  for (int step = 0; step < 8; ++step) EXPECT_THAT(watch.observe(std::vector<double>{1.0, 0.0}, even), IsEmpty());
}

TEST(StepSeconds, AreThoseOfTheSlowestInEachRound) {
  const std::vector<double> speeds{0.3, 0.1};  // steps a second
  RankWorkShares work{.micro_batches = divide_micro_batches(8, 2, {}).value()};
  work.rounds = rounds_of(work.micro_batches, {1, 4});
  EXPECT_NEAR(step_s(work, speeds), 5.0, 1e-12);
  work.micro_batches = divide_micro_batches(8, 2, speeds).value();
  for (const int most : {1, 4}) {
    work.rounds = rounds_of(work.micro_batches, {1, most});
    EXPECT_NEAR(step_s(work, speeds), 2.5, 1e-12) << most;
  }
  work.micro_batches = divide_micro_batches(7, 2, speeds).value();  // 2 and 3 at once, beside 1 and 1
  work.rounds = rounds_of(work.micro_batches, {1, 4});
  EXPECT_NEAR(step_s(work, speeds), 20.0 / 7.0, 1e-12);
  work = {.stages = {{.rank = 1, .flops_share = 0.25}, {.rank = 0, .flops_share = 0.75}}};
  EXPECT_THAT(parts_of_ranks(work), ElementsAre(0.75, 0.25));
  EXPECT_NEAR(step_s(work, speeds), 2.5, 1e-12);
}

}  // namespace
}  // namespace butterfly
