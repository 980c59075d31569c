// butterfly plan --train: a training step by each strategy, over a described cluster or over machines like this one.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "commands.h"
#include "plan/plan.h"

namespace butterfly::app {

/// What the command line says of ranks that no file describes. 0, or empty: nothing.
struct WorldOptions {
  int size = 0;
  std::string memory;
  double memory_gb_per_s = 0.0, fp32_gflops = 0.0;
  double latency_us = 0.0, gbit_per_s = 0.0;
  int micro_batch = 0;
};
/// Returns --world-size.
Option add_world_options(Command sub, WorldOptions& world, Option train);

/// Ranks that are alike: machines like this one, measured now, but for what was said. Errors: kInvalidArgument naming
/// the option; those of measuring.
Status set_world(const WorldOptions& world, Planned& planned);

/// Every strategy, and which to take. Errors: those of predict_training(); kInvalidArgument for fewer sequences than
/// ranks.
Status plan_training(int batch, int seq, const WorldOptions& world, Planned& planned);

std::string training_text(const Planned& planned);
/// Sets "training", "recommended" and, where ranks are alike, "rank" and "link".
void add_training_json(const Planned& planned, nlohmann::ordered_json& json);

}  // namespace butterfly::app
