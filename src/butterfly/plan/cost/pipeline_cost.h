// Training's pipeline: which layers each stage has, and what a step then takes. Plain functions, thread-safe.
#pragma once

#include <span>
#include <vector>

#include "butterfly/plan/cost/training_cost.h"
#include "butterfly/plan/pipeline/schedule.h"

namespace butterfly {

struct PipelineStage {
  int rank = 0;  // that computes it
  int first_layer = 0, last_layer = 0;
  bool ends = false;         // the last stage: embedding, last norm and head, and perhaps no layer
  double cost = 0.0;         // estimated, of a token's passes, relative
  double flops_share = 0.0;  // of the model's matmuls and attention
};

struct PipelineDivision {
  int stages = 1;
  std::span<const double> speeds{};        // of the ranks; empty: equal
  std::span<const double> state_shares{};  // that they hold; empty: as their speeds say
};

/// Contiguous layers for each stage, at least one, the last of which may be the head's: such that the slowest stage is
/// as fast as can be, or, with shares, the fullest one as empty. Stages are in the order of ranks, but that another
/// rank than the last one has the head where this makes the slowest stage faster by kGainOfOrder: a slow rank may be
/// too slow for the head, or have too little to do with it alone. Costs are estimated from the configuration alone, so
/// every rank finds the same. Errors: kInvalidArgument for more stages than layers and a head.
Result<std::vector<PipelineStage>> divide_pipeline(const ModelConfig& config, int seq, const PipelineDivision& among);

inline constexpr double kGainOfOrder = 0.02;

/// The stage of a rank. Programmer's error: it has none.
int stage_of(std::span<const PipelineStage> stages, int rank);

/// The wait of such stages for each other: a share of their time. Speeds as above.
double pipeline_bubble(std::span<const PipelineStage> stages, std::span<const double> speeds, int micro_batches);

/// As predict_training(), which calls it. `trained` has f32 weights; `link` joins all.
Result<TrainPrediction> predict_pipeline(const ModelConfig& trained, const PlanCluster& cluster,
                                         const TrainOptions& options, const LinkDescriptor& link);

}  // namespace butterfly
