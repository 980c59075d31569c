#include "butterfly/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace butterfly {
namespace {

TrainerOptions tiny_run() {
  return {.settings = {{"model", "tinytransformer-tiny"},
                       {"data.files", "synthetic:markov"},
                       {"seq", "16"},
                       {"global_batch", "4"},
                       {"micro_batch", "1"},
                       {"steps", "3"},
                       {"seed", "3"},
                       {"threads", "1"},
                       {"log", "silent"}}};
}

TEST(TrainerLibrary, ARunFromSettingsTellsItsStepsAndSumsThemUp) {
  TrainerOptions options = tiny_run();
  std::vector<double> losses;
  options.step = [&](const TrainingStep& step) {
    EXPECT_EQ(step.step, static_cast<std::int64_t>(losses.size()) + 1);
    EXPECT_EQ(step.steps, 3);
    EXPECT_EQ(step.tokens, 4 * 16);
    losses.push_back(step.loss);
  };
  Result<Trainer> trainer = Trainer::create(options);
  ASSERT_TRUE(trainer) << trainer.error().message;
  const Result<TrainingResult> result = trainer->run();
  ASSERT_TRUE(result) << result.error().message;
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_EQ(result->steps, 3);
  EXPECT_DOUBLE_EQ(result->final_loss, losses.back());
  EXPECT_GT(result->tokens_per_s, 0.0);
  EXPECT_EQ(result->weights_hash.size(), 64u);
  EXPECT_NE(result->json.find("final_loss"), std::string::npos);
  // The same run over two ranks with canonical sums ends with the same weights as over one.
  std::vector<std::string> hashes;
  for (const char* ranks : {"1", "2"}) {
    TrainerOptions again = tiny_run();
    again.settings.insert(again.settings.end(), {{"parallel.deterministic", "true"}, {"parallel.ranks", ranks}});
    Result<Trainer> one = Trainer::create(again);
    ASSERT_TRUE(one) << one.error().message;
    const auto ended = one->run();
    ASSERT_TRUE(ended) << ended.error().message;
    hashes.push_back(ended->weights_hash);
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST(TrainerLibrary, AStopEndsARunAfterItsStep) {
  TrainerOptions options = tiny_run();
  std::stop_source stop;
  options.step = [&](const TrainingStep& step) {
    if (step.step == 1) stop.request_stop();
  };
  const auto result = Trainer::create(options)->run(stop.get_token());
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_LT(result->steps, 3);
}

TEST(TrainerLibrary, UnknownAndImpossibleSettingsAreNamed) {
  const auto unknown = Trainer::create({.settings = {{"optimizer.ratio", "1"}}});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(unknown.error().message.find("optimizer.ratio"), std::string::npos);
  EXPECT_FALSE(Trainer::create({.settings = {{"steps", "many"}}}));
  EXPECT_FALSE(Trainer::create({.run_file = "/no/such/run.toml"}));
  const Trainer trainer = std::move(*Trainer::create(tiny_run()));
  EXPECT_NE(trainer.settings().find("tinytransformer-tiny"), std::string::npos);
}

TEST(EstimateCommunication, ARingMovesTwoHalvesAndAShardedModelThree) {
  constexpr std::uint64_t kParameters = 1'000'000;
  const auto ddp = estimate_communication("ddp", 4, kParameters);
  ASSERT_TRUE(ddp) << ddp.error().message;
  EXPECT_DOUBLE_EQ(ddp->bytes_per_step, 2.0 * 4e6 * 3 / 4);
  EXPECT_EQ(ddp->messages_per_step, 2 * 3);
  const auto sharded = estimate_communication("sharded", 4, kParameters);
  ASSERT_TRUE(sharded);
  EXPECT_DOUBLE_EQ(sharded->bytes_per_step, 3.0 * 4e6 * 3 / 4);
  EXPECT_DOUBLE_EQ(estimate_communication("ddp", 1, kParameters)->bytes_per_step, 0.0);
  EXPECT_FALSE(estimate_communication("ddp", 0, kParameters));
  EXPECT_FALSE(estimate_communication("ring", 2, kParameters));
}

}  // namespace
}  // namespace butterfly
