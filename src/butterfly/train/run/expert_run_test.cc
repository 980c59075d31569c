// Runs of a mixture of experts: what they learn, how evenly tokens go through experts, and that ranks do not show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/train/run/run_log.h"
#include "butterfly/train/run/tiny_run_test.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

struct ExpertRun {
  TrainResult result;
  std::vector<StepReport> reports;
};

RunConfig expert_run(int steps, double coefficient) {
  RunConfig config = tiny_run();
  config.shape = tiny_expert_shape();
  config.steps = steps;
  config.router_aux_loss_coef = coefficient;
  return config;
}

ExpertRun finish_run(RankTrainer& trainer) {
  ExpertRun run;
  TrainObserver observer;
  observer.step = [&](const StepReport& report, std::int64_t) { run.reports.push_back(report); };
  const auto result = trainer.run(observer, {});
  EXPECT_TRUE(result) << result.error().message;
  if (result) run.result = *result;
  return run;
}

ExpertRun run_alone(const RunConfig& config) {
  return finish_run(*tiny_trainer(config));
}

/// Rank 0's run, of several threads.
ExpertRun run_together(const RunConfig& config, int ranks) {
  const auto members = make_inproc_collectives(ranks);
  std::vector<ExpertRun> runs(members.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto trainer =
            tiny_trainer(config, {.rank = static_cast<int>(rank), .size = ranks, .collectives = members[rank].get()});
        if (trainer) runs[rank] = finish_run(*trainer);
      });
    }
  }
  return std::move(runs[0]);
}

/// The mean over the last steps of the busiest expert's tokens over the mean.
double last_load(const ExpertRun& run) {
  constexpr std::size_t kLast = 20;
  double sum = 0.0;
  for (std::size_t i = run.reports.size() - kLast; i < run.reports.size(); ++i) {
    sum += expert_load(run.reports[i]).largest_over_mean;
  }
  return sum / kLast;
}

/// From routers that prefer the first expert.
ExpertRun run_from_unbalanced(double coefficient) {
  RunConfig config = expert_run(300, coefficient);
  config.shape.moe.router_bias = true;
  config.router_aux_loss_over = BalanceScope::kLayer;
  RunParts parts = make_run_parts(config, {}).value();
  ParameterSet& parameters = parts.transformer->parameters();
  for (const char* name : {"blk.0.ffn_gate_inp.bias", "blk.1.ffn_gate_inp.bias"}) {
    parameters.weight(**parameters.find(name))[0] = 3.0f;
  }
  return finish_run(**make_trainer(std::move(parts), {}));
}

TEST(ExpertRun, LearnsAndBalancesItsExpertsByTheirLoss) {
  const ExpertRun balanced = run_from_unbalanced(0.2);
  EXPECT_EQ(to_string(balanced.result.verdict), "valid");
  EXPECT_LT(balanced.reports.back().loss, balanced.reports.front().loss - 0.5);
  // Every token goes through the first of four experts and one other: twice the mean.
  EXPECT_DOUBLE_EQ(expert_load(balanced.reports.front()).largest_over_mean, 2.0);
  EXPECT_LT(last_load(balanced), 1.5);
  // At its least the loss is the number of experts that a token goes through.
  EXPECT_NEAR(balanced.reports.back().router_aux_loss, 2.0, 0.1);
  const ExpertRun free = run_from_unbalanced(0.0);
  EXPECT_GT(last_load(free), 1.8);
  EXPECT_GT(free.reports.back().router_aux_loss, 2.5);
}

TEST(ExpertRun, OfAnyNumberOfRanksHasTheSameWeightsAndTellsTheSame) {
  const RunConfig config = expert_run(8, 0.05);
  const ExpertRun alone = run_alone(config);
  ASSERT_EQ(alone.reports.size(), 8u);
  for (const int ranks : {2, 3, 4}) {
    const ExpertRun together = run_together(config, ranks);
    EXPECT_EQ(together.result.weights_hash, alone.result.weights_hash) << ranks;
    ASSERT_EQ(together.reports.size(), alone.reports.size());
    for (std::size_t i = 0; i < alone.reports.size(); ++i) {
      EXPECT_EQ(together.reports[i].loss, alone.reports[i].loss) << ranks;
      EXPECT_EQ(together.reports[i].router_aux_loss, alone.reports[i].router_aux_loss) << ranks;
      EXPECT_EQ(together.reports[i].expert_tokens, alone.reports[i].expert_tokens) << ranks;
    }
  }
}

TEST(ExpertRun, CountsEachTokenOnceForEachExpertThatItGoesThrough) {
  const ExpertRun run = run_alone(expert_run(2, 0.001));
  for (const StepReport& report : run.reports) {
    ASSERT_EQ(report.expert_tokens.size(), 8u);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      std::int64_t sum = 0;
      for (std::size_t e = 0; e < 4; ++e) sum += report.expert_tokens[4 * layer + e];
      EXPECT_EQ(sum, 2 * report.tokens);
    }
  }
}

TEST(ExpertRun, LogsTheBalanceOfItsExperts) {
  const TestFolder folder;
  RunConfig config = expert_run(3, 0.001);
  config.log_file = folder.path() + "/log";
  const auto log = *RunLog::open(config);
  StepReport report{.step = 7, .router_aux_loss = 2.25, .expert_tokens = {4, 0, 2, 2, 0, 0, 0, 0}, .experts = 4};
  log->step(report);
  report = {.step = 8};
  log->step(report);
  const std::string text = *read_file(config.log_file, kAnySize);
  EXPECT_THAT(text, HasSubstr(R"("router_aux_loss":2.25,"expert_load_max":2.0,"experts_unused":1})"));
  EXPECT_EQ(text.rfind("router_aux_loss\":"), text.find("router_aux_loss\":2.25")) << "dense runs have none";
}

TEST(ExpertRun, RefusesBeforeItsFirstStepWhatHasNoBackwardPassOrNoFormat) {
  const auto refusal = [](const RunConfig& config) {
    const auto parts = make_run_parts(config, {});
    EXPECT_FALSE(parts);
    if (parts) return std::string();
    EXPECT_EQ(parts.error().code, ErrorCode::kUnsupported);
    return parts.error().message;
  };
  RunConfig config = expert_run(3, 0.001);
  config.shape.attention_sinks = true;
  EXPECT_THAT(refusal(config), HasSubstr("attention sinks have no backward pass"));
  const TestFolder folder;
  config = expert_run(3, 0.001);
  config.shape.architecture = "glm4moe";
  config.shape.rope.pairs = RopePairs::kHalves;
  config.out = folder.path() + "/directory";
  EXPECT_THAT(refusal(config), HasSubstr("the architecture is \"glm4moe\", supported are"));
  config.shape.architecture = "qwen2moe";
  config.shape.moe.renormalise = false;
  EXPECT_TRUE(make_run_parts(config, {}));
  config.out = folder.path() + "/model.gguf";
  EXPECT_TRUE(make_run_parts(config, {}));
  config.shape.attention_cap = 5.0f;
  EXPECT_THAT(refusal(config), HasSubstr("cannot have caps"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace butterfly
