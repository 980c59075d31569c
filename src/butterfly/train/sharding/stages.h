// Which layers each rank of a pipeline has, from a run's settings. Plain functions, the same on every rank.
#pragma once

#include <span>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/training/passes/transformer_options.h"
#include "butterfly/plan/cost/pipeline_cost.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly {

/// In their order; empty for one rank, and for strategies without stages. `speeds` of the ranks; empty: equal. Errors:
/// those of divide_pipeline().
Result<std::vector<PipelineStage>> stages_of(const ParallelConfig& parallel, const ModelConfig& config, int seq,
                                             int ranks, std::span<const double> speeds);

/// What a rank computes; everything where there are no stages.
ModelPart part_of_rank(std::span<const PipelineStage> stages, int rank, int micro_batches);

/// "layers 3 to 5 and the head".
std::string describe(const PipelineStage& stage);

}  // namespace butterfly
