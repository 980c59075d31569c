#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/model/format/vocabulary_file.h"
#include "butterfly/train/data/token_file.h"
#include "butterfly/train/run/find_batch.h"
#include "shared/running.h"
#include "train/train.h"

namespace butterfly::app {
namespace {

constexpr double kMemoryShare = 0.9;  // of what is free; the rest is for the data and everyone else

/// Vocabulary of the tokenizer, or of packed data; 0 where neither is named.
Result<int> vocab_of_data(const DataConfig& data) {
  if (!data.tokenizer.empty()) {
    BF_ASSIGN_OR_RETURN(const Vocabulary vocabulary, open_vocabulary(data.tokenizer));
    return vocabulary.size();
  }
  if (!data.files.front().ends_with(".tokens")) return 0;
  BF_ASSIGN_OR_RETURN(const TokenFile file, TokenFile::open(data.files.front()));
  return file.vocab();
}

std::uint64_t moment_arrays(const OptimizerConfig& optimizer) {
  if (optimizer.kind == OptimizerKind::kAdamw) return 2;
  return optimizer.momentum > 0.0 ? 1 : 0;
}

}  // namespace

Result<ModelConfig> shape_of_run(const RunConfig& config) {
  std::error_code ignored;
  if (std::filesystem::exists(config.model, ignored)) {
    BF_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                        open_checkpoint(config.model, {.weights_required = false, .vocabulary_required = false}));
    return checkpoint.config;
  }
  BF_ASSIGN_OR_RETURN(ModelConfig shape, named_config(config.model));
  BF_ASSIGN_OR_RETURN(const int vocab, vocab_of_data(config.data));
  if (vocab > 0) shape.vocab = vocab;
  if (shape.position == PositionKind::kRope) shape.context = std::max(shape.context, config.seq);
  return shape;
}

int threads_of_run(const RunConfig& config) {
  return config.threads > 0 ? config.threads : std::max(1, usable_threads() / ranks_here(config.parallel));
}

Status find_batch_of_run(const RunConfig& config, ResultForm form) {
  BF_ASSIGN_OR_RETURN(const ModelConfig shape, shape_of_run(config));
  BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  FindBatchOptions options;
  options.transformer = {.precision = config.precision,
                         .recompute = config.recompute,
                         .fusion = config.fusion,
                         .seq = config.seq > 0 ? config.seq : shape.context,
                         .threads = threads_of_run(config),
                         .isa = isa};
  options.moment_arrays = moment_arrays(config.optimizer);
  options.memory_bytes =
      static_cast<std::uint64_t>(kMemoryShare * static_cast<double>(topology.available_memory_bytes)) /
      static_cast<std::uint64_t>(ranks_here(config.parallel));
  std::fprintf(stderr,
               "%s of memory for each rank, sequences of %d tokens\nmicro-batch  memory     forward and backward\n",
               format_bytes(options.memory_bytes).c_str(), options.transformer.seq);
  const auto trials = find_batch(shape, options, [](const BatchTrial& trial) {
    const std::string speed = trial.fits ? fmt::format("{:.0f} tokens/s", trial.tokens_per_s) : "does not fit";
    std::fprintf(stderr, "%11d  %-9s  %s\n", trial.micro_batch, format_bytes(trial.predicted_bytes).c_str(),
                 speed.c_str());
  });
  if (!trials) return tl::unexpected(trials.error());
  const auto fits = [](const BatchTrial& trial) { return trial.fits; };
  const BatchTrial largest = *std::find_if(trials->rbegin(), trials->rend(), fits);
  const BatchTrial fastest = *std::ranges::max_element(*trials, {}, &BatchTrial::tokens_per_s);
  if (form == ResultForm::kJson) {
    nlohmann::ordered_json json{{"largest", largest.micro_batch}, {"fastest", fastest.micro_batch}};
    for (const BatchTrial& trial : *trials) {
      json["trials"].push_back({{"micro_batch", trial.micro_batch},
                                {"memory_bytes", trial.predicted_bytes},
                                {"fits", trial.fits},
                                {"tokens_per_s", trial.tokens_per_s}});
    }
    std::printf("%s\n", dump_json(json).c_str());
  } else {
    std::printf("largest micro_batch %d, fastest %d\n", largest.micro_batch, fastest.micro_batch);
  }
  return {};
}

}  // namespace butterfly::app
