#include "butterfly/plan/description/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace butterfly {
namespace {

using ::testing::HasSubstr;

const std::string kRates = "memory = \"1 GiB\"\nmemory_gb_per_s = 10\nfp32_gflops = 50\n";
const std::string kTwo = "[[node]]\nname = \"a\"\n" + kRates + "[[node]]\nname = \"b\"\n" + kRates;
const std::string kLinks = "[links.default]\nlatency_us = 10\ngb_per_s = 1\n";

PlanCluster must_parse(const std::string& text) {
  auto cluster = parse_cluster(text, "c.toml");
  EXPECT_TRUE(cluster) << (cluster ? "" : cluster.error().message);
  return cluster ? *cluster : PlanCluster{};
}

/// The sentence with which the text is refused.
std::string file_refusal(const std::string& text) {
  const auto cluster = parse_cluster(text, "c.toml");
  if (cluster) return "accepted";
  EXPECT_EQ(cluster.error().code, ErrorCode::kBadData);
  return cluster.error().message;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ClusterFile, TheDocumentedExampleIsReadAsThePageSays) {
  std::ifstream page(std::string(BUTTERFLY_SOURCE_DIR) + "/docs/formats/cluster.md");
  const std::string text(std::istreambuf_iterator<char>(page), {});
  const std::size_t begin = text.find("```toml\n") + 8;
  const PlanCluster cluster = must_parse(text.substr(begin, text.find("```\n", begin) - begin));
  ASSERT_EQ(cluster.nodes.size(), 4u);
  const NodeDescriptor& fast = cluster.nodes[0];
  EXPECT_EQ(fast.name, "fast");
  EXPECT_EQ(fast.threads, 16);
  EXPECT_EQ(fast.memory_bytes, 24ull << 30);
  EXPECT_EQ(fast.memory_read_gb_per_s, 60);
  EXPECT_EQ(fast.int8_gops, 3000);
  ASSERT_EQ(fast.matmuls.size(), 1u);
  EXPECT_EQ(fast.matmuls[0], (MatmulRate{.type = "q4_0", .decode_gb_per_s = 52, .prefill_gflops = 1400}));
  EXPECT_EQ(cluster.nodes[3].name, "small-3");
  EXPECT_EQ(cluster.nodes[3].int8_gops, 0);
  EXPECT_TRUE(cluster.same_host(1, 3));
  EXPECT_FALSE(cluster.same_host(0, 1));
  EXPECT_EQ(cluster.link(1, 3).gb_per_s, 8);
  EXPECT_EQ(cluster.link(0, 2).latency_us, 9000);
  EXPECT_DOUBLE_EQ(cluster.link(2, 0).gb_per_s, 0.0125);
  EXPECT_EQ(cluster.link(1, 1).latency_us, 0);
  EXPECT_EQ(cluster.link(kCoordinator, 0).latency_us, 6);
  EXPECT_EQ(cluster.link(kCoordinator, 1).latency_us, 9000);
}

TEST(ClusterFile, EveryExampleIsRead) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(BUTTERFLY_SOURCE_DIR) + "/examples/clusters")) {
    if (entry.path().extension() != ".toml") continue;
    const auto cluster = read_cluster_file(entry.path().string());
    EXPECT_TRUE(cluster) << (cluster ? "" : cluster.error().message);
    ++files;
  }
  EXPECT_GE(files, 6);
}

TEST(ClusterFile, TheLastLinkThatFitsAPairHolds) {
  const PlanCluster cluster =
      must_parse(kTwo + kLinks + "[[links.between]]\nends = [\"b\", \"a\"]\nlatency_us = 0\nmbit_per_s = 80\n");
  EXPECT_EQ(cluster.link(0, 1).latency_us, 0);
  EXPECT_DOUBLE_EQ(cluster.link(1, 0).gb_per_s, 0.01);
}

TEST(ClusterFile, AGroupOfAHundredIsAHundredNodes) {
  const PlanCluster cluster =
      must_parse("coordinator = \"g-7\"\n[[group]]\nname = \"g\"\ncount = 100\n" + kRates + kLinks);
  ASSERT_EQ(cluster.nodes.size(), 100u);
  EXPECT_EQ(cluster.nodes[99].name, "g-100");
  EXPECT_EQ(cluster.link(kCoordinator, 6).latency_us, 0);
  EXPECT_EQ(cluster.link(kCoordinator, 5).latency_us, 10);
}

TEST(ClusterFile, AnImpossibleNumberIsNamedWithItsKeyAndPlace) {
  const std::string good = kTwo + kLinks;
  const auto with = [&](const std::string& from, const std::string& to) {
    return file_refusal(replaced(good, from, to));
  };
  EXPECT_EQ(with("fp32_gflops = 50", "fp32_gflops = 50"), "accepted");
  EXPECT_EQ(with("fp32_gflops = 50", "fp32_gflops = -50"),
            "c.toml: node \"a\": fp32_gflops is -50, expected a number above 0");
  EXPECT_THAT(with("fp32_gflops = 50", "fp32_gflops = 0"), HasSubstr("fp32_gflops is 0"));
  EXPECT_THAT(with("fp32_gflops = 50", "fp32_gflops = nan"), HasSubstr("fp32_gflops is nan"));
  EXPECT_THAT(with("fp32_gflops = 50", "fp32_gflops = inf"), HasSubstr("fp32_gflops is inf"));
  EXPECT_THAT(with("fp32_gflops = 50", "fp32_gflops = \"50\""), HasSubstr("expected a number above 0"));
  EXPECT_EQ(with("fp32_gflops = 50\n", ""), "c.toml: node \"a\": has no fp32_gflops");
  EXPECT_THAT(with("memory_gb_per_s = 10", "memory_gb_per_s = -inf"), HasSubstr("memory_gb_per_s is -inf"));
  EXPECT_EQ(with("memory = \"1 GiB\"\n", ""), "c.toml: node \"a\": has no memory");
  EXPECT_THAT(with("memory = \"1 GiB\"", "memory = 0"), HasSubstr("memory is 0, expected a number of bytes above 0"));
  EXPECT_THAT(with("memory = \"1 GiB\"", "memory = \"lots\""), HasSubstr("lots"));
  EXPECT_THAT(with("latency_us = 10", "latency_us = -1"), HasSubstr("links.default: latency_us is -1"));
  EXPECT_THAT(with("gb_per_s = 1\n", "gb_per_s = 0\n"), HasSubstr("gb_per_s is 0"));
  EXPECT_THAT(with("name = \"a\"\n", "name = \"a\"\nthreads = 0\n"),
              HasSubstr("threads is 0, expected a whole number"));
  EXPECT_THAT(with("name = \"a\"\n", "name = \"a\"\nthreads = 1.5\n"), HasSubstr("threads is 1.5"));
  EXPECT_THAT(with("name = \"a\"\n", "name = \"a\"\nmatmuls.q5 = {}\n"), HasSubstr("no weights of type \"q5\""));
  EXPECT_THAT(with("name = \"a\"\n", "name = \"a\"\nmatmuls.q8_0 = { prefill_gflops = 1 }\n"),
              HasSubstr("matmuls.q8_0: has no decode_gb_per_s"));
}

TEST(ClusterFile, NamesThatAreUnknownOrThereTwiceAreRefused) {
  const std::string good = kTwo + kLinks;
  EXPECT_EQ(file_refusal(replaced(good, "name = \"b\"", "name = \"a\"")), "c.toml: two nodes are named \"a\"");
  EXPECT_THAT(file_refusal(replaced(good, "memory =", "memry =")),
              HasSubstr("there is no key \"memry\" (is \"memory\" meant?), there are name"));
  EXPECT_THAT(file_refusal("nodes = 3\n" + good), HasSubstr("no key \"nodes\""));
  EXPECT_THAT(file_refusal("coordinator = \"z\"\n" + good), HasSubstr("coordinator is \"z\", there is no such node"));
  const auto linked = [&](const std::string& ends) {
    return file_refusal(good + "[[links.between]]\nends = " + ends + "\nlatency_us = 1\ngb_per_s = 1\n");
  };
  EXPECT_THAT(linked("[\"a\", \"z\"]"), HasSubstr("links.between 1: ends names \"z\""));
  EXPECT_THAT(linked("[\"a\", \"\"]"), HasSubstr("ends names \"\""));
  EXPECT_THAT(linked("[\"a\"]"), HasSubstr("expected two names"));
  const std::string pair = "[[links.between]]\nends = [\"a\", \"b\"]\nlatency_us = 1\ngb_per_s = 1\n";
  EXPECT_THAT(file_refusal(good + pair + replaced(pair, "[\"a\", \"b\"]", "[\"b\", \"a\"]")),
              HasSubstr("is there twice"));
}

TEST(ClusterFile, LinksMustConnectEveryPairWithOneBandwidth) {
  EXPECT_THAT(file_refusal(kTwo), HasSubstr("c.toml: no link connects b with the coordinator"));
  EXPECT_THAT(file_refusal(kTwo + "[links.default]\nlatency_us = 1\n"),
              HasSubstr("has no gb_per_s, gbit_per_s or mbit_per_s"));
  EXPECT_THAT(file_refusal(kTwo + kLinks + "mbit_per_s = 3\n"), HasSubstr("beside another bandwidth"));
  EXPECT_THAT(file_refusal(kTwo + "[links]\ndefault = 3\n"), HasSubstr("default is 3, expected a table"));
}

TEST(ClusterFile, WhatIsNoClusterIsRefused) {
  EXPECT_THAT(file_refusal(""), HasSubstr("describes no node"));
  EXPECT_THAT(file_refusal("[[node]"), HasSubstr("c.toml: line 1:"));
  EXPECT_THAT(file_refusal("node = 3"), HasSubstr("node is 3, expected [[node]]"));
  EXPECT_THAT(file_refusal("[[group]]\nname = \"g\"\ncount = 5000\n" + kRates + kLinks), HasSubstr("count is 5000"));
  EXPECT_THAT(file_refusal("[[group]]\nname = \"g\"\ncount = 4096\n" + kRates + kTwo + kLinks),
              HasSubstr("more than 4096"));
  EXPECT_EQ(read_cluster_file("/nowhere/c.toml").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(read_cluster_file("/").error().message, HasSubstr("is a directory"));
}

}  // namespace
}  // namespace butterfly
