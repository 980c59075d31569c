#include "butterfly/plan/cost/load_balance.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

namespace butterfly {
namespace {

TEST(LoadBalanceFactor, IsLeastOverGreatest) {
  EXPECT_DOUBLE_EQ(load_balance_factor(std::array{2.0, 4.0, 3.0}), 0.5);
  EXPECT_DOUBLE_EQ(load_balance_factor(std::array{3.0}), 1.0);
  EXPECT_EQ(load_balance_factor(std::array{0.0, 4.0}), 0.0);
}

TEST(LoadBalanceFactor, WhatIsUnknownHasNone) {
  EXPECT_EQ(load_balance_factor(std::vector<double>{}), 0.0);
  EXPECT_EQ(load_balance_factor(std::array{0.0, 0.0}), 0.0);
  EXPECT_EQ(load_balance_factor(std::array{1.0, std::numeric_limits<double>::infinity()}), 0.0);
}

}  // namespace
}  // namespace butterfly
