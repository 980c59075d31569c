#include "butterfly/plan/shares/share_groups.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

StageAssignment share(int first_layer, int last_layer, int first_slice, int last_slice) {
  return {.first_layer = first_layer,
          .last_layer = last_layer,
          .embedding = first_layer == 0,
          .slices = {first_slice, last_slice}};
}

TEST(ShareGroups, AStageIsOneShareOrTheSharesThatDivideItsSlices) {
  const std::vector<StageAssignment> shares{share(0, 2, 0, 32),  share(2, 3, 0, 12), share(2, 3, 12, 16),
                                            share(2, 3, 16, 32), share(3, 5, 0, 32), share(5, 6, 0, 4),
                                            share(5, 6, 4, 32)};
  const std::vector<ShareGroup> expected{{0, 1}, {1, 4}, {4, 5}, {5, 7}};
  EXPECT_EQ(share_groups(shares).value(), expected);
  EXPECT_EQ(pipeline_stages(shares), 4);
  EXPECT_TRUE(share_groups({}).value().empty());
}

TEST(ShareGroups, SlicesThatAreMissingTwiceThereOrEmptyAreRefused) {
  for (const auto& [first, second] : std::vector<std::pair<SliceRange, SliceRange>>{{{0, 16}, {20, 32}},
                                                                                    {{0, 16}, {12, 32}},
                                                                                    {{4, 16}, {16, 32}},
                                                                                    {{0, 16}, {16, 28}},
                                                                                    {{0, 16}, {16, 16}},
                                                                                    {{0, 16}, {16, 36}}}) {
    const std::vector<StageAssignment> shares{share(0, 2, first.first, first.last),
                                              share(0, 2, second.first, second.last)};
    const auto groups = share_groups(shares);
    ASSERT_FALSE(groups) << first.last << " " << second.first;
    EXPECT_EQ(groups.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(ShareGroups, ExpertsHaveARunOfTheirOwn) {
  const auto with = [](SliceRange slices, SliceRange experts) {
    StageAssignment one = share(0, 2, 0, 32);
    one.slices = HeldSlices(slices, experts);
    return one;
  };
  const std::vector<StageAssignment> shares{with({0, 0}, {0, 4}), with({0, 32}, {4, 4}), with({32, 32}, {4, 32}),
                                            share(2, 3, 0, 12), share(2, 3, 12, 32)};
  EXPECT_EQ(share_groups(shares).value(), (std::vector<ShareGroup>{{0, 3}, {3, 5}}));
  EXPECT_EQ(groups_of(shares).size(), 2u);
  for (const auto& [a, b] : std::vector<std::pair<SliceRange, SliceRange>>{
           {{0, 4}, {8, 32}}, {{0, 8}, {4, 32}}, {{0, 8}, {8, 31}}, {{4, 8}, {8, 32}}, {{0, 8}, {8, 36}}}) {
    EXPECT_FALSE(share_groups(std::vector{with({0, 16}, a), with({16, 32}, b)})) << a.last << " " << b.first;
  }
}

TEST(ShareGroups, MembersOfAGroupHaveTheSameLayersAndEnds) {
  std::vector<StageAssignment> shares{share(0, 2, 0, 16), share(0, 3, 16, 32)};
  EXPECT_FALSE(share_groups(shares));
  shares[1].last_layer = 2;
  EXPECT_TRUE(share_groups(shares));
  shares[1].head = true;
  EXPECT_FALSE(share_groups(shares));
}

}  // namespace
}  // namespace butterfly
