#include "butterfly/base/text/nearest_word.h"

#include <gtest/gtest.h>

#include <vector>

namespace butterfly {
namespace {

const std::vector<std::string> kWords{"threads", "steps", "model", "optimizer"};

TEST(NearestWord, IsWithinAThirdOfTheLetters) {
  EXPECT_EQ(nearest_word("thredas", kWords), "threads");
  EXPECT_EQ(nearest_word("stps", kWords), "steps");
  EXPECT_EQ(nearest_word("mo", kWords), "");
  EXPECT_EQ(nearest_word("optimis", kWords), "");
  EXPECT_EQ(nearest_word("optimiser", kWords), "optimizer");
}

TEST(NearestWord, TwoSwappedLettersAreOneMistake) {
  EXPECT_EQ(nearest_word("modle", std::vector<std::string>{"mode", "model"}), "mode");
  EXPECT_EQ(nearest_word("ste", std::vector<std::string>{"set"}), "set");
}

TEST(NearestWord, IsNothingForAKnownWordAndForAnEndlessOne) {
  EXPECT_EQ(nearest_word("steps", kWords), "");
  EXPECT_EQ(nearest_word(std::string(81, 's'), std::vector<std::string>{std::string(82, 's')}), "");
  EXPECT_EQ(nearest_word(std::string(80, 's'), std::vector<std::string>{std::string(81, 's')}), std::string(81, 's'));
}

}  // namespace
}  // namespace butterfly
