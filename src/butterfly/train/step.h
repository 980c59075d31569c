// One training step on one rank. train_step() is the story; what it calls is in this room and below.
#pragma once

#include <cstdint>
#include <memory>

#include "butterfly/base/result.h"
#include "butterfly/model/network.h"
#include "butterfly/train/dataset.h"
#include "butterfly/train/optimizer.h"
#include "butterfly/train/reducer.h"
#include "butterfly/train/run_config.h"

namespace butterfly {

struct StepPhases {
  double data_s = 0.0, forward_s = 0.0, backward_s = 0.0, communication_exposed_s = 0.0, optimizer_s = 0.0;
  double total_s = 0.0;
};

struct StepReport {
  std::int64_t step = 0;  // from 0
  double loss = 0.0;      // mean over the step's tokens, all ranks; nats
  double gradient_norm = 0.0;
  double rate = 0.0;
  bool left_out = false;  // by the guard: no update
  std::int64_t tokens = 0;
  StepPhases phases{};
  ReduceReport reduced{};
};

/// What a step works on; borrowed.
struct StepContext {
  const RunConfig& config;
  Network& network;
  const Dataset& data;
  GradientReducer& reducer;
  Optimizer& optimizer;
  MicroBatches share{};
  int micro_batch = 1;  // sequences
};

/// Errors: those of the network and the reducer; then neither weights nor moments have changed.
Result<StepReport> train_step(StepContext& context, std::int64_t step);

}  // namespace butterfly
