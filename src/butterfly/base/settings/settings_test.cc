#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/base/settings/config_file.h"

namespace butterfly {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

enum class Colour : std::uint8_t { kRed, kGreen };

struct Paint {
  std::string name{};
  int coats = 2;
  float gloss = 0.1f;
  std::uint64_t seed = 0;
  milliseconds dry{1500};
  Colour colour = Colour::kRed;
  bool thinned = true;
  std::vector<std::string> labels{};
  std::vector<std::string> walls{};
  std::vector<double> mix{};
};

const std::vector<ConfigKey<Paint>>& paint_keys() {
  static const std::vector<ConfigKey<Paint>> keys{
      value_key({.name = "name"}, BF_MEMBER(Paint, name)),
      value_key({.name = "coats", .range = {1, 9}}, BF_MEMBER(Paint, coats)),
      value_key({.name = "gloss", .range = {0, 1}}, BF_MEMBER(Paint, gloss)),
      wide_key({.name = "seed"}, BF_MEMBER(Paint, seed)),
      time_key<milliseconds>({.name = "time.dry_after", .range = {50, 600'000}}, BF_MEMBER(Paint, dry)),
      choice_key({.name = "look.colour", .help = "The colour"}, BF_MEMBER(Paint, colour),
                 {{"red", Colour::kRed}, {"green", Colour::kGreen}}),
      value_key({.name = "look.thinned"}, BF_MEMBER(Paint, thinned)),
      value_key({.name = "look.labels", .list = ListForm::kRepeated}, BF_MEMBER(Paint, labels)),
      value_key({.name = "look.walls"}, BF_MEMBER(Paint, walls)),
      value_key({.name = "look.mix"}, BF_MEMBER(Paint, mix))};
  return keys;
}

std::string refused_flag(const std::string& name, const std::string& text) {
  Paint paint;
  const auto key = std::ranges::find(paint_keys(), name, &ConfigKey<Paint>::name);
  const Status set = set_from_text(paint, *key, text);
  return set ? "accepted" : set.error().message;
}

std::string refused_file(const std::string& text) {
  Paint paint;
  const Status read = read_keys(text, "paint.toml", bind_keys(paint_keys(), paint));
  if (!read) {
    EXPECT_EQ(read.error().code, ErrorCode::kBadData);
  }
  return read ? "accepted" : read.error().message;
}

TEST(Settings, WhatIsWrittenIsReadBack) {
  const Paint paint{.name = "a \"b\"\\\n",
                    .coats = 9,
                    .gloss = 0.7f,
                    .seed = 5,
                    .dry = milliseconds(70),
                    .colour = Colour::kGreen,
                    .thinned = false,
                    .labels = {"a,b", ""},
                    .walls = {"north"},
                    .mix = {0.5, 1}};
  Paint read;
  const std::string text = keys_to_toml(paint_keys(), paint);
  const Status status = read_keys(text, "paint.toml", bind_keys(paint_keys(), read));
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(keys_to_toml(paint_keys(), read), text);
  EXPECT_EQ(read.gloss, 0.7f);
  EXPECT_EQ(read.dry, milliseconds(70));
  EXPECT_THAT(read.labels, ElementsAre("a,b", ""));
  EXPECT_THAT(text, HasSubstr("gloss = 0.7\n"));
  EXPECT_THAT(text, HasSubstr("\n[time]\ndry_after = 70\n"));
}

TEST(Settings, WhatIsOutOfRangeIsRefusedWithItsBorders) {
  EXPECT_EQ(refused_flag("coats", "0"), "--coats is \"0\", expected a whole number from 1 to 9");
  EXPECT_EQ(refused_flag("coats", "9"), "accepted");
  EXPECT_EQ(refused_flag("coats", "10"), "--coats is \"10\", expected a whole number from 1 to 9");
  EXPECT_EQ(refused_flag("gloss", "1.5"), "--gloss is \"1.5\", expected a number from 0 to 1");
  EXPECT_EQ(refused_flag("time.dry_after", "49"),
            "--time.dry-after is \"49\", expected a whole number from 50 to 600000");
  EXPECT_EQ(refused_file("[time]\ndry_after = 600001\n"),
            "paint.toml: line 2: time.dry_after is 600001, expected a whole number from 50 to 600000");
  EXPECT_EQ(refused_file("gloss = -0.5\n"), "paint.toml: line 1: gloss is -0.5, expected a number from 0 to 1");
}

TEST(Settings, WholeNumbersOfSixtyFourBitsDoNotWrapAround) {
  EXPECT_EQ(refused_flag("seed", "18446744073709551615"), "accepted");
  EXPECT_EQ(refused_flag("seed", "0xff"), "accepted");
  EXPECT_EQ(refused_flag("seed", "18446744073709551616"),
            "--seed is \"18446744073709551616\", expected a whole number");
  EXPECT_EQ(refused_flag("seed", "-1"), "--seed is \"-1\", expected a whole number");
  EXPECT_EQ(refused_file("seed = -1\n"), "paint.toml: line 1: seed is -1, expected a whole number");
}

TEST(Settings, ListsAreSeparatedByCommasOrGivenAgain) {
  Paint paint;
  const auto set = [&](const std::string& name, const std::string& text) {
    EXPECT_TRUE(set_from_text(paint, *std::ranges::find(paint_keys(), name, &ConfigKey<Paint>::name), text));
  };
  set("look.labels", "a,b");
  set("look.walls", "a,b");
  EXPECT_THAT(paint.labels, ElementsAre("a,b"));
  EXPECT_THAT(paint.walls, ElementsAre("a", "b"));
}

TEST(Settings, AKeyThatDoesNotExistIsNamedWithTheNearestOfItsTable) {
  EXPECT_EQ(refused_file("coats = 1\ncaots = 2\n"),
            "paint.toml: line 2: there is no key \"caots\" (is \"coats\" meant?), there are name, coats, gloss, seed, "
            "time, look");
  EXPECT_THAT(refused_file("[look]\ncolor = \"red\"\n"), HasSubstr("(is \"look.colour\" meant?)"));
  EXPECT_THAT(refused_file("look.colour = \"blue\"\n"), HasSubstr("is 'blue', expected one of red, green"));
  EXPECT_EQ(refused_file("name = 5\n"), "paint.toml: line 1: name is 5, expected a text");
}

}  // namespace
}  // namespace butterfly
