// Every setting of a training run, with its default. Keys of run.toml and flags of `butterfly train` have these names
// (docs/formats/run.md). Plain values; what a resumed run must agree on is in fingerprint().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/kernel/gemm/gemm.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/training/trainable_transformer.h"

namespace butterfly {

enum class OptimizerKind : std::uint8_t { kAdamw, kSgd };
enum class ScheduleKind : std::uint8_t { kConstant, kLinear, kCosine, kWsd };
enum class LogLevel : std::uint8_t { kSilent, kNormal, kVerbose };
/// Ranks are threads, processes that this one starts, or processes that MPI has started.
enum class RankEngine : std::uint8_t { kInproc, kTcp, kMpi };
/// How gradients are packed on their way. kAuto: for each bucket what the measured break-even says.
enum class GradientCompression : std::uint8_t { kOff, kFp16, kBf16, kInt8, kLz4, kZstd, kAuto };

struct DataConfig {
  std::vector<std::string> files{};  // text (UTF-8) or packed tokens (.tokens)
  std::string tokenizer{};           // tokenizer.json, GGUF or Hugging Face directory; empty: the continued model's
  double validation_share = 0.1;     // the last part of the tokens, never trained on; 0: none
  std::string validation_file{};     // instead of a share
  std::uint64_t seed = 1;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamw;
  double rate = 3e-4;  // peak
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double momentum = 0.9;  // SGD
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // 0: none
};

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kCosine;
  int warmup_steps = 0;      // linear, from 0 to the peak
  double final_share = 0.1;  // of the peak, at the last step
  double decay_share = 0.2;  // WSD: of the steps, at the end
};

/// The directory of a rank on another machine, whose places are none of rank 0's: rank 0 writes for it.
inline constexpr const char* kSavedAtRankZero = "at rank 0";

struct CheckpointConfig {
  std::string directory{};  // empty: none are written
  int every_steps = 0;      // 0: at the end alone
  int keep = 2;
  bool asynchronous = true;
  int max_restarts = 0;  // of the command whose process is killed or crashes; the library has none
};

struct GuardConfig {
  double loss_sigmas = 0.0;      // a step whose loss is so far above the mean of a window is left out; 0: off
  double gradient_sigmas = 0.0;  // the same for the norm of its gradient
  int window_steps = 128;
};

/// What of a run's state every rank has, and what each has a part of (docs/decisions/0022-sharding.md). kHybrid: as
/// kZero3 within a group of ranks, each group with all of it. kPipeline: a rank has whole layers, and computes them for
/// all micro-batches (docs/decisions/0023-training-pipeline.md). kAuto is replaced before a run begins: no rank takes
/// it.
enum class ParallelStrategy : std::uint8_t { kDdp, kZero1, kZero2, kZero3, kHybrid, kPipeline, kAuto };

struct ParallelConfig {
  int ranks = 1;
  ParallelStrategy strategy = ParallelStrategy::kDdp;
  int shard_group = 0;  // of kHybrid: ranks that hold the state together; 0: all
  int mirror = 1;       // copies of each rank's part on other processes, where the strategy divides state
  std::vector<double> state_shares{};  // of the ranks of a group, of the state; empty: equal
  RankEngine engine = RankEngine::kInproc;
  int ranks_here = 0;          // of kMpi: as MPI has placed them; no key
  bool deterministic = false;  // canonical sums: the same bits for any number of ranks
  GradientCompression compression = GradientCompression::kOff;
  std::int64_t bucket_bytes = 4 << 20;
  bool shared_memory = true;           // processes of one host read each other's gradients; no bit depends on it
  std::vector<double> speeds{};        // of the ranks, for uneven shares; empty: equal
  std::vector<std::string> workers{};  // addresses of processes that are ranks 1, 2, ...; empty: ranks are of here
  std::string join_at{};               // "host:port" where workers may join the run; empty: nowhere
  std::string rendezvous{};  // the same, where every process of the run is started alike; who can listen there leads
  std::string nnodes{};      // of a run that can be joined: "MIN:MAX" ranks, or "N"; empty: 1 and as many as come
};

/// How few ranks a run that can be joined begins with, and how many it takes at most.
struct RankLimits {
  int least = 1, most = 1024;
};
/// Of `nnodes`. Errors: kInvalidArgument saying what would do.
Result<RankLimits> rank_limits(const std::string& nnodes);

/// Where other processes ask to take part; empty: nowhere.
inline const std::string& join_address_of(const ParallelConfig& parallel) {
  return parallel.rendezvous.empty() ? parallel.join_at : parallel.rendezvous;
}

/// Ranks that may see neither this process's files nor its memory.
inline bool has_ranks_elsewhere(const ParallelConfig& parallel) {
  return !parallel.workers.empty() || !join_address_of(parallel).empty();
}

/// Of what a rank has a part alone.
struct Sharding {
  bool optimizer = false, gradients = false, weights = false;
};
inline Sharding sharding_of(ParallelStrategy strategy) {
  return {.optimizer = strategy != ParallelStrategy::kDdp,
          .gradients = strategy > ParallelStrategy::kZero1,
          .weights = strategy > ParallelStrategy::kZero2};
}

/// Workers count without being counted in `ranks`; this process is rank 0. Of a run that can be joined: with whom it
/// begins.
int ranks_of(const ParallelConfig& parallel);

/// Ranks that share this machine's cores and memory with this process; workers have their own.
inline int ranks_here(const ParallelConfig& parallel) {
  if (parallel.engine == RankEngine::kMpi && parallel.ranks_here > 0) return parallel.ranks_here;
  return has_ranks_elsewhere(parallel) ? 1 : parallel.ranks;
}

struct RunConfig {
  std::string model{};  // name of a shape, or a checkpoint to continue (GGUF, Hugging Face directory)
  ModelConfig shape{};  // filled from `model` when resolved; vocabulary from the tokenizer
  DataConfig data{};
  int seq = 0;           // 0: the model's context
  int global_batch = 8;  // sequences of a step, over all ranks
  int micro_batch = 0;   // 0: as many as divide the rank's share and fit, at most 8; with parallel.deterministic a
                         // sixteenth of global_batch at most, for any number of ranks
  int steps = 1000;
  std::uint64_t seed = 1;  // of the first weights
  Precision precision = Precision::kFloat32;
  Recompute recompute = Recompute::kNone;
  std::string memory{};  // that a rank may take, "8GiB": micro-batch, recomputation and strategy are chosen to fit
                         // where they are left open, before a run begins; empty: none of them is
  Fusion fusion{};
  double router_aux_loss_coef = 0.001;  // of the load-balance loss, for a mixture of experts
  BalanceScope router_aux_loss_over = BalanceScope::kModel;
  OptimizerConfig optimizer{};
  ScheduleConfig schedule{};
  std::vector<std::string> frozen{};  // parameters, by name or prefix
  GuardConfig guard{};
  int evaluate_every = 0;  // steps; 0: at the end alone
  int sample_every = 0;    // steps; 0: never
  std::string sample_prompt{};
  ParallelConfig parallel{};
  CheckpointConfig checkpoint{};
  std::string resume{};      // checkpoint directory
  std::string out{};         // model written at the end: *.gguf or a directory; empty: none
  std::string log_file{};    // JSON lines
  std::string events_dir{};  // TensorBoard
  LogLevel log = LogLevel::kNormal;
  int threads = 0;  // of each rank; 0: all, divided among the ranks of this machine
};

/// The largest micro-batch that is chosen where none is given. Where the bits may not depend on the ranks, this may not
/// either: then a step has at least 16 micro-batches, if it has as many sequences, and more ranks than micro-batches
/// are refused.
int micro_batch_most(const RunConfig& config, int ranks);

/// Errors: kInvalidArgument naming the key, its value and what would do (impossible batch splits among them).
Status validate(const RunConfig& config);

/// What the file leaves out is as in `standard`. Errors: kNotFound, kBadData naming file, line and key; unknown keys
/// are errors.
Result<RunConfig> read_run_config(const std::string& path, const RunConfig& standard = {});
/// The same for text; `name` stands for the file in errors.
Result<RunConfig> parse_run_config(const std::string& text, const std::string& name);
/// Every key; reading it gives back the same values.
std::string to_toml(const RunConfig& config);

/// SHA-256 over what decides the bits of a run (not ranks, engine, threads, paths or logging).
std::string fingerprint(const RunConfig& config);

}  // namespace butterfly
