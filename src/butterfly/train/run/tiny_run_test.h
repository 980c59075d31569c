// A run that takes a moment: a model of a few thousand parameters on a chain of tokens that it can learn.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "butterfly/base/test_folder_test.h"
#include "butterfly/train/run/run_parts.h"
#include "butterfly/train/run/trainer.h"

namespace butterfly {

inline ModelConfig tiny_shape() {
  ModelConfig config = *named_config("llama-1.1b");
  config.name = "tiny";
  config.layers = 1;
  config.model_dim = 16;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 8;
  config.ff_dim = 32;
  config.vocab = 16;
  config.context = 16;
  config.rope.dim = 8;
  return config;
}

/// Two layers of four experts, of which a token goes through two, and a shared one with a gate.
inline ModelConfig tiny_expert_shape() {
  ModelConfig config = tiny_shape();
  config.name = "tiny experts";
  config.layers = 2;
  config.moe = {
      .experts = 4, .experts_used = 2, .ff_dim = 24, .renormalise = true, .shared_ff_dim = 16, .shared_gate = true};
  return config;
}

inline RunConfig tiny_run() {
  RunConfig config;
  config.shape = tiny_shape();
  config.data = {.files = {"synthetic:markov"},
                 .validation_share = 0.0};  // validating would take longer than the steps
  config.seq = 16;
  config.global_batch = 8;
  config.micro_batch = 2;
  config.steps = 12;
  config.threads = 1;
  config.optimizer.rate = 1e-2;
  config.parallel.deterministic = true;
  return config;
}

inline std::unique_ptr<RankTrainer> tiny_trainer(const RunConfig& config, const TrainRank& rank = {}) {
  auto trainer = RankTrainer::create(config, rank);
  EXPECT_TRUE(trainer) << trainer.error().message;
  return trainer ? std::move(*trainer) : nullptr;
}

}  // namespace butterfly
