#include "butterfly/train/ranks/rank_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "butterfly/base/hash/digest.h"
#include "butterfly/base/read_file.h"
#include "butterfly/train/config/run_keys.h"
#include "butterfly/train/ranks/ranks.pb.h"
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

ranks::Task message_of(const RankTask& task) {
  ranks::Task message;
  store(task, message);
  return message;
}

ranks::Setting& setting(ranks::Task& message, const std::string& key) {
  return *std::ranges::find(*message.mutable_settings(), key, [](const auto& one) { return one.key(); });
}

TEST(RankTask, SurvivesItsMessage) {
  RankTask task = a_task();
  task.isa = Isa::kAvx2;
  task.first_state = FirstState::kReceived;
  task.config.data.files = {"tokens-0"};
  task.tokens = {{.name = "tokens-0", .bytes = 100, .sha256 = std::string(64, 'a')}};
  const auto read = read_rank_task(message_of(task));
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

// Fails when a key is no part of the message, or becomes another value on its way: ranks would train different runs.
TEST(RankTask, EverySettingArrivesToTheBit) {
  RankTask task = a_task();
  for (const RunKey& key : run_keys()) {
    KeyValue value = key.get(task.config);
    if (auto* flag = std::get_if<bool>(&value)) *flag = !*flag;
    if (auto* whole = std::get_if<std::int64_t>(&value)) *whole += 3;
    if (auto* number = std::get_if<double>(&value)) *number = *number / 3 + 1e-9;
    if (auto* numbers = std::get_if<std::vector<double>>(&value)) *numbers = {0.1, 1.0 / 3};
    ASSERT_TRUE(key.set(task.config, value)) << key.name;
  }
  task.config.optimizer.kind = OptimizerKind::kSgd;
  task.config.frozen = {"blk.0", ""};
  task.config.data.files = {"tokens-0"};
  task.config.data.validation_file = "tokens-0";
  task.tokens = {{.name = "tokens-0", .bytes = 100, .sha256 = std::string(64, 'a')}};
  const auto read = read_rank_task(message_of(task));
  ASSERT_TRUE(read) << read.error().message;
  int places = 0;
  for (const RunKey& key : run_keys()) {
    if (key.get(read->config) == key.get(task.config)) continue;
    ++places;
    EXPECT_EQ(key.role, KeyRole::kAround) << key.name;
  }
  EXPECT_LE(places, 2) << "threads, and what the log shows, are each machine's own";
}

// Fails when a place on rank 0's machine, or one that a stranger names, is looked at on this one.
TEST(RankTask, NoPlaceOfAnotherMachineIsLeft) {
  ranks::Task message = message_of(a_task());
  for (const char* key :
       {"model", "out", "resume", "log_file", "events_dir", "data.tokenizer", "checkpoint.directory"}) {
    setting(message, key).set_text("/etc/passwd");
  }
  const auto read = read_rank_task(message);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_THAT(to_toml(read->config), ::testing::Not(HasSubstr("/etc")));
}

TEST(RankTask, WhatIsNoTaskIsRefusedInOneSentence) {
  const std::vector<std::pair<const char*, std::function<void(ranks::Task&)>>> spoilt{
      {"the number 0", [](auto& m) { m.set_number(0); }},
      {"the number 1025", [](auto& m) { m.set_number(1025); }},
      {"the number -1", [](auto& m) { m.set_number(-1); }},
      {"instruction set 4", [](auto& m) { m.set_isa(kAllIsas.size()); }},
      {"the model's number of layers is 0", [](auto& m) { m.clear_shape(); }},
      {"sets stepz, there is no such key", [](auto& m) { setting(m, "steps").set_key("stepz"); }},
      {"sets steps to true or false, expected a whole number", [](auto& m) { setting(m, "steps").set_flag(true); }},
      {"sets steps to nothing that is a value", [](auto& m) { setting(m, "steps").clear_value(); }},
      {"sets steps to what it cannot be", [](auto& m) { setting(m, "steps").set_whole(-1); }},
      {"sets optimizer.lr to nothing", [](auto& m) { setting(m, "optimizer.lr").set_number(std::nan("")); }},
      {"sets parallel.speeds to nothing",
       [](auto& m) { setting(m, "parallel.speeds").mutable_numbers()->add_numbers(std::nan("")); }},
      {"sets precision to what it cannot be", [](auto& m) { setting(m, "precision").set_text("fp3"); }},
      {"a SHA-256 of 31 bytes", [](auto& m) { m.add_tokens()->set_sha256(std::string(31, 'a')); }},
      {"4097 token files",
       [](auto& m) {
         for (int i = 0; i < 4097; ++i) m.add_tokens();
       }},
      {"1025 settings",
       [](auto& m) {
         while (m.settings_size() < 1025) m.add_settings();
       }},
  };
  for (const auto& [sentence, spoil] : spoilt) {
    ranks::Task message = message_of(a_task());
    ASSERT_TRUE(read_rank_task(message));
    spoil(message);
    const auto read = read_rank_task(message);
    ASSERT_FALSE(read) << sentence;
    EXPECT_THAT(read.error().message, HasSubstr(sentence));
  }
}

TEST(RankTask, AFileThatItDoesNotBringIsRefused) {
  const auto read = [](const std::vector<std::string>& files, const std::string& validation_file,
                       const std::vector<TaskTokens>& tokens) {
    RankTask task = a_task();
    task.config.data.files = files;
    task.config.data.validation_file = validation_file;
    task.tokens = tokens;
    return read_rank_task(message_of(task));
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
    const std::string content = read_file(paths[i], kAnySize).value();
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
