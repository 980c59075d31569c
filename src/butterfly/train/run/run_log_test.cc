#include "butterfly/train/run/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "butterfly/base/json.h"

namespace butterfly {
namespace {

using nlohmann::json;

std::vector<json> lines(const std::string& path) {
  std::ifstream in(path);
  std::vector<json> found;
  for (std::string line; std::getline(in, line);) found.push_back(parse_json(line));
  return found;
}

RunConfig logged(const std::string& name) {
  RunConfig config;
  config.model = "gpt2-124m";
  config.log_file = ::testing::TempDir() + name;
  return config;
}

TEST(RunLog, EveryLineIsAnObjectThatNamesItsEvent) {
  const RunConfig config = logged("run_log.jsonl");
  auto log = RunLog::open(config);
  ASSERT_TRUE(log) << log.error().message;
  StepReport report{.step = 7, .loss = 2.5, .gradient_norm = 0.5, .rate = 1e-3, .tokens = 1024};
  report.phases.total_s = 0.25;
  (*log)->step(report);
  (*log)->evaluated(8, 2.25);
  (*log)->sampled(8, "caf\xE9 \"quoted\"\n");
  (*log)->saved(8, "saved/8");
  (*log)->note("a rank is lost");
  TrainResult result;
  result.verdict.reasons = {"the loss is above the entropy floor"};
  result.steps_done = 8;
  (*log)->finished(result);
  EXPECT_TRUE((*log)->status());
  const std::vector<json> found = lines(config.log_file);
  ASSERT_EQ(found.size(), 7u);
  std::vector<std::string> events;
  for (const json& line : found) events.push_back(line.at("event"));
  EXPECT_THAT(events, ::testing::ElementsAre("run", "step", "evaluation", "sample", "checkpoint", "note", "result"));
  EXPECT_EQ(found[0].at("config").at("model"), "gpt2-124m");
  EXPECT_EQ(found[0].at("config").at("optimizer.lr"), 3e-4);
  EXPECT_EQ(found[0].at("fingerprint"), fingerprint(config));
  EXPECT_EQ(found[1].at("step"), 7);
  EXPECT_EQ(found[1].at("loss"), 2.5);
  EXPECT_EQ(found[1].at("step_time"), 0.25);
  EXPECT_EQ(found[2].at("validation_loss"), 2.25);
  EXPECT_EQ(found[3].at("text"), "caf\xEF\xBF\xBD \"quoted\"\n");
  EXPECT_EQ(found[6].at("valid"), false);
  EXPECT_EQ(found[6].at("steps_done"), 8);
  EXPECT_THAT(found[6].at("verdict").get<std::string>(), ::testing::HasSubstr("INVALID"));
  EXPECT_TRUE(found[6].contains("tokens_per_sec"));
}

TEST(RunLog, ALossThatIsNoNumberIsNull) {
  const RunConfig config = logged("run_log_nan.jsonl");
  auto log = RunLog::open(config);
  ASSERT_TRUE(log);
  (*log)->step({.loss = std::numeric_limits<double>::quiet_NaN()});
  EXPECT_TRUE(lines(config.log_file).at(1).at("loss").is_null());
}

TEST(RunLog, WhatWasNotEvaluatedIsNull) {
  EXPECT_TRUE(parse_json(to_json(TrainResult{})).at("validation_loss").is_null());
  EXPECT_EQ(parse_json(to_json(TrainResult{.validation_loss = 2.5})).at("validation_loss"), 2.5);
}

TEST(RunLog, AResumedRunGoesOnInItsFile) {
  RunConfig config = logged("run_log_resumed.jsonl");
  ASSERT_TRUE(RunLog::open(config));
  config.resume = "saved";
  ASSERT_TRUE(RunLog::open(config));
  EXPECT_EQ(lines(config.log_file).size(), 2u);
  config.resume.clear();
  ASSERT_TRUE(RunLog::open(config));
  EXPECT_EQ(lines(config.log_file).size(), 1u);
}

TEST(RunLog, AFullDiskEndsTheLogAndIsReported) {
  RunConfig config = logged("unused");
  config.log_file = "/dev/full";
  const auto log = RunLog::open(config);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kIo);
  EXPECT_THAT(log.error().message, ::testing::HasSubstr("/dev/full: cannot be written"));
  config.log_file = "/nowhere/log.jsonl";
  EXPECT_THAT(RunLog::open(config).error().message, ::testing::HasSubstr("/nowhere/log.jsonl: cannot be created"));
}

TEST(RunLog, WithoutPlacesNothingIsWritten) {
  auto log = RunLog::open(RunConfig{});
  ASSERT_TRUE(log);
  (*log)->step({});
  (*log)->finished({});
  EXPECT_TRUE((*log)->status());
}

}  // namespace
}  // namespace butterfly
