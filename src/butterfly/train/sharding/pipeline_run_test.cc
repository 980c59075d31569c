// Runs whose ranks are stages of a pipeline end with the weights of the run on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "butterfly/train/sharding/stages.h"
#include "butterfly/train/sharding/thread_ranks_test.h"

namespace butterfly {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

RunConfig pipeline_run(int ranks) {
  RunConfig config = divided_run(ParallelStrategy::kPipeline, ranks);
  config.shape.layers = 3;
  config.global_batch = 6;
  return config;
}

RunConfig one_rank(RunConfig config) {
  config.parallel.strategy = ParallelStrategy::kDdp;
  config.parallel.ranks = 1;
  config.parallel.speeds = config.parallel.state_shares = {};
  return config;
}

/// With learned positions, biases, and an embedding that is the head.
ModelConfig gpt_shape() {
  ModelConfig config = *named_config("gpt2-124m");
  config.layers = 3;
  config.model_dim = 64;
  config.heads = config.kv_heads = 2;
  config.head_dim = 32;
  config.ff_dim = 128;
  config.vocab = 320;  // more than a chunk
  config.context = 16;
  return config;
}

// Fails when a stage computes something else than these layers do on one rank, or sums come in another order. The last
// of four ranks has the head alone.
TEST(PipelineRun, EndsWithTheBitsOfOneRank) {
  const std::string one = hash_of(one_rank(pipeline_run(1)));
  for (const int ranks : {2, 3, 4}) EXPECT_EQ(hash_of(pipeline_run(ranks)), one) << ranks << " ranks";
}

TEST(PipelineRun, UnevenStagesAndFewMicroBatchesDoNotShow) {
  RunConfig config = pipeline_run(3);
  const std::string one = hash_of(one_rank(config));
  config.parallel.speeds = {1, 9, 1};
  EXPECT_EQ(hash_of(config), one);
  config.parallel.state_shares = {1, 1, 9};
  EXPECT_EQ(hash_of(config), one);
  config.global_batch = 2;
  EXPECT_EQ(hash_of(config), hash_of(one_rank(config))) << "fewer micro-batches than stages";
}

// Fails when the stages of ranks that are seen to be slow stay as large, or their state does not go with the layers.
TEST(PipelineRun, ASlowRankGetsFewerLayersOnceItIsSeen) {
  RunConfig config = pipeline_run(2);
  config.shape.layers = 6;
  config.steps = 5;
  std::vector<std::string> divisions;
  const RankHooks hooks{.pass =
                            [](int rank) {
                              if (rank == 0)
                                std::this_thread::sleep_for(std::chrono::milliseconds(kSanitized ? 200 : 30));
                            },
                        .note =
                            [&](const std::string& text) {
                              if (text.find("divided by speed") != std::string::npos) divisions.push_back(text);
                            }};
  EXPECT_EQ(hash_of(config, hooks), hash_of(one_rank(config)));
  ASSERT_FALSE(divisions.empty());
  EXPECT_THAT(divisions.front(), HasSubstr("after step 3 the work is divided by speed: "));
  EXPECT_THAT(divisions.front(), AnyOf(HasSubstr("rank 0 embedding"), ContainsRegex("rank 0 layers? [0-9]( to 1)?;")));
}

TEST(PipelineRun, HoldsForEveryKindOfModelAndPrecision) {
  const auto check = [](const char* what, const std::function<void(RunConfig&)>& change) {
    RunConfig config = pipeline_run(3);
    config.steps = kSanitized ? 2 : 3;
    change(config);
    EXPECT_EQ(hash_of(config), hash_of(one_rank(config))) << what;
  };
  check("bf16", [](RunConfig& config) { config.precision = Precision::kBfloat16; });
  check("gathered for samples", [](RunConfig& config) { config.sample_every = 1; });
  check("experts whose balance over all layers weighs", [](RunConfig& config) {
    config.shape = tiny_expert_shape();
    config.router_aux_loss_coef = 0.5;
  });
  if (kSanitized) return;
  check("recomputed", [](RunConfig& config) { config.recompute = Recompute::kBlock; });
  check("recomputed in part", [](RunConfig& config) { config.recompute = Recompute::kSelective; });
  check("tied", [](RunConfig& config) { config.shape.tied_head = true; });
  check("sgd", [](RunConfig& config) { config.optimizer.kind = OptimizerKind::kSgd; });
  check("frozen", [](RunConfig& config) { config.frozen = {"blk.0.", "token_embd"}; });
  check("evaluated", [](RunConfig& config) {
    config.evaluate_every = 1;
    config.data.validation_share = 0.1;
  });
  check("biases, positions, tied", [](RunConfig& config) { config.shape = gpt_shape(); });
  check("biases, tied, bf16, recomputed", [](RunConfig& config) {
    config.shape = gpt_shape();
    config.precision = Precision::kBfloat16;
    config.recompute = Recompute::kBlock;
  });
  check("parallel blocks", [](RunConfig& config) {
    config.shape = gpt_shape();
    config.shape.parallel_block = true;
  });
  check("norms of outputs, scaled, capped", [](RunConfig& config) {
    config.shape.norm_place = NormPlace::kBoth;
    config.shape.residual_scale = 0.5F;
    config.shape.embedding_scale = 4.0F;
    config.shape.logit_cap = 30.0F;
  });
  check("experts", [](RunConfig& config) { config.shape = tiny_expert_shape(); });
}

TEST(PipelineRun, EveryRankHasTheLossesOfOneRankAndOneVerdict) {
  RunConfig config = pipeline_run(3);
  config.shape = tiny_expert_shape();
  config.data.validation_share = 0.2;
  const auto one = run_ranks(one_rank(config));
  for (const RankResult& rank : run_ranks(config)) {
    ASSERT_TRUE(rank.result) << rank.result.error().message;
    EXPECT_TRUE(rank.result->verdict.valid) << to_string(rank.result->verdict);
    EXPECT_EQ(rank.result->validation_loss, one[0].result->validation_loss);
    ASSERT_EQ(rank.steps.size(), one[0].steps.size());
    for (std::size_t step = 0; step < rank.steps.size(); ++step) {
      EXPECT_EQ(rank.steps[step].loss, one[0].steps[step].loss);
      EXPECT_EQ(rank.steps[step].router_aux_loss, one[0].steps[step].router_aux_loss);
      EXPECT_EQ(rank.steps[step].expert_tokens, one[0].steps[step].expert_tokens);
      EXPECT_EQ(rank.steps[step].gradient_norm, one[0].steps[step].gradient_norm);
    }
  }
}

TEST(PipelineRun, WithoutDeterminismTheLossesAreThoseOfOneRankWithinRounding) {
  for (const bool tied : {false, true}) {
    RunConfig config = pipeline_run(3);
    config.parallel.deterministic = false;
    config.shape.tied_head = tied;
    const double one = run_ranks(one_rank(config))[0].steps.back().loss;
    EXPECT_NEAR(run_ranks(config)[0].steps.back().loss, one, 1e-5);
  }
}

// Fails when weights or gradients travel: of a micro-batch each stage sends its rows one way forward and one way back.
TEST(PipelineRun, WhatItSendsIsRowsAloneAndItsBubbleIsTold) {
  RunConfig config = pipeline_run(3);
  config.parallel.mirror = 0;
  const auto results = run_ranks(config);
  const std::uint64_t rows = 16 * 64 * sizeof(float), micro_batches = 6;
  for (const RankResult& rank : results) {
    ASSERT_TRUE(rank.result) << rank.result.error().message;
    EXPECT_EQ(rank.steps.back().reduced.formula_bytes, 2 * micro_batches * rows);
    EXPECT_EQ(rank.steps.back().reduced.bytes_sent, 2 * micro_batches * rows);
    EXPECT_GT(rank.result->summary.bubble_predicted, 0.1);
    EXPECT_GT(rank.result->summary.bubble_measured, 0.0);
  }
}

// Fails when a rank keeps weights of layers that are none of its own.
TEST(PipelineRun, EachRankHasTheWeightsOfItsOwnLayersAlone) {
  RunConfig config = pipeline_run(3);
  config.shape.ff_dim = 8192;  // layers of several huge pages, so that these can be given back
  config.parallel.mirror = 0;
  const auto stages = stages_of(config.parallel, config.shape, config.seq, 3, {}).value();
  const auto collectives = make_inproc_collectives(3);
  for (int rank = 0; rank < 3; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const auto trainer =
        RankTrainer::create(config, {.rank = rank, .size = 3, .collectives = collectives[at].get()}).value();
    const ParameterSet& parameters = trainer->parameters();
    for (int layer = 0; layer < config.shape.layers; ++layer) {
      const Parameter& up = **parameters.find("blk." + std::to_string(layer) + ".ffn_up.weight");
      const std::span<const float> weights = ParameterSet::part(parameters.weights(), up);
      const bool own = stages[at].first_layer <= layer && layer < stages[at].last_layer;
      // Its middle, as pages at the borders are its neighbours', too.
      EXPECT_EQ(weights[weights.size() / 2] != 0.0F, own) << "rank " << rank << ", layer " << layer;
    }
  }
}

TEST(PipelineRun, ALostRanksLayersAreTakenOverByTheOthersDownToOne) {
  for (const bool tied : {false, true}) {
    for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      RunConfig config = pipeline_run(4);
      config.steps = 8;
      config.shape.tied_head = tied;
      config.precision = precision;
      EpochRanks ranks;
      ranks.trainers.resize(4);
      (void)ranks.epoch(config, 1);
      ranks.lose(3);  // with the head
      (void)ranks.epoch(config, 3);
      ranks.lose(1);
      (void)ranks.epoch(config, 5);
      ranks.lose(1);
      EXPECT_EQ(ranks.epoch(config, -1), std::vector<std::string>(1, hash_of(one_rank(config))))
          << "tied " << tied << ", precision " << to_string(precision);
    }
  }
}

TEST(PipelineRun, ARankThatDidNotHearThatAllHadTakenOverLearnsItInTheNextEpoch) {
  RunConfig config = pipeline_run(4);
  config.steps = 6;
  EpochRanks ranks;
  ranks.trainers.resize(4);
  (void)ranks.epoch(config, 2);
  ranks.lose(3);
  (void)ranks.epoch(config, -1, 1);
  ranks.lose(2);
  EXPECT_EQ(ranks.epoch(config, -1), std::vector<std::string>(2, hash_of(one_rank(config))));
}

TEST(PipelineRun, ItsCheckpointsAreReadByOtherStrategiesAndTheOtherWayRound) {
  const TestFolder folder;
  const auto saved = [&](RunConfig config, const std::string& name) {
    config.checkpoint.directory = folder.path() + "/" + name;
    config.checkpoint.every_steps = 2;
    config.checkpoint.keep = 9;
    return config;
  };
  const std::string whole = hash_of(saved(pipeline_run(3), "pipeline"));
  for (const auto& [strategy, ranks] : std::initializer_list<std::pair<ParallelStrategy, int>>{
           {ParallelStrategy::kDdp, 1}, {ParallelStrategy::kZero3, 2}, {ParallelStrategy::kPipeline, 2}}) {
    RunConfig next = pipeline_run(ranks);
    next.parallel.strategy = strategy;
    next.resume = checkpoint_path(folder.path() + "/pipeline", 2);
    EXPECT_EQ(hash_of(next), whole) << static_cast<int>(strategy);
  }
  for (const auto& [strategy, ranks] : std::initializer_list<std::pair<ParallelStrategy, int>>{
           {ParallelStrategy::kDdp, 1}, {ParallelStrategy::kZero2, 3}}) {
    RunConfig before = pipeline_run(ranks);
    before.parallel.strategy = strategy;
    const std::string name = std::to_string(static_cast<int>(strategy));
    EXPECT_EQ(hash_of(saved(before, name)), whole);
    RunConfig next = pipeline_run(4);
    next.resume = checkpoint_path(folder.path() + "/" + name, 2);
    EXPECT_EQ(hash_of(next), whole) << static_cast<int>(strategy);
  }
}

TEST(PipelineRun, MoreRanksThanLayersAndAHeadAreRefused) {
  const auto refused = run_ranks(pipeline_run(5))[0].result;
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("a pipeline of 5 ranks for 3 layers: at most 4"));
}

}  // namespace
}  // namespace butterfly
