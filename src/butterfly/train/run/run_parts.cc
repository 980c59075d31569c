#include "butterfly/train/run/run_parts.h"

#include <algorithm>
#include <filesystem>

#include "butterfly/machine/topology.h"
#include "butterfly/model/core/parameter_weights.h"
#include "butterfly/model/format/export_model.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/model/format/vocabulary_file.h"
#include "butterfly/text/tokenizer.h"
#include "butterfly/train/checkpoint/resume.h"
#include "butterfly/train/gradients/rank_shards.h"

namespace butterfly {
namespace {

/// The checkpoint that config.model names; nothing where it names a shape.
Result<std::optional<Checkpoint>> open_continued(const RunConfig& config) {
  std::error_code error;
  if (config.model.empty() || !std::filesystem::exists(config.model, error)) return std::optional<Checkpoint>();
  BF_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(config.model, {.vocabulary_required = false}));
  return std::optional<Checkpoint>(std::move(checkpoint));
}

Result<Vocabulary> vocabulary_of(const RunConfig& config, const std::optional<Checkpoint>& continued) {
  if (!config.data.tokenizer.empty()) return open_vocabulary(config.data.tokenizer);
  return continued ? continued->vocabulary : Vocabulary{};
}

/// Without its vocabulary's size, for a shape by name. What such a shape calls its context is what its authors trained
/// it for: new weights may see longer sequences where positions are angles and not rows of a table.
Result<ModelConfig> shape_of(const RunConfig& config, const std::optional<Checkpoint>& continued,
                             const RunKnown& known) {
  if (known.shape) return *known.shape;
  if (continued) return continued->config;
  if (config.model.empty()) return config.shape;
  BF_ASSIGN_OR_RETURN(ModelConfig shape, named_config(config.model));
  if (shape.position == PositionKind::kRope) shape.context = std::max(shape.context, config.seq);
  return shape;
}

Result<std::unique_ptr<Dataset>> open_data(RunConfig& config, const Vocabulary& vocabulary, bool vocabulary_is_fixed,
                                           const RunKnown& known) {
  std::optional<Tokenizer> tokenizer;
  if (vocabulary.kind != TokenizerKind::kNone) {
    BF_ASSIGN_OR_RETURN(tokenizer, Tokenizer::create(vocabulary));
  }
  const bool made_up = config.data.files.front().starts_with("synthetic:");
  const bool from_shape = vocabulary_is_fixed || (made_up && !tokenizer);
  BF_ASSIGN_OR_RETURN(std::unique_ptr<Dataset> data,
                      open_dataset(config.data, {.tokenizer = tokenizer ? &*tokenizer : nullptr,
                                                 .vocab = from_shape ? config.shape.vocab : 0,
                                                 .seq = config.seq,
                                                 .global_batch = config.global_batch,
                                                 .opened = known.tokens}));
  config.shape.vocab = data->vocab();
  return data;
}

/// As many sequences as divide the step and leave a micro-batch to every rank.
int micro_batch_of(const RunConfig& config, int ranks) {
  int most = micro_batch_most(config, ranks);
  while (config.global_batch % most != 0) --most;
  return most;
}

/// What would end the run after all of its steps is found out before the first. Only rank 0 writes.
Status claim_places(const RunConfig& config, RunParts& parts) {
  const std::string& directory = config.checkpoint.directory;
  if (!directory.empty()) {
    BF_ASSIGN_OR_RETURN(parts.lock, RunLock::take(directory));
  }
  return config.out.empty() ? Status{} : check_export(config.out);
}

/// Nor is it the last step that finds what a model cannot have.
Status check_model(const RunConfig& config, const ModelConfig& shape) {
  BF_TRY(check_trainable(shape));
  return config.out.empty() ? Status{} : check_export(config.out, shape);
}

Result<int> threads_of(const RunConfig& config) {
  if (config.threads > 0) return config.threads;
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  return std::max(1, topology.usable_threads / ranks_here(config.parallel));
}

/// Ranks that the state is to be divided among: where others may join, one that is alone has it in that form too.
int ranks_to_divide(const RunConfig& config, const TrainRank& rank) {
  return std::max(rank.size, join_address_of(config.parallel).empty() ? 1 : 2);
}

/// What a rank keeps of weights that come and go: its part, or all of them, where the workers' parts come from here.
std::vector<ParameterRange> kept_weights(const RunConfig& config, const TrainRank& rank,
                                         std::span<const PipelineStage> stages, TrainableTransformer& transformer) {
  const int ranks = ranks_to_divide(config, rank);
  const bool come_and_go = parameter_memory_of(config.parallel, ranks).weights != Residency::kWhole;
  if (!come_and_go || has_ranks_elsewhere(config.parallel)) {
    return {{.begin = 0, .end = transformer.parameters().padded_size()}};
  }
  return make_shard_map(config.parallel, ranks, stages, transformer).held(rank.rank);
}

/// Lets go of a parameter's other weights as soon as it has its values.
ParameterMade keeping(const std::vector<ParameterRange>& kept, ParameterSet& parameters) {
  return [&parameters, &kept](const Parameter& parameter) {
    const ParameterRange made{.begin = 0, .end = parameter.offset + parameter.size()};
    if (parameters.own_weights().data() == parameters.weights().data()) {
      return for_each_gap(kept, made, [&](ParameterRange gap) { parameters.release_weights(gap); });
    }
    for (const ParameterRange& range : kept) {
      const std::int64_t begin = std::max(range.begin, parameter.offset);
      const std::int64_t end = std::min(range.end, parameter.offset + parameter.size());
      if (begin >= end) continue;
      std::copy_n(parameters.weights().begin() + begin, end - begin, parameters.own_weights().begin() + begin);
    }
    parameters.release_weights(made);
  };
}

Status make_weights(const RunConfig& config, const std::optional<Checkpoint>& continued,
                    const std::vector<ParameterRange>& kept, TrainableTransformer& transformer) {
  const ParameterMade made = keeping(kept, transformer.parameters());
  if (continued) {
    BF_TRY(load_weights(*continued->weights, transformer.parameters(), made));
    transformer.weights_changed();
  } else {
    transformer.initialize(config.seed, made);
  }
  return {};
}

Result<std::unique_ptr<TrainableTransformer>> make_transformer(const RunConfig& config, Isa isa, const TrainRank& rank,
                                                               const std::optional<Checkpoint>& continued) {
  BF_ASSIGN_OR_RETURN(const RankWorkShares work, share_work(config, rank.size, rank.speeds));
  BF_ASSIGN_OR_RETURN(std::unique_ptr<TrainableTransformer> transformer,
                      TrainableTransformer::create(
                          config.shape, {.precision = config.precision,
                                         .recompute = config.recompute,
                                         .fusion = config.fusion,
                                         .micro_batch = config.micro_batch,
                                         .seq = config.seq,
                                         .threads = config.threads,
                                         .isa = isa,
                                         .memory = parameter_memory_of(config.parallel, ranks_to_divide(config, rank)),
                                         .part = part_of_rank(work.stages, rank.rank, work.micro_batches.front().total),
                                         .router_aux_loss = config.router_aux_loss_coef,
                                         .router_aux_loss_over = config.router_aux_loss_over}));
  BF_TRY(transformer->parameters().freeze(config.frozen));
  BF_TRY(make_weights(config, continued, kept_weights(config, rank, work.stages, *transformer), *transformer));
  return transformer;
}

/// Ranks other than the first receive the state; where they see the checkpoint too, they check that it fits.
bool resumes_here(const RunConfig& config, const TrainRank& rank) {
  std::error_code error;
  return rank.rank == 0 || std::filesystem::exists(config.resume, error);
}

}  // namespace

Result<RunParts> make_run_parts(const RunConfig& config, const TrainRank& rank, const RunKnown& known) {
  RunParts parts{.config = config};
  if (known.shape) parts.config.shape = *known.shape;
  BF_TRY(validate(parts.config));
  if (config.parallel.strategy == ParallelStrategy::kAuto) {
    return make_error(ErrorCode::kInvalidArgument, "parallel.strategy is auto, which is chosen before a run begins");
  }
  if (rank.rank == 0) BF_TRY(claim_places(config, parts));
  BF_ASSIGN_OR_RETURN(parts.isa, known.isa ? *known.isa : choose_isa());
  BF_ASSIGN_OR_RETURN(const std::optional<Checkpoint> continued, open_continued(config));
  BF_ASSIGN_OR_RETURN(parts.vocabulary, vocabulary_of(config, continued));
  BF_ASSIGN_OR_RETURN(parts.config.shape, shape_of(config, continued, known));
  BF_TRY(check_model(rank.rank == 0 ? config : RunConfig{}, parts.config.shape));
  if (!config.resume.empty() && resumes_here(config, rank)) {
    BF_ASSIGN_OR_RETURN(parts.resumed, open_resumed(parts.config));
  }
  if (parts.config.seq == 0) parts.config.seq = parts.config.shape.context;
  if (parts.config.micro_batch == 0) parts.config.micro_batch = micro_batch_of(config, rank.size);
  BF_ASSIGN_OR_RETURN(parts.config.threads, threads_of(config));
  BF_ASSIGN_OR_RETURN(parts.data, open_data(parts.config, parts.vocabulary, continued || known.shape, known));
  BF_TRY(validate(parts.config));
  if (rank.rank == 0 && (parts.resumed || !config.checkpoint.directory.empty())) {
    BF_ASSIGN_OR_RETURN(parts.data_digest, parts.data->digest());
  }
  BF_ASSIGN_OR_RETURN(parts.transformer, make_transformer(parts.config, parts.isa, rank, continued));
  ParameterSet& parameters = parts.transformer->parameters();
  const bool divided = ranks_to_divide(config, rank) > 1 && sharding_of(config.parallel.strategy).optimizer;
  BF_ASSIGN_OR_RETURN(parts.optimizer,
                      make_optimizer(config.optimizer, config.fusion, parts.isa, parameters, parts.transformer->team(),
                                     divided ? Residency::kSparse : Residency::kWhole));
  if (parts.resumed) {
    BF_TRY(check_same_run(*parts.resumed, parts.config, {.stats = parts.data->stats(), .digest = parts.data_digest},
                          parameters));
  }
  return parts;
}

Status make_first_weights(const RunConfig& config, const std::vector<ParameterRange>& kept,
                          TrainableTransformer& transformer) {
  BF_ASSIGN_OR_RETURN(const std::optional<Checkpoint> continued, open_continued(config));
  if (!continued && !config.model.empty()) BF_TRY(named_config(config.model));
  return make_weights(config, continued, kept, transformer);
}

}  // namespace butterfly
