#include "butterfly/cluster/control_link.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace butterfly {
namespace {

NodeDescriptor node() {
  NodeDescriptor node;
  node.name = "left";
  node.threads = 2;
  node.products = {{"f16", 10.5, 80}, {"q4_0", 20, 160}};
  return node;
}

TEST(ControlLink, ANodesProductsTravelWithIt) {
  control::Node message;
  store(node(), message);
  const auto heard = read_node(message);
  ASSERT_TRUE(heard) << heard.error().message;
  EXPECT_EQ(heard->products, node().products);
}

TEST(ControlLink, ProductsThatNoNodeCanHaveAreRefused) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const ProductRate& bad : {ProductRate{"q9_9", 1, 1}, ProductRate{"", 1, 1}, ProductRate{"f16", -1, 1},
                                 ProductRate{"f16", 1, kInfinity}, ProductRate{"f16", std::nan(""), 1}}) {
    NodeDescriptor said = node();
    said.products.push_back(bad);
    control::Node message;
    store(said, message);
    const auto heard = read_node(message);
    ASSERT_FALSE(heard) << bad.type;
    EXPECT_EQ(heard.error().code, ErrorCode::kProtocol);
  }
  NodeDescriptor many = node();
  many.products.resize(17, {"f16", 1, 1});
  control::Node message;
  store(many, message);
  EXPECT_FALSE(read_node(message));
}

/// Member 1 of 3 of the second of two stages.
control::Assign member_of_a_group() {
  Assignment assignment;
  assignment.epoch = Epoch(7);
  assignment.stage = {.first_layer = 2, .last_layer = 4, .head = true, .lanes = {.first = 3, .last = 5}};
  assignment.rank = Rank(1);
  assignment.stages = 2;
  assignment.group = {"a:1", "b:2", "c:3"};
  assignment.member = 1;
  control::Assign message;
  store(assignment, message);
  return message;
}

TEST(ReadAssignment, AMemberOfATensorGroupLearnsItsLanesAndWhoTheOthersAre) {
  const auto read = read_assignment(member_of_a_group());
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->stage.lanes, (LaneRange{.first = 3, .last = 5}));
  EXPECT_EQ(read->group, (std::vector<std::string>{"a:1", "b:2", "c:3"}));
  EXPECT_EQ(read->member, 1);
  EXPECT_FALSE(read->leads());
  EXPECT_EQ(describe(*read), "stage 2 of 2, lanes 3-4");
}

TEST(ReadAssignment, GroupsThatContradictThemselvesAreRefused) {
  const std::vector<std::pair<const char*, std::function<void(control::Assign&)>>> spoilt{
      {"a member beyond the group", [](auto& m) { m.set_member(3); }},
      {"a member before the group", [](auto& m) { m.set_member(-1); }},
      {"no lanes", [](auto& m) { m.mutable_stage()->set_last_lane(3); }},
      {"lanes beyond the last", [](auto& m) { m.mutable_stage()->set_last_lane(9); }},
      {"lanes before the first", [](auto& m) { m.mutable_stage()->set_first_lane(-1); }},
      {"lanes without a group", [](auto& m) { m.clear_group(), m.set_member(0); }},
      {"all lanes in a group",
       [](auto& m) { m.mutable_stage()->set_first_lane(0), m.mutable_stage()->set_last_lane(8); }},
      {"more members than lanes",
       [](auto& m) {
         while (m.group_size() < 9) m.add_group("d:4");
       }},
      {"a next stage after the last", [](auto& m) { m.set_member(0), m.set_next_address("d:4"); }},
      {"a next stage for a member that does not lead", [](auto& m) { m.set_rank(0), m.set_next_address("d:4"); }},
  };
  for (const auto& [what, spoil] : spoilt) {
    control::Assign message = member_of_a_group();
    spoil(message);
    const auto read = read_assignment(message);
    ASSERT_FALSE(read) << what;
    EXPECT_EQ(read.error().code, ErrorCode::kProtocol) << what;
  }
}

TEST(DataLabel, MembersOfAGroupHaveLabelsAsManyAsThereAreLanes) {
  for (int member = 0; member < kLanes; ++member) {
    const auto label = parse_data_label(data_label(member_label(member), Epoch(9)));
    ASSERT_TRUE(label) << member;
    EXPECT_EQ(label->what, member_label(member));
    EXPECT_EQ(label->epoch, Epoch(9));
  }
  for (const char* label : {"member8@1", "member@1", "member-1@1", "member01@1"}) {
    EXPECT_FALSE(parse_data_label(label)) << label;
  }
}

}  // namespace
}  // namespace butterfly
