#include "butterfly/train/step/step_facts.h"

#include "butterfly/trace/trace.h"
#include "butterfly/train/gradients/gradient_codec.h"

namespace butterfly {
namespace {

void set(const char* name, std::int64_t value) {
  trace::set_fact(name, fmt::format("{}", value));
}

/// Without the experts that a token does not go through.
std::int64_t active_parameters(const ModelConfig& config, const ParameterSet& parameters) {
  std::int64_t experts = 0;
  for (const Parameter& parameter : parameters.list()) {
    if (parameter.name.find("_exps.") != std::string::npos) experts += parameter.size();
  }
  const std::int64_t unused = config.moe.experts - config.moe.experts_used;
  return parameters.parameter_count() - (experts == 0 ? 0 : experts / config.moe.experts * unused);
}

void set_model_facts(TrainableTransformer& transformer) {
  const ModelConfig& config = transformer.config();
  const ParameterSet& parameters = transformer.parameters();
  trace::set_fact("model.name", config.name.empty() ? config.architecture : config.name);
  set("model.layers", config.layers);
  set("model.model_dim", config.model_dim);
  set("model.vocab", config.vocab);
  set("model.parameters", parameters.parameter_count());
  set("model.active_parameters", active_parameters(config, parameters));
  set("model.bytes", static_cast<std::int64_t>(transformer.memory().parameter_bytes));
  trace::set_fact("model.type", "F32");
}

}  // namespace

void set_step_facts(const StepContext& context) {
  const RunConfig& config = context.config;
  const int rank = context.collectives == nullptr ? 0 : context.collectives->rank();
  const int ranks = context.collectives == nullptr ? 1 : context.collectives->size();
  const bool threads = ranks > 1 && config.parallel.workers.empty() && config.parallel.engine == RankEngine::kInproc;
  if (threads && rank > 0) return;
  const TransformerOptions& options = context.transformer.options();
  set_model_facts(context.transformer);
  set("rank", rank);
  set("ranks", ranks);
  set("ranks.in_process", threads ? ranks : 1);
  set("threads", options.threads);
  trace::set_fact("isa", std::string(to_string(options.isa)));
  const int sequences = (context.share.last - context.share.first) * context.micro_batch;
  set("train.micro_batch", config.micro_batch);
  set("train.micro_batches", (sequences + config.micro_batch - 1) / config.micro_batch);
  set("train.seq", options.seq);
  set("train.global_batch", config.global_batch);
  set("train.steps", config.steps);
  trace::set_fact("train.type", std::string(to_string(options.precision)));
  trace::set_fact("train.recompute", std::string(to_string(options.recompute)));
  trace::set_fact("train.fusion", to_string(options.fusion));
  trace::set_fact("train.optimizer", config.optimizer.kind == OptimizerKind::kAdamw ? "adamw" : "sgd");
  trace::set_fact("train.compression", std::string(gradient_compression_name(config.parallel.compression)));
  trace::set_fact("train.forward_flops_per_token", context.transformer.forward_flops_per_token());
}

}  // namespace butterfly
