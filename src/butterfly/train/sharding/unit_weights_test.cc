#include "butterfly/train/sharding/unit_weights.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "butterfly/base/read_file.h"
#include "butterfly/base/sanitized_test.h"
#include "butterfly/train/gradients/rank_shards.h"
#include "butterfly/train/sharding/thread_ranks_test.h"

namespace butterfly {
namespace {

/// A rank with its part of the weights alone.
struct PartRank {
  PartRank(const RunConfig& config, Collectives& collectives)
      : transformer(
            TrainableTransformer::create(
                config.shape,
                {.micro_batch = 1, .seq = 8, .memory = parameter_memory_of(config.parallel, collectives.size())})
                .value()) {
    transformer->initialize(1);
    ParameterSet& parameters = transformer->parameters();
    const std::span<const float> made = parameters.own_weights();
    whole.assign(made.begin(), made.end());
    auto work = share_work(config, collectives.size(), {});
    shards = make_rank_shards(config.parallel, std::move(*work), collectives, *transformer).value();
    for_each_gap(shards->held, {.begin = 0, .end = parameters.padded_size()},
                 [&](ParameterRange gap) { parameters.release_own_weights(gap); });
    shards->weights.updated();
    for (int unit = 0; unit < shards->map.units(); ++unit) shards->weights.release(unit);
  }

  std::unique_ptr<TrainableTransformer> transformer;
  std::vector<float> whole;
  std::unique_ptr<RankShards> shards;
};

/// Of every 61st weight: all of them take minutes where a sanitizer looks at each.
double share_of_gathered(ParameterSet& parameters) {
  const std::span<const float> all = parameters.weights();
  std::size_t seen = 0, gathered = 0;
  for (std::size_t i = 0; i < all.size(); i += 61, ++seen) gathered += all[i] != 0.0F ? 1 : 0;
  return static_cast<double>(gathered) / static_cast<double>(seen);
}

RunConfig wide_run(ParallelStrategy strategy) {
  RunConfig config = divided_run(strategy, 2);
  config.shape.layers = 6;
  config.steps = 1;
  config.parallel.mirror = 0;
  return config;
}

// Fails when a unit stays while another is there.
TEST(UnitWeights, AreAllThatRanksHoldAndAUnitAtATime) {
  RunConfig config = wide_run(ParallelStrategy::kZero3);
  config.shape.model_dim = 256;  // a layer is several pages
  config.shape.head_dim = config.shape.rope.dim = 128;
  config.shape.ff_dim = 2048;
  const auto collectives = make_inproc_collectives(2);
  std::jthread other([&] {
    PartRank rank(config, *collectives[1]);
    EXPECT_TRUE(give_units(rank.shards->weights, *collectives[1]));
    EXPECT_EQ(share_of_gathered(rank.transformer->parameters()), 0.0);
  });
  PartRank rank(config, *collectives[0]);
  ParameterSet& parameters = rank.transformer->parameters();
  UnitWeights weights(parameters, rank.shards->map, rank.shards->weights, *collectives[0], "all");
  double most = 0.0;
  for (const Parameter& parameter : parameters.list()) {
    const auto view = weights.find(parameter.name);
    ASSERT_TRUE(view) << view.error().message;
    const std::span<const float> expected(rank.whole.data() + parameter.offset,
                                          static_cast<std::size_t>(parameter.size()));
    EXPECT_TRUE(std::ranges::equal(view->bytes, std::as_bytes(expected))) << parameter.name;
    most = std::max(most, share_of_gathered(parameters));
  }
  EXPECT_FALSE(weights.find("blk.6.attn_q.weight"));
  ASSERT_TRUE(weights.finish());
  EXPECT_LT(most, 0.5) << "the largest unit";
  EXPECT_EQ(share_of_gathered(parameters), 0.0);
}

TEST(UnitWeights, ModelsOfRanksThatHoldPartsAreWrittenAsThoseOfOneRank) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "unit_weights";
  std::filesystem::create_directories(folder);
  const auto written = [&](ParallelStrategy strategy, int ranks, const std::string& name) {
    RunConfig config = wide_run(strategy);
    config.parallel.ranks = ranks;
    config.out = (folder / name).string();
    hash_of(config);
    const bool gguf = name.ends_with(".gguf");
    return read_file(gguf ? config.out : config.out + "/model.safetensors", std::size_t{1} << 30).value();
  };
  const std::string file = written(ParallelStrategy::kDdp, 1, "one.gguf");
  for (const ParallelStrategy strategy :
       {ParallelStrategy::kZero1, ParallelStrategy::kZero3, ParallelStrategy::kHybrid, ParallelStrategy::kPipeline}) {
    if (kSanitized && strategy < ParallelStrategy::kZero3) continue;
    EXPECT_TRUE(written(strategy, 2, "parts.gguf") == file) << static_cast<int>(strategy);
  }
  EXPECT_TRUE(written(ParallelStrategy::kZero3, 2, "parts") == written(ParallelStrategy::kDdp, 1, "one"));
  // Rank 0 cannot write: the others do not wait for what it will not ask for.
  RunConfig config = wide_run(ParallelStrategy::kZero3);
  config.out = "/dev/full/model.gguf";
  const auto results = run_ranks(config);
  EXPECT_FALSE(results[0].result);
}

}  // namespace
}  // namespace butterfly
