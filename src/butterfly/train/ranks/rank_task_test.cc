#include "butterfly/train/ranks/rank_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "butterfly/base/hash/digest.h"
#include "butterfly/base/json.h"
#include "butterfly/train/run/tiny_run_test.h"
#include "butterfly/wire/channel/inproc.h"

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
  task.isa = Isa::kAvx2;
  task.first_state = FirstState::kReceived;
  task.config.data.files = {"tokens-0"};
  task.tokens = {{.name = "tokens-0", .bytes = 100, .sha256 = std::string(64, 'a')}};
  const auto read = parse_rank_task(to_json(task));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->number, 2);
  EXPECT_EQ(read->config.steps, 77);
  EXPECT_EQ(read->config.shape.layers, task.config.shape.layers);
  EXPECT_EQ(read->isa, Isa::kAvx2);
  EXPECT_EQ(read->first_state, FirstState::kReceived);
  ASSERT_EQ(read->tokens.size(), 1u);
  EXPECT_EQ(read->tokens[0].name, "tokens-0");
  EXPECT_EQ(read->tokens[0].bytes, 100u);
  EXPECT_EQ(read->tokens[0].sha256, std::string(64, 'a'));
}

// Fails when a place on rank 0's machine, or one that a stranger names, is looked at on this one.
TEST(RankTask, NoPlaceOfAnotherMachineIsLeft) {
  auto json = parse_json(to_json(a_task()));
  json["run"] = json["run"].get<std::string>() + "\n";
  RunConfig hostile = a_task().config;
  hostile.model = hostile.out = hostile.resume = hostile.log_file = hostile.events_dir = "/etc/passwd";
  hostile.data.tokenizer = "/etc/passwd";
  hostile.checkpoint.directory = "/etc";
  json["run"] = to_toml(hostile);
  const auto read = parse_rank_task(dump_json(json));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_THAT(to_toml(read->config), ::testing::Not(HasSubstr("/etc")));
}

TEST(RankTask, WhatIsNoTaskIsRefusedInOneSentence) {
  const auto good = parse_json(to_json(a_task()));
  std::vector<std::string> bad{"", "{", "[]", "7"};
  for (const auto& [key, value] : good.items()) {
    auto without = good;
    without.erase(key);
    bad.push_back(dump_json(without));
    auto other = good;
    other[key] = -1;
    bad.push_back(dump_json(other));
  }
  const auto changed = [&](const char* key, const nlohmann::json& value) {
    auto other = good;
    other[key] = value;
    bad.push_back(dump_json(other));
  };
  for (const int number : {0, 1025}) changed("number", number);
  changed("tokens", nlohmann::json::object());
  RankTask many = a_task();
  many.config.data.files = {"tokens-0"};
  many.tokens.assign(4097, {.name = "tokens-0", .bytes = 100, .sha256 = std::string(64, 'a')});
  bad.push_back(to_json(many));
  for (const std::string& text : bad) {
    const auto read = parse_rank_task(text);
    ASSERT_FALSE(read) << text;
    EXPECT_FALSE(read.error().message.empty());
  }
}

TEST(RankTask, AFileThatItDoesNotBringIsRefused) {
  const auto read = [](const std::vector<std::string>& files, const std::string& validation_file,
                       const std::vector<TaskTokens>& tokens) {
    RankTask task = a_task();
    task.config.data.files = files;
    task.config.data.validation_file = validation_file;
    task.tokens = tokens;
    return parse_rank_task(to_json(task));
  };
  const TaskTokens brought{.name = "tokens-0", .bytes = 100, .sha256 = std::string(64, 'a')};
  EXPECT_TRUE(read({"tokens-0"}, "tokens-0", {brought}));
  for (const auto& refused :
       {read({"/etc/passwd"}, "", {}), read({"tokens-0", "/etc/passwd"}, "", {brought}),
        read({"tokens-0"}, "/etc/passwd", {brought}), read({"tokens-0", "synthetic:markov"}, "", {brought})}) {
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kProtocol);
  }
}

// Fails when two machines would not find the same file by its content, or a run would be validated with what it learns.
TEST(RankTask, TokensAreNamedInOrderWithWhatTheirFilesHoldAndThoseForValidationLast) {
  const TestFolder folder;
  DataConfig config;
  std::vector<std::string> paths;
  for (const int count : {300, 200, 100}) {
    paths.push_back(fmt::format("{}/{}.tokens", folder.path(), count));
    auto writer = TokenFileWriter::create(paths.back(), 16, {});
    ASSERT_TRUE(writer && writer->append(std::vector<TokenId>(static_cast<std::size_t>(count), TokenId(7))) &&
                writer->finish());
  }
  config.files = {paths[0], paths[1]};
  config.validation_file = paths[2];
  const auto data = open_dataset(config, {.vocab = 16, .seq = 16});
  ASSERT_TRUE(data) << data.error().message;
  const auto named = name_tokens(**data, config);
  ASSERT_TRUE(named) << named.error().message;
  EXPECT_EQ(config.files, (std::vector<std::string>{"tokens-0", "tokens-1"}));
  EXPECT_EQ(config.validation_file, "tokens-2");
  ASSERT_EQ(named->size(), paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    std::ifstream file(paths[i], std::ios::binary);
    const std::string content(std::istreambuf_iterator<char>(file), {});
    Sha256Hasher hash;
    hash.add(as_bytes(content));
    EXPECT_EQ((*named)[i].what.bytes, content.size());
    EXPECT_EQ((*named)[i].what.sha256, hash.finish().value());
  }
}

class TokensOnTheirWay : public ::testing::Test {
 protected:
  TokensOnTheirWay() { fill(100); }

  /// Ids that are another wherever they stand.
  void fill(std::size_t bytes) {
    ids_.resize(bytes);
    for (std::size_t i = 0; i < bytes; ++i) ids_[i] = static_cast<std::byte>(i % 251);
    const auto header = token_file_header(16, {}, bytes / 2);
    tokens_.header = header;
    tokens_.ids = ids_;
    std::vector<std::byte> whole(header.begin(), header.end());
    whole.insert(whole.end(), ids_.begin(), ids_.end());
    Sha256Hasher hash;
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
  for (const std::size_t bytes : {std::size_t{100}, (std::size_t{9} << 20) + 2}) {  // in one piece, in several
    fill(bytes);
    const auto got = travel(tokens_.what);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_TRUE(std::ranges::equal(ids_, std::span(got->data(), tokens_.what.bytes).subspan(kTokenHeaderBytes)));
  }
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
    const auto refused = travel(other);
    ASSERT_FALSE(refused) << bytes;
    if (bytes > tokens_.what.bytes) continue;
    EXPECT_THAT(refused.error().message, HasSubstr("a piece of")) << "before it is written anywhere";
  }
}

}  // namespace
}  // namespace butterfly
