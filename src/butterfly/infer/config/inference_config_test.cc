#include "butterfly/infer/config/inference_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "butterfly/infer/config/inference_keys.h"
#include "butterfly/infer/config/worker_config.h"
#include "butterfly/machine/topology.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Another value that the key takes, as a flag has it.
template <typename Config>
std::string other_text(const ConfigKey<Config>& key) {
  const Config standard{};
  for (const char* text :
       {"true", "false", "7", "0.5", "f16", "lz4", "memory", "balanced", "ngram", "4096", "7:-1.5", "a,\"b\"\\ c"}) {
    Config config{};
    if (set_from_text(config, key, text) && key.get(config) != key.get(standard)) return text;
  }
  ADD_FAILURE() << key.name << " takes none of the values";
  return "";
}

template <typename Config>
void expect_flags_and_files_to_agree(const std::vector<ConfigKey<Config>>& keys) {
  const Config standard{};
  for (const ConfigKey<Config>& key : keys) {
    Config by_flag{}, by_file{};
    ASSERT_TRUE(set_from_text(by_flag, key, other_text(key))) << key.name;
    const std::string line = fmt::format("{} = {}\n", key.name, to_toml(key.get(by_flag)));
    const Status read = read_keys(line, "settings.toml", bind_keys(keys, by_file));
    ASSERT_TRUE(read) << read.error().message;
    for (const ConfigKey<Config>& other : keys) {
      EXPECT_EQ(other.get(by_file), other.get(by_flag)) << key.name << " changes " << other.name;
      EXPECT_EQ(other.get(by_file) == other.get(standard), other.name != key.name) << key.name << " " << other.name;
    }
  }
}

TEST(InferenceConfig, EachKeyIsSetByItsFlagAndByAFileAndChangesItselfAlone) {
  expect_flags_and_files_to_agree(inference_keys());
  expect_flags_and_files_to_agree(worker_keys());
}

TEST(InferenceConfig, FlagsHaveDifferentNames) {
  std::set<std::string> names{"config", "json", "file", "window"};
  std::set<char> letters{'c', 'f', 'h'};
  for (const InferenceKey& key : inference_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_TRUE(key.letter == 0 || letters.insert(key.letter).second) << key.name;
    EXPECT_FALSE(key.help.empty() || key.group.empty()) << key.name;
  }
}

std::string refusal(const std::string& text) {
  InferenceConfig config;
  const Status read = read_keys(text, "settings.toml", bind_keys(inference_keys(), config));
  if (read) return "accepted";
  EXPECT_EQ(read.error().code, ErrorCode::kBadData);
  return read.error().message;
}

TEST(InferenceConfig, MistakesAreNamedByFileLineAndKey) {
  EXPECT_THAT(refusal("model = \"a.gguf\"\nthredas = 2\n"),
              AllOf(HasSubstr("settings.toml: line 2: there is no key \"thredas\" (is \"threads\" meant?), there are "),
                    HasSubstr("dead_after")));
  EXPECT_EQ(refusal("threads = \"all\"\n"), "settings.toml: line 1: threads is 'all', expected a whole number");
  EXPECT_EQ(refusal("\nheartbeat = 5\n"),
            "settings.toml: line 2: heartbeat is 5, expected a whole number from 10 to 60000");
  EXPECT_EQ(refusal("seed = -1\n"), "settings.toml: line 1: seed is -1, expected a whole number");
  EXPECT_THAT(refusal("split = \"evenly\"\n"), HasSubstr("split is 'evenly', expected one of uniform, balanced, "));
  EXPECT_THAT(refusal("kv_type = \"q4_0\"\n"), HasSubstr("kv_type is 'q4_0', expected one of auto, f32, f16, q8_0"));
  EXPECT_THAT(refusal("[sampling]\ntemp = 1.0\n"), HasSubstr("line 1: there is no key \"sampling\""));
}

TEST(InferenceConfig, WhatDoesNotGoTogetherIsNamedWithBothValues) {
  const auto complaint = [](const auto& change) {
    InferenceConfig config;
    config.model = "a.gguf";
    EXPECT_TRUE(validate(config));
    change(config);
    const Status status = validate(config);
    return status ? "accepted" : status.error().message;
  };
  EXPECT_THAT(complaint([](InferenceConfig& c) { c.model.clear(); }), HasSubstr("model is not set: --model FILE"));
  EXPECT_EQ(complaint([](InferenceConfig& c) {
              c.deployment.nodes = 3;
              c.deployment.membership.workers = {"a:1", "b:2"};
            }),
            "nodes is 3 and workers names 2: one of them says who works");
  EXPECT_THAT(complaint([](InferenceConfig& c) {
                c.deployment.nodes = 3;
                c.deployment.membership.join_at = "a:1";
              }),
              HasSubstr("nodes is 3 and join_at a:1"));
  EXPECT_THAT(complaint([](InferenceConfig& c) {
                c.deployment.compute.packed_folder = "packed";
                c.deployment.membership.workers = {"a:1"};
              }),
              HasSubstr("packed_cache is packed and other processes compute"));
  EXPECT_THAT(complaint([](InferenceConfig& c) { c.deployment.access = {.credentials = "x", .any_address = true}; }),
              HasSubstr("credentials is x and insecure is true"));
  EXPECT_THAT(validate(WorkerConfig{.emulate = 0.5}).error().message,
              HasSubstr("--emulate 0.5 needs --threads 1, not 0"));
}

TEST(WorkerConfig, MemoryIsASize) {
  WorkerConfig config;
  const auto memory = std::ranges::find(worker_keys(), "memory", &ConfigKey<WorkerConfig>::name);
  ASSERT_TRUE(set_from_text(config, *memory, "512M"));
  EXPECT_EQ(config.memory_bytes, 512u << 20);
  EXPECT_EQ(set_from_text(config, *memory, "much").error().message,
            "--memory is \"much\", expected a size such as 4G or 512M");
}

TEST(DeploymentConfig, WhatIsLeftOpenIsDecidedByMachineModelAndFiles) {
  ModelConfig model;
  model.model_dim = 64;
  const auto path = std::filesystem::temp_directory_path() / fmt::format("butterfly_custom_{}.txt", getpid());
  std::ofstream(path) << "alpha 0-3\n";
  DeploymentConfig config{.nodes = 2, .plan = {.strategy = "tensor"}, .custom_file = path.string()};
  const auto decided = resolved(config, model);
  std::filesystem::remove(path);
  ASSERT_TRUE(decided) << decided.error().message;
  EXPECT_EQ(decided->compute.threads, std::max(1, usable_threads() / 2));
  EXPECT_EQ(decided->plan.kv_type, kv_type_for(model));
  EXPECT_EQ(decided->stage.kv_type, kv_type_for(model));
  EXPECT_TRUE(decided->measure_links);
  ASSERT_TRUE(decided->plan.custom);
  EXPECT_EQ(decided->plan.custom->shares.size(), 1u);

  config = {.compute = {.threads = 3, .kv_type = DType::kF32}, .plan = {.strategy = "uniform"}};
  EXPECT_EQ(resolved(config, model)->compute.threads, 3);
  EXPECT_EQ(resolved(config, model)->stage.kv_type, DType::kF32);
  EXPECT_FALSE(resolved(config, model)->measure_links);
}

TEST(DeploymentConfig, NumbersThatNothingCanBeDoneWithAreRefused) {
  ModelConfig model;
  model.model_dim = 40;
  EXPECT_EQ(resolved({.nodes = 0}, model).error().message, "0 threads on each of 0 nodes");
  EXPECT_EQ(resolved({.compute = {.threads = -1}}, model).error().message, "-1 threads on each of 1 nodes");
  EXPECT_EQ(resolved({.stage = {.wire_type = DType::kQ8_0}}, model).error().message,
            "activations of 40 elements cannot travel as q8_0");
  EXPECT_EQ(resolved({.custom_file = "/nowhere/plan.txt"}, model).error().message,
            "/nowhere/plan.txt: there is no such file");
}

template <typename Config>
void add_rows(const std::vector<ConfigKey<Config>>& keys, std::vector<std::string>& rows) {
  for (const ConfigKey<Config>& key : keys) {
    const std::string letter = key.letter == 0 ? "" : fmt::format(". Also `-{}`", key.letter);
    rows.push_back(fmt::format("| `{}` | `{}` | {}{} |", key.name, to_toml(key.get(Config{})), help_of(key), letter));
  }
}

TEST(InferenceConfig, ThePageListsEveryKeyWithItsDefault) {
  std::ifstream page(std::string(BUTTERFLY_SOURCE_DIR) + "/docs/configuration.md");
  std::vector<std::string> rows, expected;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| `")) rows.push_back(line);
  }
  add_rows(inference_keys(), expected);
  add_rows(worker_keys(), expected);
  std::string text;
  for (const std::string& row : expected) text += row + "\n";
  EXPECT_EQ(rows, expected) << text;
}

}  // namespace
}  // namespace butterfly
