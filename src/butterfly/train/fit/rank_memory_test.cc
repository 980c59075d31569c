#include "butterfly/train/fit/rank_memory.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

ModelConfig tiny() {
  ModelConfig shape = *named_config("tinytransformer-tiny");
  shape.vocab = 512;
  return shape;
}

RunConfig run_of(int ranks, ParallelStrategy strategy) {
  RunConfig config;
  config.model = "tinytransformer-tiny";
  config.data.files = {"synthetic:markov"};
  config.seq = 32;
  config.global_batch = 16;
  config.micro_batch = 2;
  config.parallel.ranks = ranks;
  config.parallel.strategy = strategy;
  config.parallel.engine = RankEngine::kTcp;
  config.parallel.mirror = 0;
  config.parallel.bucket_bytes = 64 << 10;
  return config;
}

RankMemory memory_of(const RunConfig& run) {
  const auto plan = MemoryPlan::create(tiny(), run, {.process_bytes = 1000});
  EXPECT_TRUE(plan) << plan.error().message;
  const auto memory = plan->fullest(run);
  EXPECT_TRUE(memory) << memory.error().message;
  return *memory;
}

std::uint64_t flat_bytes() {
  return static_cast<std::uint64_t>(ParameterSet::create(tiny())->padded_size()) * sizeof(float);
}

// Fails when anything that a run allocates is forgotten, or counted twice.
TEST(RankMemory, OfOneRankItIsWhatItsTransformerAndOptimizerHold) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kBlock}) {
      RunConfig run = run_of(1, ParallelStrategy::kDdp);
      run.recompute = recompute;
      run.precision = precision;
      const auto made = TrainableTransformer::create(
          tiny(), {.precision = precision, .recompute = recompute, .micro_batch = 2, .seq = 32});
      ASSERT_TRUE(made);
      const TrainingMemory held = (*made)->memory();
      const RankMemory memory = memory_of(run);
      EXPECT_EQ(memory.weight_bytes, held.parameter_bytes);
      EXPECT_EQ(memory.gradient_bytes, held.gradient_bytes);
      EXPECT_EQ(memory.activation_bytes, held.activation_bytes + held.scratch_bytes);
      EXPECT_EQ(memory.moment_bytes, 2 * flat_bytes());
      EXPECT_EQ(memory.peak_bytes(), 1000 + 4 * flat_bytes() +
                                         (precision == Precision::kBfloat16 ? flat_bytes() / 2 : 0) +
                                         memory.activation_bytes);
    }
  }
}

// 16, 8 + 8/n, 4 + 12/n and 16/n bytes for each parameter. Fails when a strategy divides what it should not, or does
// not.
TEST(RankMemory, StateIsDividedAsTheFormulasSay) {
  constexpr double kRanks = 4.0;
  const std::pair<ParallelStrategy, double> formulas[] = {{ParallelStrategy::kDdp, 4.0},
                                                          {ParallelStrategy::kZero1, 2.0 + 2.0 / kRanks},
                                                          {ParallelStrategy::kZero2, 1.0 + 3.0 / kRanks},
                                                          {ParallelStrategy::kZero3, 4.0 / kRanks}};
  for (const auto& [strategy, arrays] : formulas) {
    const RankMemory memory = memory_of(run_of(4, strategy));
    const auto state = static_cast<double>(memory.weight_bytes + memory.gradient_bytes + memory.moment_bytes);
    EXPECT_NEAR(state / static_cast<double>(flat_bytes()), arrays, 0.1) << static_cast<int>(strategy);
    EXPECT_EQ(memory.passing_bytes > 0, strategy >= ParallelStrategy::kZero2);
  }
}

TEST(RankMemory, MirrorsAndSumsThatWaitTakeMemory) {
  RunConfig run = run_of(4, ParallelStrategy::kZero3);
  const RankMemory alone = memory_of(run);
  run.parallel.mirror = 1;
  EXPECT_NEAR(static_cast<double>(memory_of(run).moment_bytes), 2.0 * static_cast<double>(alone.moment_bytes),
              0.1 * static_cast<double>(alone.moment_bytes));
  // Threads have none.
  run.parallel.engine = RankEngine::kInproc;
  EXPECT_EQ(memory_of(run).moment_bytes, alone.moment_bytes);
  // A rank computes leaves 0 to 3 and holds 0, then {0, 1} and 2: two at most beside the one in the gradients.
  RunConfig same_bits = run_of(2, ParallelStrategy::kDdp);
  const std::uint64_t gradients = memory_of(same_bits).gradient_bytes;
  same_bits.parallel.deterministic = true;
  EXPECT_GE(memory_of(same_bits).gradient_bytes, gradients + 2 * flat_bytes());
}

// Fails when what rank 0 alone has is left out.
TEST(RankMemory, RankZeroHasWhatIsWrittenAndWhatOthersAreGiven) {
  RunConfig run = run_of(2, ParallelStrategy::kDdp);
  const std::uint64_t before = memory_of(run).peak_bytes();
  run.checkpoint.directory = "saved";
  EXPECT_EQ(memory_of(run).peak_bytes(), before + 3 * flat_bytes());
  run.checkpoint.asynchronous = false;
  EXPECT_EQ(memory_of(run).peak_bytes(), before);
  // Ranks that hold parts copy them while they are written.
  RunConfig divided = run_of(2, ParallelStrategy::kZero2);
  divided.parallel.mirror = 0;
  const std::uint64_t unsaved = memory_of(divided).peak_bytes();
  divided.checkpoint.directory = "saved";
  EXPECT_NEAR(static_cast<double>(memory_of(divided).peak_bytes() - unsaved), 1.5 * flat_bytes(), 0.1 * flat_bytes());
  RunConfig over_workers = run_of(1, ParallelStrategy::kZero3);
  over_workers.parallel.workers = {"a:1", "b:1", "c:1"};
  EXPECT_GT(memory_of(over_workers).first_bytes, flat_bytes());
}

}  // namespace
}  // namespace butterfly
