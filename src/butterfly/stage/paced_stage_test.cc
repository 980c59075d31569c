#include "butterfly/stage/paced_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "butterfly/model/core/random_weights.h"

namespace butterfly {
namespace {

/// A thread that computes for 1 us between two looks at its clock and gets a core for that once in a second.
EmulationClock starved(std::uint64_t& looks, std::uint64_t& slept_until) {
  return {.wall_ns = [&] { return std::max(looks * 1'000'000'000, slept_until); },
          .processor_ns = [&] { return ++looks * 1000; },
          .sleep_until = [&](std::uint64_t wall_ns) { slept_until = wall_ns; }};
}

// Fails where an emulated machine is called busy while others have the real one's cores: groups of them that share few
// cores would look unbalanced, and be taken apart.
TEST(PacedStage, AnEmulatedMachineIsBusyForWhatItsWorkTakesAtItsSpeed) {
  ModelConfig config = *named_config("butterfly-demo");
  config.layers = 1;
  const Checkpoint checkpoint = *random_checkpoint(config, {.seed = 3});
  const StageAssignment all{.last_layer = 1, .embedding = true, .head = true};
  auto stage = Stage::load(config, all, checkpoint.weights, {});
  ASSERT_TRUE(stage) << stage.error().message;
  StageCounters counters;
  std::uint64_t looks = 0, slept_until = 0;
  PacedStage paced(std::move(*stage),
                   {.emulated_speed = 0.25, .emulation_clock = starved(looks, slept_until), .counters = &counters});
  for (std::uint64_t step = 1; step <= 3; ++step) {
    Step one;
    one.id = step;
    one.batch.runs = {{.sequence = SequenceId{1}, .position = static_cast<int>(step) - 1, .rows = 1, .logits_from = 0}};
    one.tensor = *Tensor::allocate(*Pool::shared(), DType::kI32, {1});
    std::memset(one.tensor.mutable_view().bytes().data(), 0, sizeof(std::int32_t));
    ASSERT_TRUE(paced.forward(one));
    EXPECT_EQ(counters.steps, step);
    EXPECT_EQ(counters.busy_ns, step * 4000) << "1 us of computing at a quarter of the speed";
  }
}

}  // namespace
}  // namespace butterfly
