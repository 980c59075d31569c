#include "butterfly/node_registry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "butterfly/api/convert.h"
#include "butterfly/version.h"

namespace butterfly {
namespace {

using std::chrono::seconds;

/// A registry whose clock stands still until told otherwise.
class NodeRegistryTest : public testing::Test {
 protected:
  std::vector<std::string> healthy() const {
    std::vector<std::string> ids;
    for (const Node& node : registry_.healthy()) ids.push_back(node.id);
    return ids;
  }
  std::chrono::steady_clock::time_point now_{seconds(1000)};
  NodeRegistry registry_{{.heartbeat_timeout = seconds(10), .now = [this] { return now_; }}};
};

TEST_F(NodeRegistryTest, NodesAreListedInOrderOfRegistrationAndFoundById) {
  ASSERT_TRUE(registry_.register_node({.id = "b", .address = "127.0.0.1:1"}).has_value());
  ASSERT_TRUE(registry_.register_node({.id = "a"}).has_value());
  const std::vector<Node> nodes = registry_.list();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].id, "b");
  EXPECT_EQ(nodes[1].id, "a");
  const Result<Node> found = registry_.find("b");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->address, "127.0.0.1:1");
}

TEST_F(NodeRegistryTest, SecondRegistrationOfAnIdIsRefusedAndKeepsTheFirst) {
  ASSERT_TRUE(registry_.register_node({.id = "a", .address = "first"}).has_value());
  const Status again = registry_.register_node({.id = "a", .address = "second"});
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(registry_.find("a")->address, "first");
  EXPECT_FALSE(registry_.register_node({}).has_value());
}

TEST_F(NodeRegistryTest, UnregisteredNodeIsGoneAndItsIdIsFree) {
  ASSERT_TRUE(registry_.register_node({.id = "a"}).has_value());
  ASSERT_TRUE(registry_.unregister_node("a").has_value());
  EXPECT_TRUE(registry_.list().empty());
  EXPECT_TRUE(registry_.register_node({.id = "a"}).has_value());
}

TEST_F(NodeRegistryTest, SilentNodeIsUnhealthyUntilItIsHeardAgain) {
  ASSERT_TRUE(registry_.register_node({.id = "a"}).has_value());
  ASSERT_TRUE(registry_.register_node({.id = "b"}).has_value());
  now_ += seconds(10);
  EXPECT_EQ(healthy(), (std::vector<std::string>{"a", "b"}));
  ASSERT_TRUE(registry_.heartbeat("b").has_value());
  now_ += seconds(1);
  EXPECT_EQ(healthy(), (std::vector<std::string>{"b"}));
  EXPECT_EQ(registry_.list().size(), 2u);
  ASSERT_TRUE(registry_.heartbeat("a").has_value());
  EXPECT_EQ(healthy(), (std::vector<std::string>{"a", "b"}));
}

TEST_F(NodeRegistryTest, MarkedNodeIsUnhealthyUntilItIsHeardAgain) {
  ASSERT_TRUE(registry_.register_node({.id = "a"}).has_value());
  ASSERT_TRUE(registry_.mark_unhealthy("a").has_value());
  EXPECT_TRUE(healthy().empty());
  ASSERT_TRUE(registry_.heartbeat("a").has_value());
  EXPECT_EQ(healthy().size(), 1u);
}

TEST_F(NodeRegistryTest, HealthOfOneIsThatOfTheList) {
  ASSERT_TRUE(registry_.register_node({.id = "a"}).has_value());
  EXPECT_TRUE(registry_.is_healthy("a"));
  ASSERT_TRUE(registry_.mark_unhealthy("a").has_value());
  EXPECT_FALSE(registry_.is_healthy("a"));
  EXPECT_FALSE(registry_.is_healthy("b"));
}

TEST_F(NodeRegistryTest, UnknownIdIsNotFoundEverywhere) {
  EXPECT_EQ(registry_.find("x").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(registry_.heartbeat("x").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(registry_.mark_unhealthy("x").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(registry_.unregister_node("x").error().message, "no node 'x' is registered");
}

TEST(NodeRegistry, WithoutTimeoutRegistrationIsEnough) {
  std::chrono::steady_clock::time_point now{};
  NodeRegistry registry({.heartbeat_timeout = {}, .now = [&] { return now; }});
  ASSERT_TRUE(registry.register_node({.id = "a"}).has_value());
  now += std::chrono::hours(1000);
  EXPECT_EQ(registry.healthy().size(), 1u);
}

TEST(NodeRegistry, ThreadsMayUseItTogether) {
  NodeRegistry registry;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string id = fmt::format("{}-{}", t, i);
        EXPECT_TRUE(registry.register_node({.id = id}).has_value());
        EXPECT_TRUE(registry.heartbeat(id).has_value());
        EXPECT_GE(registry.healthy().size(), 1u);
        if (i % 2 == 0) {
          EXPECT_TRUE(registry.unregister_node(id).has_value());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.list().size(), 100u);
}

TEST(Node, CapabilityOfThisMachineIsWhole) {
  const Result<NodeCapability> capability = detect_capability({.threads = 1});
  ASSERT_TRUE(capability.has_value());
  EXPECT_GT(capability->memory_gb, 0.0);
  EXPECT_GT(capability->compute_gflops, 0.0);
  EXPECT_GT(capability->memory_bandwidth_gb_per_s, 0.0);
  EXPECT_STREQ(to_string(capability->device), "cpu");
  EXPECT_GE(capability->device_count, 1);
  EXPECT_EQ(capability->threads, 1);
  EXPECT_FALSE(detect_capability({.threads = -1}).has_value());
}

TEST(Node, CapabilityBecomesADescriptorAndComesBack) {
  const NodeCapability capability{.compute_gflops = 250.0,
                                  .int8_gops = 1500.0,
                                  .memory_gb = 16.5,
                                  .memory_bandwidth_gb_per_s = 30.0,
                                  .threads = 4,
                                  .isa = "reference"};
  const Result<NodeDescriptor> descriptor = to_descriptor({.id = "n", .capability = capability});
  ASSERT_TRUE(descriptor.has_value());
  EXPECT_EQ(descriptor->memory_bytes, 16'500'000'000u);
  EXPECT_EQ(descriptor->fp32_gflops, 250.0);
  EXPECT_EQ(descriptor->int8_gops, 1500.0);
  const NodeCapability back = to_capability(*descriptor);
  EXPECT_EQ(back.memory_gb, 16.5);
  EXPECT_EQ(back.compute_gflops, 250.0);
  EXPECT_EQ(back.memory_bandwidth_gb_per_s, 30.0);
  EXPECT_EQ(back.threads, 4);
}

TEST(Node, ImpossibleCapabilitiesAreRefused) {
  EXPECT_FALSE(to_descriptor({.id = "n", .capability = {.memory_gb = -1.0}}).has_value());
  EXPECT_FALSE(to_descriptor({.id = "n", .capability = {.memory_gb = 1e300}}).has_value());
  EXPECT_FALSE(to_descriptor({.id = "n", .capability = {.compute_gflops = std::nan("")}}).has_value());
  EXPECT_FALSE(to_descriptor({.id = "n", .capability = {.isa = "sse9"}}).has_value());
}

TEST(Version, HeaderAndProjectAgree) {
  EXPECT_STREQ(kVersion, BUTTERFLY_PROJECT_VERSION);
  EXPECT_EQ(fmt::format("{}.{}.{}", kVersionMajor, kVersionMinor, kVersionPatch), kVersion);
}

}  // namespace
}  // namespace butterfly
