#include "butterfly/stage/stage_host.h"

#include <algorithm>

#include "butterfly/base/log.h"
#include "butterfly/base/units.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/stage/fetched_weights.h"
#include "butterfly/stage/run_stage.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/codec.h"

namespace butterfly {

namespace {

/// Weights from this machine where it has the same model, which `local` then names, else from the coordinator.
Result<std::shared_ptr<const WeightSource>> find_source(const ModelConfig& config, const Assignment& assignment,
                                                        WeightFetcher& fetcher, const StageParts& kept,
                                                        std::optional<std::string>& local) {
  BF_ASSIGN_OR_RETURN(const std::optional<std::string> path, fetcher.local_path());
  if (path) {
    BF_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(*path));
    const Status unchanged = fetcher.check_local(*path);
    if (unchanged) {
      local = *path;
      log().info("weights of {} come from {}", assignment.model.name, *path);
      return checkpoint.weights;
    }
    log().warn("{}", unchanged.error().message);
  }
  log().info("weights of {} come from the coordinator", assignment.model.name);
  return std::make_shared<FetchedWeights>(config, assignment.stage, fetcher, kept.kept_for(config, assignment.stage));
}

/// Weights that were packed while their file was written to are those of no model. The same epoch cannot go on; the
/// next finds another file, or the coordinator's.
Status check_packed(const WeightFetcher& fetcher, const std::optional<std::string>& local, StageParts& kept) {
  const Status unchanged = local ? fetcher.check_local(*local) : Status();
  if (unchanged) return {};
  kept.forget_model();
  return make_error(ErrorCode::kUnavailable, "its copy of the model changed while it was loaded: {}",
                    unchanged.error().message);
}

Status check_assignment(const ModelConfig& config, const StageAssignment& stage) {
  if (stage.first_layer < 0 || stage.last_layer < stage.first_layer || stage.last_layer > config.layers) {
    return make_error(ErrorCode::kProtocol, "layers {} to {} were assigned, the model has {}", stage.first_layer,
                      stage.last_layer, config.layers);
  }
  const HeldSlices& held = stage.slices;
  if (!is_run(held) || !is_run(held.experts) || held.empty()) {
    return make_error(ErrorCode::kProtocol, "slices {} to {} and experts' slices {} to {} were assigned, there are {}",
                      held.first, held.last, held.experts.first, held.experts.last, kReductionSlices);
  }
  return {};
}

Result<std::vector<StageAssignment>> stages_of(const ModelConfig& config, std::span<const Assignment> assignments) {
  std::vector<StageAssignment> stages;
  for (const Assignment& one : assignments) {
    BF_TRY(check_assignment(config, one.stage));
    stages.push_back(one.stage);
  }
  return stages;
}

/// A stage's part of what a node has for its cache. All stages see the same positions, so what each needs is in
/// proportion to its layers and slices.
std::uint64_t share_of_cache(std::uint64_t bytes_max, const StageAssignment& stage,
                             std::span<const StageAssignment> stages) {
  const auto weight = [](const StageAssignment& one) { return static_cast<double>(one.layers() * one.slices.count()); };
  double total = 0;
  for (const StageAssignment& one : stages) total += weight(one);
  if (stages.size() == 1 || total == 0) return bytes_max;
  return static_cast<std::uint64_t>(static_cast<double>(bytes_max) * weight(stage) / total);
}

/// The kinds of data that a stage sends: logits, activations, or blocks of quants, which are not shuffled.
int element_bytes(const Stage& stage) {
  if (stage.assignment().head || stage.wire_type() == DType::kF32) return 4;
  return stage.wire_type() == DType::kF16 ? 2 : 1;
}

}  // namespace

Result<std::vector<std::uint64_t>> StageHost::load(std::span<const Assignment> assignments, WeightFetcher& weights,
                                                   std::stop_token stop) {
  const Assignment& any = assignments.front();
  const ModelConfig& config = any.config;
  BF_ASSIGN_OR_RETURN(const std::vector<StageAssignment> stages, stages_of(config, assignments));
  compression_ = any.settings.compression;
  kept_.set_model(any.model.hash.empty() ? options_.model_stamp : any.model.hash, config);
  if (options_.weight_bytes_max > 0) {
    // Room first: what is kept may have to give way to what is needed.
    BF_ASSIGN_OR_RETURN(const std::uint64_t missing, kept_.missing_bytes(config, stages));
    if (missing > options_.weight_bytes_max) {
      return make_error(ErrorCode::kNoMemory, "its share needs {} of weights, it offers {}", format_bytes(missing),
                        format_bytes(options_.weight_bytes_max));
    }
    kept_.trim(stages, options_.weight_bytes_max - std::min(missing, options_.weight_bytes_max));
  }
  const auto crew = std::make_shared<Crew>(options_.threads);  // shared by the stages, which end one after another
  StageOptions options{.team = std::shared_ptr<ThreadTeam>(crew, &crew->team),
                       .isa = options_.isa,
                       .kv_type = any.settings.kv_type,
                       .wire_type = any.settings.wire_type};
  const PacedStageOptions pace{.crew = crew, .emulated_speed = options_.emulated_speed, .counters = &counters_};
  std::vector<std::uint64_t> memory_bytes;
  std::uint64_t weight_bytes = 0;
  std::optional<std::string> local;
  for (const Assignment& one : assignments) {
    options.kv_bytes_max = share_of_cache(options_.kv_bytes_max, one.stage, stages);
    BF_ASSIGN_OR_RETURN(auto stage,
                        Stage::load(config, one.stage, [&] { return find_source(config, one, weights, kept_, local); },
                                    options, kept_, {.stop = stop, .progress = options_.progress}));
    memory_bytes.push_back(stage->memory_bytes());
    weight_bytes += stage->weight_bytes();
    stages_[one.rank] = std::make_unique<PacedStage>(std::move(stage), pace);
  }
  BF_TRY(check_packed(weights, local, kept_));
  set_facts(config);
  trace::set_fact("stage.first_layer", assignments.front().stage.first_layer);
  trace::set_fact("stage.last_layer", assignments.back().stage.last_layer);
  trace::set_fact("stage.bytes", static_cast<double>(weight_bytes));
  return memory_bytes;
}

Status StageHost::prepare(std::span<const Assignment> assignments, WeightFetcher& weights, std::stop_token stop) {
  const Assignment& any = assignments.front();
  const ModelConfig& config = any.config;
  BF_ASSIGN_OR_RETURN(const std::vector<StageAssignment> stages, stages_of(config, assignments));
  kept_.set_model(any.model.hash.empty() ? options_.model_stamp : any.model.hash, config);
  BF_ASSIGN_OR_RETURN(const std::uint64_t missing, kept_.missing_bytes(config, stages));
  const std::uint64_t held = kept_.bytes();
  if (options_.weight_bytes_max > 0 && held + missing > options_.weight_bytes_max) {
    return make_error(ErrorCode::kNoMemory, "{} more weights beside {}, there is room for {}", format_bytes(missing),
                      format_bytes(held), format_bytes(options_.weight_bytes_max));
  }
  ThreadTeam team(1);
  std::optional<std::string> local;
  for (const Assignment& one : assignments) {
    BF_TRY(kept_.complete(config, one.stage, [&] { return find_source(config, one, weights, kept_, local); }, team,
                          {.stop = stop}));
  }
  return check_packed(weights, local, kept_);
}

Result<WeightProvider> StageHost::open_weights(const std::string& path) const {
  BF_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(path));
  return provide_weights(checkpoint.weights);
}

Result<ExchangeTimes> StageHost::join_group(const Assignment& assignment, Exchange& exchange) {
  PacedStage& stage = *stages_.at(assignment.rank);
  BF_TRY(stage.join(exchange));
  return stage.measure_exchanges();
}

Status StageHost::serve(const Assignment& assignment, const StageLinks& links, std::stop_token stop) {
  PacedStage& stage = *stages_.at(assignment.rank);
  if (links.output != nullptr)
    links.output->compress({.mode = compression_, .element_bytes = element_bytes(stage.stage())});
  return run_stage(stage, links, std::move(stop));
}

}  // namespace butterfly
