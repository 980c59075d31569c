#include "butterfly/generator.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace butterfly {
namespace {

const std::string kModel = BUTTERFLY_SOURCE_DIR "/models/demo.gguf";

class GeneratorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kModel)) GTEST_SKIP() << "no demo model at " << kModel;
  }
  static Generator must_load(const GeneratorOptions& options) {
    Result<Generator> generator = Generator::load(kModel, options);
    EXPECT_TRUE(generator.has_value()) << (generator ? "" : generator.error().message);
    return std::move(*generator);
  }
};

TEST_F(GeneratorTest, StreamedPiecesJoinToTheTextWhichAnyNumberOfNodesRepeats) {
  const TextOptions options{.tokens_max = 24, .temperature = 0.8f, .seed = 11};
  std::string expected;
  for (int nodes : {1, 2, 3}) {
    Generator generator = must_load({.threads = 1, .nodes = nodes});
    std::string streamed;
    const auto text = generator.generate("The king", options, [&](std::string_view piece) { streamed += piece; });
    ASSERT_TRUE(text.has_value()) << text.error().message;
    EXPECT_EQ(streamed, text->text);
    EXPECT_FALSE(text->text.empty());
    EXPECT_EQ(text->tokens.size(), 24u);
    EXPECT_EQ(text->finish, "length");
    EXPECT_LE(text->first_token_s, text->total_s);
    EXPECT_EQ(text->wire_bytes, 0u);
    if (nodes == 1) expected = text->text;
    EXPECT_EQ(text->text, expected) << nodes << " nodes";
  }
}

TEST_F(GeneratorTest, SeedsAndStopsReachTheSampler) {
  Generator generator = must_load({.threads = 1});
  const auto run = [&](const TextOptions& options) {
    const auto text = generator.generate("The king", options);
    EXPECT_TRUE(text.has_value());
    return text ? *text : GeneratedText{};
  };
  const GeneratedText one = run({.tokens_max = 24, .temperature = 1.0f, .seed = 1});
  EXPECT_NE(one.text, run({.tokens_max = 24, .temperature = 1.0f, .seed = 2}).text);
  const std::string stop = one.text.substr(one.text.size() / 2, 3);
  const GeneratedText stopped = run({.tokens_max = 24, .temperature = 1.0f, .seed = 1, .stops = {stop}});
  EXPECT_EQ(stopped.finish, "stop");
  EXPECT_EQ(stopped.text, one.text.substr(0, one.text.find(stop)));
}

TEST_F(GeneratorTest, RequestedStopCancels) {
  Generator generator = must_load({.threads = 1});
  std::stop_source source;
  const auto text = generator.generate(
      "The king", {.tokens_max = 400, .ignore_end = true}, [&](std::string_view) { source.request_stop(); },
      source.get_token());
  ASSERT_TRUE(text.has_value());
  EXPECT_EQ(text->finish, "cancelled");
  EXPECT_LT(text->tokens.size(), 400u);
}

TEST_F(GeneratorTest, ThreadsTakeTurnsAndEachGetsItsOwnText) {
  Generator generator = must_load({.threads = 1, .nodes = 2});
  const TextOptions options{.tokens_max = 8};
  const std::vector<std::string> prompts{"The king", "My lord", "O Romeo"};
  std::vector<std::string> alone, together(prompts.size());
  for (const std::string& prompt : prompts) alone.push_back(generator.generate(prompt, options)->text);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    threads.emplace_back([&, i] { together[i] = generator.generate(prompts[i], options)->text; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

TEST_F(GeneratorTest, DescriptionHasALineForEachNode) {
  const std::string text = must_load({.threads = 1, .nodes = 2}).describe();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  EXPECT_NE(text.find("+ embedding"), std::string::npos);
  EXPECT_NE(text.find("+ head"), std::string::npos);
}

TEST_F(GeneratorTest, BadInputIsAnErrorAndTheGeneratorGoesOn) {
  Generator generator = must_load({.threads = 1});
  EXPECT_EQ(generator.generate("\xff\xfe").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(generator.generate("x", {.temperature = -1.0f}).error().code, ErrorCode::kInvalidArgument);
  std::string long_prompt;
  for (int i = 0; i < 5000; ++i) long_prompt += "word ";
  EXPECT_EQ(generator.generate(long_prompt).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(generator.generate("The king", {.tokens_max = 2}).has_value());
}

TEST_F(GeneratorTest, TokensOfAPromptAreItsIds) {
  const Generator generator = must_load({.threads = 1});
  const auto ids = generator.tokenize("The king");
  ASSERT_TRUE(ids.has_value());
  EXPECT_GE(ids->size(), 2u);
  for (int id : *ids) EXPECT_GE(id, 0);
}

TEST_F(GeneratorTest, ReplicasWriteTheSameTextsSideBySide) {
  Generator one = must_load({.threads = 1});
  Generator two = must_load({.threads = 1, .nodes = 2, .replicas = 2});
  EXPECT_EQ(two.nodes().healthy().size(), 4u);
  const TextOptions options{.tokens_max = 24};
  const std::vector<std::string> prompts{"The king", "My lord", "O Romeo"};
  std::vector<std::string> texts(prompts.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    threads.emplace_back([&, i] { texts[i] = two.generate(prompts[i], options)->text; });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(texts[i], one.generate(prompts[i], options)->text);
  const BalanceReport balance = two.balance();
  EXPECT_EQ(balance.shares.size(), 4u);
  EXPECT_GT(balance.load_balance_factor, 0.0);
  EXPECT_LE(balance.load_balance_factor, 1.0);
}

TEST_F(GeneratorTest, ADeadlineEndsATextWithWhatItHas) {
  Generator generator = must_load({.threads = 1});
  const auto text =
      generator.generate("The king", {.tokens_max = 400, .ignore_end = true, .deadline = std::chrono::milliseconds(1)});
  ASSERT_TRUE(text.has_value()) << text.error().message;
  EXPECT_EQ(text->finish, "deadline");
  EXPECT_LT(text->tokens.size(), 400u);
  const auto whole = generator.generate("The king", {.tokens_max = 4, .deadline = std::chrono::minutes(10)});
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->finish, "length");
}

TEST_F(GeneratorTest, CustomSharesDecideWhichNodeHasWhichLayers) {
  Generator generator = must_load({.threads = 1,
                                   .nodes = 2,
                                   .split = "custom",
                                   .custom = {{.node = "node 0", .first_layer = 0, .last_layer = 1},
                                              {.node = "node 1", .first_layer = 1, .last_layer = 5}}});
  EXPECT_NE(generator.describe().find("node 1: layers 1-4"), std::string::npos) << generator.describe();
  EXPECT_EQ(generator.rebalance().error().code, ErrorCode::kInvalidArgument);
}

TEST_F(GeneratorTest, UnreachableWorkerIsNamed) {
  const auto generator = Generator::load(kModel, {.workers = {"127.0.0.1:1"}});
  ASSERT_FALSE(generator.has_value());
  EXPECT_EQ(generator.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(generator.error().message.find("127.0.0.1:1"), std::string::npos) << generator.error().message;
}

TEST(Generator, MissingModelAndImpossibleOptionsAreErrors) {
  EXPECT_EQ(Generator::load("/no/such/model.gguf").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Generator::load(kModel, {.threads = -1}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Generator::load(kModel, {.nodes = 0}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Generator::load(kModel, {.replicas = 0}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Generator::load(kModel, {.workers = {"127.0.0.1:1"}, .replicas = 2}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Generator::load(kModel, {.goal = "speed"}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Generator::load(kModel, {.dead_after = {}}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace butterfly
