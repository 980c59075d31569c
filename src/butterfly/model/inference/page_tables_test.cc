#include "butterfly/model/inference/page_tables.h"

#include <gtest/gtest.h>

#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

constexpr SequenceId kA{1};
constexpr SequenceId kB{2};
constexpr SequenceId kC{3};
constexpr int kPage = kKvPageTokens;

TEST(PageTables, PagesAreUsedAgainOnceNobodyHasThem) {
  PageTables tables;
  ASSERT_TRUE(tables.reserve(kA, 3 * kPage));
  ASSERT_TRUE(tables.share(kA, kB, 2 * kPage));
  EXPECT_EQ(tables.used(), 3);
  tables.release(kA);
  EXPECT_EQ(tables.used(), 2) << "the other has two of them";
  ASSERT_TRUE(tables.reserve(kC, kPage));
  EXPECT_EQ(tables.created(), 3);
  tables.release(kB);
  tables.release(kC);
  tables.release(kC);
  EXPECT_EQ(tables.used(), 0);
}

TEST(PageTables, WhatIsSharedIsNotWrittenByTheOther) {
  PageTables tables;
  ASSERT_TRUE(tables.reserve(kA, kPage));
  ASSERT_TRUE(tables.share(kA, kB, kPage));
  ASSERT_TRUE(tables.reserve(kA, 2 * kPage));
  ASSERT_TRUE(tables.reserve(kB, 2 * kPage));
  EXPECT_EQ(tables.pages(kA)[0], tables.pages(kB)[0]);
  EXPECT_NE(tables.pages(kA)[1], tables.pages(kB)[1]);
}

TEST(PageTables, ALimitHoldsAndNothingChangesWhereItWouldBePassed) {
  PageTables tables(2);
  ASSERT_TRUE(tables.reserve(kA, kPage + 1));
  EXPECT_FALSE(tables.reserve(kB, 1));
  EXPECT_FALSE(tables.has(kB));
  EXPECT_FALSE(tables.reserve(kA, 3 * kPage));
  EXPECT_EQ(tables.pages(kA).size(), 2u);
  EXPECT_TRUE(tables.share(kA, kB, kPage)) << "takes no page";
}

TEST(PageTables, OnlyWholePagesOfOneThatHasThemAreShared) {
  PageTables tables;
  ASSERT_TRUE(tables.reserve(kA, kPage));
  EXPECT_FALSE(tables.share(kA, kB, kPage - 1));
  EXPECT_FALSE(tables.share(kA, kB, 2 * kPage));
  EXPECT_FALSE(tables.share(kA, kB, 0));
  EXPECT_FALSE(tables.share(kA, kB, -kPage));
  EXPECT_FALSE(tables.share(kC, kB, kPage));
  ASSERT_TRUE(tables.reserve(kB, 1));
  EXPECT_FALSE(tables.share(kA, kB, kPage)) << "it has pages already";
}

}  // namespace
}  // namespace butterfly
