#include "butterfly/base/settings/toml_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

namespace butterfly {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kKnown{"steps", "global_batch", "optimizer", "rate"};

std::string refusal(const std::string& key) {
  return unknown_key("run.toml: line 2", key, kKnown).value().message;
}

TEST(TomlFile, AnUnknownKeyIsNamedWithTheFileTheKeyThatIsMeantAndAllThatThereAre) {
  EXPECT_EQ(refusal("stps"),
            "run.toml: line 2: there is no key \"stps\" (is \"steps\" meant?), there are steps, "
            "global_batch, optimizer, rate");
  EXPECT_THAT(refusal("optimiser"), HasSubstr("(is \"optimizer\" meant?)"));
  EXPECT_THAT(refusal("globalbatch"), HasSubstr("(is \"global_batch\" meant?)"));
}

TEST(TomlFile, AKeyThatResemblesNoneIsNoGuess) {
  EXPECT_EQ(refusal("memory"),
            "run.toml: line 2: there is no key \"memory\", there are steps, global_batch, "
            "optimizer, rate");
  EXPECT_THAT(refusal(std::string(100'000, 's')), HasSubstr("sss...\", there are steps"));
  EXPECT_THAT(refusal("rate"), HasSubstr("there is no key \"rate\", there are")) << "known, but no table";
  EXPECT_THAT(refusal("a\nb"), HasSubstr("there is no key \"a?b\""));
}

TEST(TomlFile, AMistakeInTheSyntaxIsFoundByItsLine) {
  const auto table = parse_toml("a = 1\nb = = 2\n", "x.toml");
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, ErrorCode::kBadData);
  EXPECT_THAT(table.error().message, HasSubstr("x.toml: line 2: "));
  EXPECT_EQ(parse_toml("a = 1\n", "x.toml")->at("a").value<int>(), 1);
}

TEST(TomlFile, WhatIsNoFileOrTooLongIsRefused) {
  const std::string folder = ::testing::TempDir();
  EXPECT_THAT(read_toml_text(folder, 10, "a cluster file").error().message,
              HasSubstr("is a directory, expected a cluster file"));
  EXPECT_EQ(read_toml_text(folder + "none.toml", 10, "").error().code, ErrorCode::kNotFound);
  const std::string path = folder + "long.toml";
  std::ofstream(path) << "0123456789";
  EXPECT_EQ(read_toml_text(path, 10, "").value(), "0123456789");
  EXPECT_THAT(read_toml_text(path, 9, "").error().message, HasSubstr("is longer than 9 bytes"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace butterfly
