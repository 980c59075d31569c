#include "butterfly/stage/stage_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/model/core/random_weights.h"

namespace butterfly {
namespace {

using ::testing::IsEmpty;

/// A source that notes what it is asked for.
class Counted final : public WeightSource {
 public:
  explicit Counted(std::shared_ptr<const WeightSource> source) : source_(std::move(source)) {}
  std::vector<WeightInfo> list() const override { return source_->list(); }
  Result<WeightView> find(const std::string& name) const override {
    asked.push_back(name);
    return source_->find(name);
  }
  bool contains(const std::string& name) const override { return source_->contains(name); }
  std::string description() const override { return source_->description(); }
  mutable std::vector<std::string> asked;

 private:
  std::shared_ptr<const WeightSource> source_;  // the checkpoint's
};

class StagePartsTest : public ::testing::Test {
 protected:
  Status complete(const StageAssignment& assignment, const std::stop_token& stop = {}) {
    source->asked.clear();
    return parts.complete(checkpoint.config, assignment,
                          [&]() -> Result<std::shared_ptr<const WeightSource>> {
                            ++found;
                            return source;
                          },
                          team, {.stop = stop, .progress = [this](const LoadProgress& at) { told.push_back(at); }});
  }

  static ModelConfig config() {
    ModelConfig small = *named_config("llama-1.1b");
    small.layers = 4;
    small.model_dim = 64;
    small.heads = 4;
    small.kv_heads = 2;
    small.head_dim = 16;
    small.ff_dim = 96;
    small.vocab = 600;
    small.rope.dim = 16;
    return small;
  }

  const Checkpoint checkpoint = *random_checkpoint(config(), {.seed = 3});
  const std::shared_ptr<Counted> source = std::make_shared<Counted>(checkpoint.weights);
  ThreadTeam team{1};
  StageParts parts;
  int found = 0;
  std::vector<LoadProgress> told;
};

TEST_F(StagePartsTest, OnlyWhatIsMissingIsLoaded) {
  ASSERT_TRUE(complete({.first_layer = 0, .last_layer = 2, .embedding = true}));
  EXPECT_FALSE(source->asked.empty());
  ASSERT_TRUE(complete({.first_layer = 1, .last_layer = 3, .embedding = true}));
  for (const std::string& name : source->asked) EXPECT_EQ(name.substr(0, 6), "blk.2.") << name;
  EXPECT_EQ(found, 2);
}

TEST_F(StagePartsTest, WhereNothingIsMissingTheSourceIsNotEvenLookedFor) {
  const StageAssignment all{.first_layer = 0, .last_layer = 4, .embedding = true, .head = true};
  ASSERT_TRUE(complete(all));
  ASSERT_TRUE(complete(all));
  ASSERT_TRUE(complete({.first_layer = 2, .last_layer = 3}));
  EXPECT_EQ(found, 1);
}

TEST_F(StagePartsTest, OtherSlicesAreOtherPartsAndEachHoldsItsShare) {
  const StageAssignment all{.first_layer = 0, .last_layer = 4, .embedding = true, .head = true};
  StageAssignment left = all;
  left.slices = {0, 12};
  StageAssignment right = all;
  right.slices = {12, 32};
  ASSERT_TRUE(complete(all));
  const std::uint64_t whole = parts.bytes();
  const std::uint64_t missing = *parts.missing_bytes(checkpoint.config, std::span(&left, 1));
  ASSERT_TRUE(complete(left));
  EXPECT_EQ(parts.bytes(), whole + parts.bytes(left));
  EXPECT_LT(parts.bytes(left), whole / 2);
  EXPECT_NEAR(static_cast<double>(parts.bytes(left)), static_cast<double>(missing), 0.1 * static_cast<double>(missing));
  ASSERT_TRUE(complete(right));
  // Together they hold one model, plus what each of them needs: norms, and key/value heads that both read.
  EXPECT_GE(parts.bytes(left) + parts.bytes(right), whole);
  EXPECT_LT(parts.bytes(left) + parts.bytes(right), whole + whole / 4);
  ASSERT_TRUE(complete(left));
  EXPECT_THAT(source->asked, IsEmpty()) << "they survive each other";
  parts.trim(std::span(&left, 1), 0);
  EXPECT_EQ(parts.bytes(), parts.bytes(left));
}

TEST_F(StagePartsTest, OfOtherSlicesTheExpertsOfBothAreOffered) {
  ModelConfig config = checkpoint.config;
  config.moe = {.experts = 8, .experts_used = 2, .ff_dim = 32};
  const Checkpoint experts = *random_checkpoint(config, {.seed = 4});
  const auto find = [&]() -> Result<std::shared_ptr<const WeightSource>> { return experts.weights; };
  StageAssignment before{.first_layer = 0, .last_layer = 1};
  before.slices = HeldSlices({0, 16}, {0, 12});
  ASSERT_TRUE(parts.complete(config, before, find, team, {}));
  StageAssignment after = before;
  after.slices = HeldSlices({16, 32}, {4, 32});
  const auto kept = parts.kept_for(config, after);
  for (int expert = 0; expert < 8; ++expert) {
    const std::string name = fmt::format("blk.0.ffn_up_exps.{}.weight", expert);
    EXPECT_EQ(kept.contains(name), expert < 3) << name;
  }
  EXPECT_FALSE(kept.contains("blk.0.attn_q.weight")) << "no slice of it is the same";
}

TEST_F(StagePartsTest, AnotherModelsPartsAreDropped) {
  parts.set_model("a", {});
  ASSERT_TRUE(complete({.first_layer = 0, .last_layer = 2}));
  parts.set_model("a", {});
  EXPECT_GT(parts.bytes(), 0u);
  parts.set_model("b", {});
  EXPECT_EQ(parts.bytes(), 0u);
}

TEST_F(StagePartsTest, RoomIsMadeByWhatIsNotNeeded) {
  ASSERT_TRUE(complete({.first_layer = 0, .last_layer = 4, .embedding = true}));
  const std::vector<StageAssignment> needed{{.first_layer = 1, .last_layer = 2}, {.first_layer = 3, .last_layer = 4}};
  const std::uint64_t needed_bytes = parts.bytes(needed[0]) + parts.bytes(needed[1]);
  parts.trim(needed, parts.bytes());
  EXPECT_GT(parts.bytes(), needed_bytes) << "there was room";
  parts.trim(needed, 0);
  EXPECT_EQ(parts.bytes(), needed_bytes);
  ASSERT_TRUE(complete(needed[0]) && complete(needed[1]));
  EXPECT_THAT(source->asked, IsEmpty());
}

TEST_F(StagePartsTest, WhatIsMissingIsKnownBeforehand) {
  const StageAssignment all{.first_layer = 0, .last_layer = 4, .embedding = true, .head = true};
  const std::uint64_t missing = *parts.missing_bytes(checkpoint.config, std::span(&all, 1));
  ASSERT_TRUE(complete(all));
  EXPECT_NEAR(static_cast<double>(parts.bytes()), static_cast<double>(missing), 0.1 * static_cast<double>(missing));
  EXPECT_EQ(*parts.missing_bytes(checkpoint.config, std::span(&all, 1)), 0u);
}

TEST_F(StagePartsTest, LoadingTellsHowFarItIsFromNothingToAll) {
  const StageAssignment all{.first_layer = 0, .last_layer = 4, .embedding = true, .head = true};
  ASSERT_TRUE(complete(all));
  ASSERT_EQ(told.size(), 7u) << "the beginning, an embedding, four blocks, a head";
  EXPECT_EQ(told.front().done, 0);
  EXPECT_TRUE(std::ranges::is_sorted(told, std::ranges::less{}, &LoadProgress::done));
  EXPECT_EQ(told.back().done, 1);
  EXPECT_EQ(told.back().packed_bytes, parts.bytes());
  told.clear();
  ASSERT_TRUE(complete(all));
  EXPECT_THAT(told, IsEmpty());
}

TEST_F(StagePartsTest, ALoadThatIsNotWantedAnyMoreEnds) {
  std::stop_source stop;
  stop.request_stop();
  const Status status = complete({.first_layer = 0, .last_layer = 4}, stop.get_token());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace butterfly
