#include "butterfly/train/run/run_parts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "butterfly/machine/topology.h"

namespace butterfly {
namespace {

RunConfig named_run(const std::string& model, int seq) {
  RunConfig config;
  config.model = model;
  config.data.files = {"synthetic:random"};
  config.seq = seq;
  config.global_batch = config.micro_batch = 1;
  config.threads = 1;
  return config;
}

TEST(RunParts, ARotatingShapeByNameTakesTheContextOfItsSequences) {
  for (const auto& [seq, context] : {std::pair{0, 128}, {64, 128}, {128, 128}, {129, 129}}) {
    const auto parts = make_run_parts(named_run("tinytransformer-tiny", seq), {});
    ASSERT_TRUE(parts) << parts.error().message;
    EXPECT_EQ(parts->config.shape.context, context) << seq;
    EXPECT_EQ(parts->transformer->options().seq, seq == 0 ? context : seq);
  }
}

TEST(RunParts, RanksOfThisMachineDivideItsThreadsAndThoseOnWorkersDoNot) {
  const int all = detect_topology().value().usable_threads;
  RunConfig config = named_run("tinytransformer-tiny", 16);
  config.global_batch = 8;
  config.threads = 0;
  const auto threads = [&] { return make_run_parts(config, {.rank = 0, .size = 2}).value().config.threads; };
  for (const RankEngine engine : {RankEngine::kInproc, RankEngine::kTcp}) {
    config.parallel = {.ranks = 2, .engine = engine};
    EXPECT_EQ(threads(), std::max(1, all / 2));
  }
  config.parallel.workers = {"127.0.0.1:7000"};
  EXPECT_EQ(threads(), all);
}

TEST(RunParts, AShapeWithATableOfPositionsKeepsItsContext) {
  const auto parts = make_run_parts(named_run("gpt2-124m", 1025), {});
  ASSERT_FALSE(parts);
  EXPECT_NE(parts.error().message.find("seq is 1025, the model's context has 1024"), std::string::npos)
      << parts.error().message;
}

}  // namespace
}  // namespace butterfly
