#include "butterfly/train/run/run_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "butterfly/machine/topology.h"
#include "butterfly/train/run/tiny_run_test.h"

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

TEST(RunParts, ADeterministicRunChoosesTheSameMicroBatchForAnyNumberOfRanks) {
  RunConfig config = named_run("tinytransformer-tiny", 16);
  config.micro_batch = 0;
  config.parallel.deterministic = true;
  for (const auto& [batch, micro] : {std::pair{8, 1}, {64, 4}, {96, 6}, {128, 8}, {7, 1}}) {
    config.global_batch = batch;
    for (const int ranks : {1, 4}) {
      config.parallel.ranks = ranks;
      const auto parts = make_run_parts(config, {.rank = 0, .size = ranks});
      ASSERT_TRUE(parts) << parts.error().message;
      EXPECT_EQ(parts->config.micro_batch, micro) << batch << " on " << ranks;
    }
  }
  config.parallel.deterministic = false;
  config.global_batch = 64;
  config.parallel.ranks = 1;
  EXPECT_EQ(make_run_parts(config, {}).value().config.micro_batch, 8);
}

TEST(RunParts, APlaceThatCannotBeWrittenToIsRefusedBeforeTheFirstStep) {
  const TestFolder folder;
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "x";
  RunConfig config = named_run("tinytransformer-tiny", 16);
  const auto refusal = [&](const std::string& out) {
    config.out = out;
    const auto parts = make_run_parts(config, {});
    return parts ? "" : parts.error().message;
  };
  EXPECT_NE(refusal(file + "/model.gguf").find(file + "/model.gguf: cannot be created"), std::string::npos);
  EXPECT_NE(refusal(folder.path() + "/none/model.gguf").find("No such file"), std::string::npos);
  EXPECT_NE(refusal(file + "/below/model").find(file + " exists and is no directory"), std::string::npos);
  EXPECT_NE(refusal("/dev/full").find("/dev/full exists and is no directory"), std::string::npos);
  EXPECT_EQ(refusal(folder.path() + "/model.gguf"), "");
  EXPECT_EQ(refusal(folder.path() + "/new/model"), "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "nothing is left";
  config.out.clear();
  config.checkpoint.directory = file + "/saved";
  EXPECT_NE(make_run_parts(config, {}).error().message.find(file + "/saved: cannot be created"), std::string::npos);
}

}  // namespace
}  // namespace butterfly
