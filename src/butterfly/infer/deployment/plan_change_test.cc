#include "butterfly/infer/deployment/plan_change.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

TEST(PlanChange, NodesWhoseLayersChangeAreNamed) {
  const std::vector<NodeDescriptor> nodes{{.address = "a:1"}, {.address = "b:1"}, {.address = "c:1"}};
  Plan before, after;
  before.shares = {{.node = 0, .work = {.first_layer = 0, .last_layer = 2}},
                   {.node = 1, .work = {.first_layer = 2, .last_layer = 4}}};
  after.shares = {{.node = 0, .work = {.first_layer = 0, .last_layer = 1}},
                  {.node = 2, .work = {.first_layer = 1, .last_layer = 4}}};
  EXPECT_EQ(describe_change(before, after, nodes),
            "a:1 layers 0-0 (before: 0-1), b:1 layers none (before: 2-3), c:1 layers 1-3 (before: none)");
  EXPECT_EQ(describe_change(before, before, nodes), "no layer moves");
}

}  // namespace
}  // namespace butterfly
