#include "butterfly/train/config/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "butterfly/train/config/run_keys.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RunConfig must_parse(const std::string& text) {
  auto config = parse_run_config(text, "run.toml");
  EXPECT_TRUE(config) << (config ? "" : config.error().message);
  return config ? *config : RunConfig{};
}

std::string refusal(const std::string& text) {
  const auto config = parse_run_config(text, "run.toml");
  if (config) return "accepted";
  EXPECT_EQ(config.error().code, ErrorCode::kBadData);
  return config.error().message;
}

/// A configuration that validate() accepts, with one change.
template <typename Change>
std::string complaint(const Change& change) {
  RunConfig config;
  config.model = "gpt2-124m";
  config.data.files = {"a.txt"};
  EXPECT_TRUE(validate(config)) << validate(config).error().message;
  change(config);
  const Status status = validate(config);
  if (status) return "accepted";
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  return status.error().message;
}

/// Another value of the same kind that the key takes.
KeyValue changed(const RunKey& key, const KeyValue& value) {
  const auto choices = [&](std::initializer_list<const char*> names) {
    RunConfig scratch;
    for (const char* name : names) {
      if (value != KeyValue(std::string(name)) && key.set(scratch, std::string(name)))
        return KeyValue(std::string(name));
    }
    ADD_FAILURE() << key.name;
    return value;
  };
  switch (value.index()) {
    case 0:
      return !std::get<bool>(value);
    case 1:
      return std::get<std::int64_t>(value) + 3;
    case 2:
      return std::get<double>(value) + 0.125;
    case 3:
      return choices({"sgd", "linear", "verbose", "tcp", "zero2", "int8", "bf16", "block", "layer", "qkv,swiglu",
                      "A \"quoted\"\\ \n\xC3\xA4"});
    case 4:
      return std::vector<std::string>{"a \"b\"", "c,d", ""};
    default:
      return std::vector<double>{1.0, 0.1, 1e-20};
  }
}

TEST(RunConfig, WhatIsWrittenIsReadBackForEveryKey) {
  RunConfig all;
  for (const RunKey& key : run_keys()) {
    const KeyValue value = changed(key, key.get(all));
    ASSERT_TRUE(key.set(all, value)) << key.name;
    EXPECT_EQ(key.get(all), value) << key.name;
    EXPECT_NE(key.get(all), key.get(RunConfig{})) << key.name;
  }
  const RunConfig read = must_parse(to_toml(all));
  for (const RunKey& key : run_keys()) EXPECT_EQ(key.get(read), key.get(all)) << key.name;
}

TEST(RunConfig, EachKeyChangesItselfAlone) {
  for (const RunKey& key : run_keys()) {
    RunConfig config;
    ASSERT_TRUE(key.set(config, changed(key, key.get(config))));
    for (const RunKey& other : run_keys()) {
      EXPECT_EQ(other.get(config) == other.get(RunConfig{}), other.name != key.name) << key.name << " " << other.name;
    }
  }
}

TEST(RunConfig, FlagsReadWhatTheFileReads) {
  RunConfig config;
  const auto set = [&](const std::string& name, const std::string& text) {
    const auto key = std::ranges::find(run_keys(), name, &RunKey::name);
    return set_from_text(config, *key, text);
  };
  EXPECT_TRUE(set("steps", "25"));
  EXPECT_TRUE(set("optimizer.lr", "1e-3"));
  EXPECT_TRUE(set("data.files", "a.txt,b.txt"));
  EXPECT_TRUE(set("parallel.speeds", "1,0.5"));
  EXPECT_TRUE(set("parallel.deterministic", "true"));
  EXPECT_TRUE(set("schedule.kind", "wsd"));
  EXPECT_EQ(config.steps, 25);
  EXPECT_EQ(config.optimizer.rate, 1e-3);
  EXPECT_THAT(config.data.files, ::testing::ElementsAre("a.txt", "b.txt"));
  EXPECT_THAT(config.parallel.speeds, ::testing::ElementsAre(1.0, 0.5));
  EXPECT_TRUE(config.parallel.deterministic);
  EXPECT_EQ(config.schedule.kind, ScheduleKind::kWsd);
  const auto refused = [&](const std::string& name, const std::string& text) {
    const Status status = set(name, text);
    return status ? "accepted" : status.error().message;
  };
  EXPECT_EQ(refused("steps", "many"), "--steps is \"many\", expected a whole number");
  EXPECT_EQ(refused("steps", "12x"), "--steps is \"12x\", expected a whole number");
  EXPECT_EQ(refused("steps", "-1"), "--steps is \"-1\", expected a whole number from 0 to 2147483647");
  EXPECT_EQ(refused("optimizer.lr", "nan"), "--optimizer.lr is \"nan\", expected a number");
  EXPECT_EQ(refused("parallel.speeds", "1,x"), "--parallel.speeds is \"1,x\", expected a list of numbers");
  EXPECT_EQ(refused("parallel.deterministic", "yes"), "--parallel.deterministic is \"yes\", expected true or false");
  EXPECT_THAT(refused("schedule.kind", "step"),
              HasSubstr("is \"step\", expected one of constant, linear, cosine, wsd"));
  EXPECT_THAT(refused("precision", "fp8"), AllOf(HasSubstr("--precision is \"fp8\""), HasSubstr("bf16")));
}

TEST(RunConfig, FlagsHaveDifferentNames) {
  std::set<std::string> names;
  for (const RunKey& key : run_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    if (!key.alias.empty()) {
      EXPECT_TRUE(names.insert(key.alias).second) << key.alias;
    }
    EXPECT_FALSE(key.help.empty()) << key.name;
  }
}

TEST(RunConfig, TheFieldsNamesAreFlags) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"optimizer.lr", "lr"}, {"schedule.min_lr_ratio", "min-lr-ratio"}, {"optimizer.max_grad_norm", "max-grad-norm"}};
  for (const auto& [name, alias] : names) {
    const auto key = std::ranges::find(run_keys(), name, &RunKey::name);
    ASSERT_NE(key, run_keys().end()) << name;
    EXPECT_EQ(key->alias, alias);
  }
}

TEST(RunConfig, TheFormatPageListsEveryKeyWithItsDefault) {
  std::ifstream page(std::string(BUTTERFLY_SOURCE_DIR) + "/docs/formats/run.md");
  std::vector<std::string> rows, expected;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| `")) rows.push_back(line.substr(0, line.find(" | ", line.find(" | ") + 1)));
  }
  for (const RunKey& key : run_keys()) {
    expected.push_back(fmt::format("| `{}` | `{}`", key.name, to_toml(key.get(RunConfig{}))));
  }
  EXPECT_EQ(rows, expected);
}

TEST(RunConfig, TheExamplesAreValid) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(BUTTERFLY_SOURCE_DIR) + "/examples/training")) {
    if (entry.path().extension() != ".toml") continue;
    ++count;
    auto config = read_run_config(entry.path().string());
    ASSERT_TRUE(config) << config.error().message;
    if (config->data.files.empty()) config->data.files = {"given-on-the-command-line.txt"};
    EXPECT_TRUE(validate(*config)) << entry.path() << ": " << validate(*config).error().message;
    EXPECT_TRUE(named_config(config->model)) << entry.path();
  }
  EXPECT_GE(count, 3);
}

TEST(RunConfig, MistakesInTheFileAreNamedByFileLineAndKey) {
  EXPECT_THAT(refusal("steps = 1\nsteps = 2\n"), HasSubstr("run.toml: line 2: "));
  EXPECT_THAT(refusal("steps = \n"), HasSubstr("run.toml: line 1: "));
  EXPECT_THAT(refusal("steps = 5\nstps = 5\n"),
              AllOf(HasSubstr("run.toml: line 2: there is no key \"stps\" (is \"steps\" meant?), there are "),
                    HasSubstr("global_batch"), HasSubstr("optimizer")));
  EXPECT_THAT(refusal("[optimizer]\n\nlrr = 1\n"),
              HasSubstr("line 3: there is no key \"optimizer.lrr\" (is \"optimizer.lr\" meant?), there are "
                        "optimizer.kind, optimizer.lr"));
  EXPECT_THAT(refusal("[optimiser]\nlr = 1\n"), HasSubstr("there is no key \"optimiser\" (is \"optimizer\" meant?)"));
  EXPECT_THAT(refusal("optimizer = 1\n"), HasSubstr("there is no key \"optimizer\", there are"));
  EXPECT_EQ(refusal("seq = 1.5\n"), "run.toml: line 1: seq is 1.5, expected a whole number");
  EXPECT_EQ(refusal("\nsteps = \"x\"\n"), "run.toml: line 2: steps is 'x', expected a whole number");
  EXPECT_EQ(refusal("steps = 3000000000\n"),
            "run.toml: line 1: steps is 3000000000, expected a whole number from 0 to 2147483647");
  EXPECT_EQ(refusal("optimizer.lr = inf\n"), "run.toml: line 1: optimizer.lr is inf, expected a number");
  EXPECT_EQ(refusal("parallel.deterministic = 1\n"),
            "run.toml: line 1: parallel.deterministic is 1, expected true or false");
  EXPECT_THAT(refusal("data.files = \"a.txt\"\n"), HasSubstr("expected a list of texts"));
  EXPECT_THAT(refusal("data.files = [1]\n"), HasSubstr("expected a list of texts"));
  EXPECT_THAT(refusal("log = \"loud\"\n"), HasSubstr("log is 'loud', expected one of silent, normal, verbose"));
  EXPECT_EQ(must_parse("optimizer.lr = 1\nparallel.speeds = [1, 2.5]\n").optimizer.rate, 1.0);
}

TEST(RunConfig, AFileThatIsNoneIsNamed) {
  EXPECT_EQ(read_run_config("/nowhere/run.toml").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(read_run_config("/").error().message, HasSubstr("is a directory"));
}

TEST(RunConfig, ImpossibleBatchSplitsNameAllNumbers) {
  EXPECT_EQ(complaint([](RunConfig& c) { c.micro_batch = 3; }),
            "global_batch is 8 and micro_batch 3, which does not divide it: 1 would do");
  EXPECT_EQ(complaint([](RunConfig& c) { c.micro_batch = 16; }),
            "global_batch is 8 and micro_batch 16, which does not divide it: 8 would do");
  EXPECT_EQ(complaint([](RunConfig& c) { c.parallel.ranks = 9; }),
            "global_batch is 8 and parallel.ranks 9: every rank needs at least one sequence of a step");
  EXPECT_EQ(complaint([](RunConfig& c) {
              c.parallel.ranks = 3;
              c.micro_batch = 4;
            }),
            "global_batch 8 in micro-batches of 4 makes 2, fewer than the 3 ranks: at most 2 would do");
  EXPECT_EQ(complaint([](RunConfig& c) {
              c.parallel.ranks = 3;
              c.micro_batch = 2;
            }),
            "accepted");
  EXPECT_EQ(complaint([](RunConfig& c) {
              c.parallel.ranks = 2;
              c.parallel.speeds = {1.0};
            }),
            "parallel.speeds has 1 numbers for 2 ranks");
}

TEST(RunConfig, ValuesOutOfRangeAreNamed) {
  EXPECT_THAT(complaint([](RunConfig& c) { c.model.clear(); }), HasSubstr("model is not set"));
  EXPECT_THAT(complaint([](RunConfig& c) { c.data.files.clear(); }), HasSubstr("data.files is empty"));
  EXPECT_EQ(complaint([](RunConfig& c) { c.steps = 0; }), "steps is 0, expected 1 to 2147483647");
  EXPECT_EQ(complaint([](RunConfig& c) { c.optimizer.rate = 0; }), "optimizer.lr is 0, expected more than 0");
  EXPECT_EQ(complaint([](RunConfig& c) { c.optimizer.beta2 = 1; }),
            "optimizer.beta2 is 1, expected 0 or more and less than 1");
  EXPECT_EQ(complaint([](RunConfig& c) { c.optimizer.clip_norm = -1; }),
            "optimizer.max_grad_norm is -1, expected 0 or more");
  EXPECT_EQ(complaint([](RunConfig& c) { c.schedule.final_share = 1.5; }),
            "schedule.min_lr_ratio is 1.5, expected 0 or more and at most 1");
  EXPECT_EQ(complaint([](RunConfig& c) { c.schedule.warmup_steps = 2000; }),
            "schedule.warmup_steps is 2000, expected 0 to 1000");
  EXPECT_EQ(complaint([](RunConfig& c) {
              c.shape.context = 128;
              c.seq = 129;
            }),
            "seq is 129, the model's context has 128 tokens");
  EXPECT_THAT(complaint([](RunConfig& c) { c.checkpoint.every_steps = 10; }),
              HasSubstr("checkpoint.directory is not set"));
  const auto restarts = [](const std::string& directory, int every_steps, RankEngine engine) {
    return complaint([&](RunConfig& c) {
      c.checkpoint = {.directory = directory, .every_steps = every_steps, .max_restarts = 1};
      c.parallel.engine = engine;
    });
  };
  EXPECT_THAT(restarts("", 0, RankEngine::kTcp), HasSubstr("checkpoint.directory is not set: what from?"));
  EXPECT_THAT(restarts("saved", 0, RankEngine::kTcp), HasSubstr("checkpoint.every_steps is not set: what from?"));
  EXPECT_THAT(restarts("saved", 5, RankEngine::kMpi), HasSubstr("parallel.engine is mpi"));
}

TEST(RunConfig, TheFingerprintFollowsWhatDecidesTheBits) {
  RunConfig experts;
  experts.shape.moe.experts = 4;
  const std::string before = fingerprint(experts);
  EXPECT_EQ(before.size(), 64u);
  for (const RunKey& key : run_keys()) {
    RunConfig config = experts;
    ASSERT_TRUE(key.set(config, changed(key, key.get(config))));
    EXPECT_EQ(fingerprint(config) != before, key.role == KeyRole::kDecides) << key.name;
  }
  for (const char* around : {"parallel.ranks", "parallel.engine", "threads", "out", "log_file", "log", "resume"}) {
    EXPECT_EQ(std::ranges::find(run_keys(), around, &RunKey::name)->role, KeyRole::kAround) << around;
  }
  RunConfig other;
  other.shape.layers = 3;
  EXPECT_NE(fingerprint(other), fingerprint(RunConfig{}));
  RunConfig dense;
  dense.router_aux_loss_coef = 0.5;
  EXPECT_EQ(fingerprint(dense), fingerprint(RunConfig{}));
}

TEST(RunConfig, RanksOnWorkersTakeNothingOfThisMachine) {
  EXPECT_EQ(ranks_here({.ranks = 3}), 3);
  EXPECT_EQ(ranks_here({.ranks = 3, .workers = {"a:1", "b:2"}}), 1);
  EXPECT_EQ(ranks_of({.ranks = 1, .workers = {"a:1", "b:2"}}), 3);
}

}  // namespace
}  // namespace butterfly
