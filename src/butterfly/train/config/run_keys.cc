#include "butterfly/train/config/run_keys.h"

#include <utility>

namespace butterfly {
namespace {

constexpr KeyRole kDecides = KeyRole::kDecides;
constexpr KeyRole kAround = KeyRole::kAround;

template <typename Access>
RunKey key(const char* name, const char* alias, KeyRole role, const char* help, Access at) {
  return value_key({.name = name, .alias = alias, .role = role, .help = help}, at);
}

template <typename Access>
RunKey choice(const char* name, const char* alias, KeyRole role, const char* help, Access at, KeyNames<Access> names) {
  return choice_key({.name = name, .alias = alias, .role = role, .help = help}, at, std::move(names));
}

template <typename Access, typename Parse>
RunKey parsed(const char* name, const char* help, Access at, Parse parse) {
  return parsed_key({.name = name, .role = kDecides, .help = help}, at, parse);
}

#define BF_AT(member) BF_MEMBER(RunConfig, member)
void add_run(std::vector<RunKey>& keys) {
  keys.push_back(key("model", "", kAround,
                     "A shape by name, or a checkpoint to continue (GGUF, Hugging Face directory)", BF_AT(model)));
  keys.push_back(key("seq", "", kDecides,
                     "Tokens of a sequence; 0: the model's context. A shape by name takes longer ones where it rotates",
                     BF_AT(seq)));
  keys.push_back(key("global_batch", "batch", kDecides, "Sequences of a step, over all ranks", BF_AT(global_batch)));
  keys.push_back(key("micro_batch", "", kDecides,
                     "Sequences that are computed at once; gradients of the others are added up. 0: as many as fit, at "
                     "most 8; with parallel.deterministic at most a sixteenth of global_batch",
                     BF_AT(micro_batch)));
  keys.push_back(key("steps", "", kDecides, "Steps of the whole run", BF_AT(steps)));
  keys.push_back(key("seed", "", kDecides, "Seed of the first weights", BF_AT(seed)));
  keys.push_back(parsed("precision", "Operands of matmuls: fp32, bf16 (sums and weights stay fp32)", BF_AT(precision),
                        [](const std::string& name) { return parse_precision(name); }));
  keys.push_back(parsed("recompute", "Activations that are computed again instead of kept: none, selective, block",
                        BF_AT(recompute), [](const std::string& name) { return parse_recompute(name); }));
  keys.push_back(
      key("memory", "", kAround,
          "That each rank may take, \"8GiB\": micro_batch, recompute and parallel.strategy are chosen, where "
          "they are not given, as the fastest that fit. Empty: none of them is",
          BF_AT(memory)));
  keys.push_back(parsed("fusion", "Fused operations: all, none, or some of qkv,swiglu,attention,cross_entropy,adamw",
                        BF_AT(fusion), [](const std::string& list) { return parse_fusion(list); }));
  keys.push_back(key("router_aux_loss_coef", "", kDecides,
                     "Mixture of experts: coefficient of the load-balance loss that is added to the loss",
                     BF_AT(router_aux_loss_coef)));
  keys.push_back(choice("router_aux_loss_over", "", kDecides,
                        "What that loss takes together: the layers of the model, as transformers does, or each layer",
                        BF_AT(router_aux_loss_over),
                        {{"model", BalanceScope::kModel}, {"layer", BalanceScope::kLayer}}));
  keys.push_back(key("frozen", "", kDecides, "Parameters that do not change, by name or prefix", BF_AT(frozen)));
  keys.push_back(
      key("evaluate_every", "", kAround, "Steps between evaluations; 0: at the end alone", BF_AT(evaluate_every)));
  keys.push_back(key("sample_every", "", kAround, "Steps between samples of text; 0: none", BF_AT(sample_every)));
  keys.push_back(key("sample_prompt", "", kAround, "What samples continue", BF_AT(sample_prompt)));
  keys.push_back(key("resume", "", kAround, "Checkpoint directory of a run to go on with", BF_AT(resume)));
  keys.push_back(key("out", "", kAround, "Where the model is written at the end: *.gguf, or a directory", BF_AT(out)));
  keys.push_back(key("log_file", "", kAround, "Every step as a line of JSON", BF_AT(log_file)));
  keys.push_back(key("events_dir", "", kAround, "Directory for TensorBoard's events", BF_AT(events_dir)));
  keys.push_back(
      choice("log", "", kAround, "What is shown while it runs", BF_AT(log),
             {{"silent", LogLevel::kSilent}, {"normal", LogLevel::kNormal}, {"verbose", LogLevel::kVerbose}}));
  keys.push_back(key("threads", "", kAround, "Threads of each rank; 0: all, divided among the ranks", BF_AT(threads)));
}

void add_data(std::vector<RunKey>& keys) {
  keys.push_back(key("data.files", "data", kAround,
                     "Text (UTF-8) or packed tokens (.tokens), or synthetic:markov or synthetic:random",
                     BF_AT(data.files)));
  keys.push_back(key("data.tokenizer", "tokenizer", kAround,
                     "tokenizer.json, GGUF file or Hugging Face directory; empty: that of the continued model",
                     BF_AT(data.tokenizer)));
  keys.push_back(key("data.validation_share", "", kDecides, "Last part of the tokens, never trained on",
                     BF_AT(data.validation_share)));
  keys.push_back(key("data.validation_file", "", kAround, "Text or tokens to validate on instead of a share",
                     BF_AT(data.validation_file)));
  keys.push_back(key("data.seed", "", kDecides, "Seed of the order of the sequences", BF_AT(data.seed)));
}

void add_learning(std::vector<RunKey>& keys) {
  keys.push_back(choice("optimizer.kind", "optimizer", kDecides, "The update", BF_AT(optimizer.kind),
                        {{"adamw", OptimizerKind::kAdamw}, {"sgd", OptimizerKind::kSgd}}));
  keys.push_back(key("optimizer.lr", "lr", kDecides, "Learning rate at its peak", BF_AT(optimizer.rate)));
  keys.push_back(key("optimizer.beta1", "", kDecides, "AdamW: decay of the mean", BF_AT(optimizer.beta1)));
  keys.push_back(key("optimizer.beta2", "", kDecides, "AdamW: decay of the square", BF_AT(optimizer.beta2)));
  keys.push_back(key("optimizer.epsilon", "", kDecides, "AdamW: added to the root", BF_AT(optimizer.epsilon)));
  keys.push_back(key("optimizer.momentum", "", kDecides, "SGD", BF_AT(optimizer.momentum)));
  keys.push_back(key("optimizer.weight_decay", "", kDecides, "Decay of matrices; norms and biases have none",
                     BF_AT(optimizer.weight_decay)));
  keys.push_back(key("optimizer.max_grad_norm", "max-grad-norm", kDecides, "Largest norm of all gradients; 0: no limit",
                     BF_AT(optimizer.clip_norm)));
  keys.push_back(choice("schedule.kind", "schedule", kDecides, "The rate after the warm-up", BF_AT(schedule.kind),
                        {{"constant", ScheduleKind::kConstant},
                         {"linear", ScheduleKind::kLinear},
                         {"cosine", ScheduleKind::kCosine},
                         {"wsd", ScheduleKind::kWsd}}));
  keys.push_back(
      key("schedule.warmup_steps", "warmup", kDecides, "Steps until the peak, linearly", BF_AT(schedule.warmup_steps)));
  keys.push_back(key("schedule.min_lr_ratio", "min-lr-ratio", kDecides,
                     "Last learning rate as a share of the peak; constant has none", BF_AT(schedule.final_share)));
  keys.push_back(key("schedule.decay_share", "", kDecides, "wsd: the part of the steps that decays, at the end",
                     BF_AT(schedule.decay_share)));
  keys.push_back(
      key("guard.loss_sigmas", "", kDecides,
          "Leaves out a step whose loss is this number of deviations above the mean of the last ones; 0: off",
          BF_AT(guard.loss_sigmas)));
  keys.push_back(key("guard.gradient_sigmas", "", kDecides, "The same for the norm of the gradients; 0: off",
                     BF_AT(guard.gradient_sigmas)));
  keys.push_back(
      key("guard.window_steps", "", kDecides, "How many steps these means are over", BF_AT(guard.window_steps)));
}

void add_parallel(std::vector<RunKey>& keys) {
  keys.push_back(key("parallel.ranks", "ranks", kAround, "Ranks that share each step", BF_AT(parallel.ranks)));
  keys.push_back(choice("parallel.strategy", "parallel", kAround,
                        "What each rank has a part of: nothing, the optimizer's state, gradients too, weights too, "
                        "that within groups of ranks, whole layers, or what the cost model recommends",
                        BF_AT(parallel.strategy),
                        {{"ddp", ParallelStrategy::kDdp},
                         {"zero1", ParallelStrategy::kZero1},
                         {"zero2", ParallelStrategy::kZero2},
                         {"zero3", ParallelStrategy::kZero3},
                         {"hybrid", ParallelStrategy::kHybrid},
                         {"pipeline", ParallelStrategy::kPipeline},
                         {"auto", ParallelStrategy::kAuto},
                         {"NO_SHARD", ParallelStrategy::kDdp},
                         {"SHARD_GRAD_OP", ParallelStrategy::kZero2},
                         {"FULL_SHARD", ParallelStrategy::kZero3},
                         {"HYBRID_SHARD", ParallelStrategy::kHybrid}}));
  keys.push_back(key("parallel.shard_group", "shard-group", kAround,
                     "hybrid: ranks that hold the state together; 0: all", BF_AT(parallel.shard_group)));
  keys.push_back(key("parallel.mirror", "mirror", kAround,
                     "Copies of each rank's part of the state on other ranks, so that a lost process costs no step; 0: "
                     "none. Ranks that are threads have none",
                     BF_AT(parallel.mirror)));
  keys.push_back(key("parallel.state_shares", "", kAround,
                     "Relative parts of the state that the ranks of a group hold; none: equal, or in a pipeline such "
                     "that ranks are equally fast",
                     BF_AT(parallel.state_shares)));
  keys.push_back(choice(
      "parallel.engine", "engine", kAround,
      "Ranks are threads, processes, or those that mpirun or srun has started, of which this process is one",
      BF_AT(parallel.engine), {{"inproc", RankEngine::kInproc}, {"tcp", RankEngine::kTcp}, {"mpi", RankEngine::kMpi}}));
  keys.push_back(key("parallel.deterministic", "deterministic", kDecides,
                     "Canonical sums: the same bits for any number of ranks", BF_AT(parallel.deterministic)));
  keys.push_back(choice("parallel.compression", "compression", kDecides, "How gradients are packed on their way",
                        BF_AT(parallel.compression),
                        {{"off", GradientCompression::kOff},
                         {"fp16", GradientCompression::kFp16},
                         {"bf16", GradientCompression::kBf16},
                         {"int8", GradientCompression::kInt8},
                         {"lz4", GradientCompression::kLz4},
                         {"zstd", GradientCompression::kZstd},
                         {"auto", GradientCompression::kAuto}}));
  keys.push_back(
      key("parallel.bucket_bytes", "", kDecides, "Gradients that travel together", BF_AT(parallel.bucket_bytes)));
  keys.push_back(key("parallel.shared_memory", "", kAround,
                     "Ranks that are processes of one host exchange gradients and weights through memory",
                     BF_AT(parallel.shared_memory)));
  keys.push_back(key("parallel.speeds", "", kAround,
                     "Relative speeds of the ranks, for uneven shares; none: equal, and by measured times once they "
                     "differ",
                     BF_AT(parallel.speeds)));
  keys.push_back(key("parallel.workers", "workers", kAround,
                     "Other machines' ranks: HOST:PORT of `butterfly worker` processes; this process is rank 0",
                     BF_AT(parallel.workers)));
  keys.push_back(
      key("parallel.join_at", "join-at", kAround,
          "HOST:PORT where workers may join the run while it goes on (butterfly worker --join HOST:PORT); this "
          "process is rank 0",
          BF_AT(parallel.join_at)));
  keys.push_back(key("parallel.rendezvous", "rendezvous", kAround,
                     "HOST:PORT where the processes of a run meet that are all started with the same command, one for "
                     "each rank: the one that can listen there is rank 0, and the others join it",
                     BF_AT(parallel.rendezvous)));
  keys.push_back(
      key("parallel.nnodes", "nnodes", kAround,
          "With --join-at or --rendezvous: how many ranks the run waits for before it begins, and has at most: "
          "N or MIN:MAX; empty: 1, and as many as come",
          BF_AT(parallel.nnodes)));
}

void add_checkpoints(std::vector<RunKey>& keys) {
  keys.push_back(key("checkpoint.directory", "checkpoints", kAround, "Where the run is saved; empty: nowhere",
                     BF_AT(checkpoint.directory)));
  keys.push_back(
      key("checkpoint.every_steps", "save-every", kAround, "0: at the end alone", BF_AT(checkpoint.every_steps)));
  keys.push_back(key("checkpoint.keep", "", kAround, "How many of the last ones stay", BF_AT(checkpoint.keep)));
  keys.push_back(
      key("checkpoint.asynchronous", "", kAround, "Written while training goes on", BF_AT(checkpoint.asynchronous)));
  keys.push_back(key("checkpoint.max_restarts", "max-restarts", kAround,
                     "How often the command begins again from the newest checkpoint when its process, rank 0 among "
                     "them, is killed or crashes",
                     BF_AT(checkpoint.max_restarts)));
}
#undef BF_AT

}  // namespace

const std::vector<RunKey>& run_keys() {
  static const std::vector<RunKey> keys = [] {
    std::vector<RunKey> all;
    add_run(all);
    add_data(all);
    add_learning(all);
    add_parallel(all);
    add_checkpoints(all);
    return all;
  }();
  return keys;
}

}  // namespace butterfly
