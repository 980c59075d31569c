// What `butterfly plan` works out, and the faces that it has: text, JSON, a picture.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/plan/cost/training_choice.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/plan/simulation/simulator.h"
#include "shared/access.h"

namespace butterfly::app {

/// Ranks that no file describes: all of the cluster's nodes are alike.
struct TrainingWorld {
  bool measured = false;  // this machine; otherwise as the command line says
  bool link_assumed = true;
  int ranks_that_fit = 0;  // where the ranks that were asked for do not; 0: unknown, or none
};

struct Planned {
  ModelConfig config;
  PlanCluster cluster;
  PlanOptions options;
  std::vector<ComparedPlan> all;                                    // every strategy; empty for simulations
  Plan plan;                                                        // the one that was asked for
  std::vector<std::pair<TrainStrategy, TrainPrediction>> training;  // empty: not asked for
  TrainOptions train_options;
  TrainChoice train_choice;
  std::optional<TrainingWorld> world;
  std::optional<SimulationReport> simulation;
  SimulationOptions simulation_options;

  /// Tables with bars.
  std::string text() const;
  std::string json() const;
  /// An SVG document that needs nothing else.
  std::string svg() const;
  /// "embedding, 0-12", with the slices of a tensor group.
  std::string layers_of(const StageAssignment& work) const;
};

}  // namespace butterfly::app
