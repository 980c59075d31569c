#include "butterfly/study/advice/remedies.h"

#include <gtest/gtest.h>

namespace butterfly::study {
namespace {

using Words = std::vector<std::string>;

Remedy threads(const char* count) {
  return {.flags = {{"--threads", count}}};
}

TEST(Remedies, AFlagTakesThePlaceOfWhatTheCommandSaidByAnyOfItsNames) {
  EXPECT_EQ(with_flags({"train", "--steps", "4"}, threads("1")), (Words{"train", "--steps", "4", "--threads", "1"}));
  EXPECT_EQ(with_flags({"train", "--threads", "2", "--steps", "4"}, threads("1")),
            (Words{"train", "--steps", "4", "--threads", "1"}));
  EXPECT_EQ(with_flags({"generate", "--threads=2", "-p", "-t"}, threads("1")),
            (Words{"generate", "-p", "--threads", "1"}));
  EXPECT_EQ(with_flags({"generate", "-t", "2", "-n", "8"}, threads("1")),
            (Words{"generate", "-n", "8", "--threads", "1"}));
}

Study training_study() {
  Study study;
  study.facts = {{"train.micro_batch", "4"}, {"train.global_batch", "8"}};
  study.workloads.emplace_back().kind = WorkKind::kTrain;
  return study;
}

Cause cause(const char* id, Heading heading, double speedup = 1.0, const char* remedy = "") {
  Cause one;
  one.remedy = remedy;
  one.id = id;
  one.heading = heading;
  one.speedup = speedup;
  return one;
}

TEST(Remedies, EachCauseWithAFlagHasOneAndNoneComesTwice) {
  Advice advice;
  advice.causes = {cause("separate_qkv", Heading::kSeparateQkv, 1.25, "--fusion all (or qkv)"),
                   cause("separate_gate_up", Heading::kSeparateGateUp, 1.25, "--fusion all (or swiglu)"),
                   cause("small_batch", Heading::kUtilisation), cause("foreign_load", Heading::kPlacement),
                   cause("fragmentation", Heading::kFragmentation)};
  const std::vector<Remedy> found = remedies(training_study(), advice);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(describe(found[0]), "--fusion all");
  EXPECT_NEAR(found[0].speedup, 1.0 / 0.6, 1e-9) << "a fifth of the time and another fifth";
  EXPECT_EQ(describe(found[1]), "--micro-batch 8");
  EXPECT_EQ(describe(found[2]), "MALLOC_ARENA_MAX=2");
}

TEST(Remedies, AMicroBatchGrowsToTheWholeBatchAndNoFurther) {
  Study study = training_study();
  study.facts["train.micro_batch"] = "8";
  Advice advice;
  advice.causes = {cause("small_batch", Heading::kUtilisation)};
  EXPECT_TRUE(remedies(study, advice).empty());
}

}  // namespace
}  // namespace butterfly::study
