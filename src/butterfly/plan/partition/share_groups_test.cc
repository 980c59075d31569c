#include "butterfly/plan/partition/share_groups.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

StageAssignment share(int first_layer, int last_layer, int first_slice, int last_slice) {
  return {.first_layer = first_layer,
          .last_layer = last_layer,
          .embedding = first_layer == 0,
          .slices = {.first = first_slice, .last = last_slice}};
}

TEST(ShareGroups, AStageIsOneShareOrTheSharesThatDivideItsSlices) {
  const std::vector<StageAssignment> shares{share(0, 2, 0, 8), share(2, 3, 0, 3), share(2, 3, 3, 4), share(2, 3, 4, 8),
                                            share(3, 5, 0, 8), share(5, 6, 0, 1), share(5, 6, 1, 8)};
  const std::vector<ShareGroup> expected{{0, 1}, {1, 4}, {4, 5}, {5, 7}};
  EXPECT_EQ(share_groups(shares).value(), expected);
  EXPECT_EQ(pipeline_stages(shares), 4);
  EXPECT_TRUE(share_groups({}).value().empty());
}

TEST(ShareGroups, SlicesThatAreMissingTwiceThereOrEmptyAreRefused) {
  for (const auto& [first, second] : std::vector<std::pair<SliceRange, SliceRange>>{{{0, 4}, {5, 8}},
                                                                                    {{0, 4}, {3, 8}},
                                                                                    {{1, 4}, {4, 8}},
                                                                                    {{0, 4}, {4, 7}},
                                                                                    {{0, 4}, {4, 4}},
                                                                                    {{0, 4}, {4, 9}}}) {
    const std::vector<StageAssignment> shares{share(0, 2, first.first, first.last),
                                              share(0, 2, second.first, second.last)};
    const auto groups = share_groups(shares);
    ASSERT_FALSE(groups) << first.last << " " << second.first;
    EXPECT_EQ(groups.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(ShareGroups, MembersOfAGroupHaveTheSameLayersAndEnds) {
  std::vector<StageAssignment> shares{share(0, 2, 0, 4), share(0, 3, 4, 8)};
  EXPECT_FALSE(share_groups(shares));
  shares[1].last_layer = 2;
  EXPECT_TRUE(share_groups(shares));
  shares[1].head = true;
  EXPECT_FALSE(share_groups(shares));
}

}  // namespace
}  // namespace butterfly
