#include "butterfly/cluster/control_link.h"

#include <gtest/gtest.h>

#include <cmath>
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

}  // namespace
}  // namespace butterfly
