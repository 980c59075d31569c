#include "butterfly/train/sharding/stages.h"

namespace butterfly {

Result<std::vector<PipelineStage>> stages_of(const ParallelConfig& parallel, const ModelConfig& config, int seq,
                                             int ranks, std::span<const double> speeds) {
  if (parallel.strategy != ParallelStrategy::kPipeline || ranks == 1) return std::vector<PipelineStage>();
  PipelineDivision among{.stages = ranks, .speeds = speeds};
  // After a loss there are fewer ranks than shares.
  if (parallel.state_shares.size() == static_cast<std::size_t>(ranks)) among.state_shares = parallel.state_shares;
  return divide_pipeline(config, seq, among);
}

ModelPart part_of_rank(std::span<const PipelineStage> stages, int rank, int micro_batches) {
  if (stages.empty()) return {};
  const int number = stage_of(stages, rank);
  const PipelineStage& stage = stages[static_cast<std::size_t>(number)];
  return {.first_layer = stage.first_layer,
          .last_layer = stage.last_layer,
          .ends = stage.ends,
          .kept = kept_micro_batches(number, static_cast<int>(stages.size()), micro_batches)};
}

std::string describe(const PipelineStage& stage) {
  const int layers = stage.last_layer - stage.first_layer;
  const char* ends = stage.ends ? "embedding and head" : "";
  if (layers == 0) return ends;
  std::string text = layers == 1 ? fmt::format("layer {}", stage.first_layer)
                                 : fmt::format("layers {} to {}", stage.first_layer, stage.last_layer - 1);
  return stage.ends ? fmt::format("{}, {}", text, ends) : text;
}

}  // namespace butterfly
