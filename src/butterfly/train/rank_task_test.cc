#include "butterfly/train/rank_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "butterfly/model/sha256.h"
#include "butterfly/train/tiny_run_test.h"
#include "butterfly/wire/inproc.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

RankTask a_task() {
  RankTask task{.number = 2, .config = tiny_run()};
  task.config.steps = 77;
  return task;
}

TEST(RankTask, SurvivesItsText) {
  RankTask task = a_task();
  task.first_state = FirstState::kReceived;
  task.config.data.files = {"tokens-0"};
  task.tokens = {{.name = "tokens-0", .bytes = 100, .sha256 = std::string(64, 'a')}};
  const auto read = parse_rank_task(to_json(task));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->number, 2);
  EXPECT_EQ(read->config.steps, 77);
  EXPECT_EQ(read->config.shape.layers, task.config.shape.layers);
  EXPECT_EQ(read->first_state, FirstState::kReceived);
  ASSERT_EQ(read->tokens.size(), 1u);
  EXPECT_EQ(read->tokens[0].bytes, 100u);
}

// Fails when a place on rank 0's machine, or one that a stranger names, is looked at on this one.
TEST(RankTask, NoPlaceOfAnotherMachineIsLeft) {
  auto json = nlohmann::json::parse(to_json(a_task()));
  json["run"] = json["run"].get<std::string>() + "\n";
  RunConfig hostile = a_task().config;
  hostile.model = hostile.out = hostile.resume = hostile.log_file = hostile.events_dir = "/etc/passwd";
  hostile.data.tokenizer = "/etc/passwd";
  hostile.checkpoint.directory = "/etc";
  json["run"] = to_toml(hostile);
  const auto read = parse_rank_task(json.dump());
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_THAT(to_toml(read->config), ::testing::Not(HasSubstr("/etc")));
}

TEST(RankTask, WhatIsNoTaskIsRefusedInOneSentence) {
  const auto good = nlohmann::json::parse(to_json(a_task()));
  std::vector<std::string> bad{"", "{", "[]", "7"};
  for (const auto& [key, value] : good.items()) {
    auto without = good;
    without.erase(key);
    bad.push_back(without.dump());
    auto other = good;
    other[key] = -1;
    bad.push_back(other.dump());
  }
  auto number = good;
  number["number"] = 0;
  bad.push_back(number.dump());
  for (const std::string& text : bad) {
    const auto read = parse_rank_task(text);
    ASSERT_FALSE(read) << text;
    EXPECT_FALSE(read.error().message.empty());
  }
}

TEST(RankTask, AFileThatItDoesNotBringIsRefused) {
  auto json = nlohmann::json::parse(to_json(a_task()));
  RunConfig hostile = a_task().config;
  hostile.data.files = {"/etc/passwd"};
  json["run"] = to_toml(hostile);
  const auto read = parse_rank_task(json.dump());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kProtocol);
}

class TokensOnTheirWay : public ::testing::Test {
 protected:
  TokensOnTheirWay() : ids_(100, std::byte{7}) {
    const auto header = token_file_header(16, {}, 50);
    tokens_.header = header;
    tokens_.ids = ids_;
    std::vector<std::byte> whole(header.begin(), header.end());
    whole.insert(whole.end(), ids_.begin(), ids_.end());
    Sha256 hash;
    hash.add(whole);
    tokens_.what = {.name = "tokens-0", .bytes = whole.size(), .sha256 = hash.finish().value()};
  }

  /// What the other end makes of these tokens, which it was told are `what`.
  Result<AlignedBuffer> travel(const TaskTokens& what) const {
    auto [here, there] = make_inproc_pair();
    EXPECT_TRUE(send_tokens(*here, tokens_, std::chrono::milliseconds(1000)));
    here->close();
    return receive_tokens(*there, what, std::chrono::milliseconds(1000));
  }

  std::vector<std::byte> ids_;
  TokenBytes tokens_;
};

TEST_F(TokensOnTheirWay, ArriveAsTheyWere) {
  const auto got = travel(tokens_.what);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->data()[kTokenHeaderBytes], std::byte{7});
}

TEST_F(TokensOnTheirWay, OtherBytesThanAnnouncedAreRefused) {
  TaskTokens other = tokens_.what;
  other.sha256 = std::string(64, '0');
  const auto damaged = travel(other);
  ASSERT_FALSE(damaged);
  EXPECT_THAT(damaged.error().message, HasSubstr("digest"));
  for (const std::uint64_t bytes : {tokens_.what.bytes - 1, tokens_.what.bytes + 1, std::uint64_t{10}}) {
    other = tokens_.what;
    other.bytes = bytes;
    EXPECT_FALSE(travel(other)) << bytes;
  }
}

}  // namespace
}  // namespace butterfly
