// What values of a run's settings go together.
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "butterfly/base/settings/key_value.h"
#include "butterfly/base/units.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

enum class Zero : std::uint8_t { kAllowed, kRefused };
enum class Top : std::uint8_t { kAllowed, kRefused };

/// A value and where it may be.
struct Limits {
  const char* key;
  double value;
  double max = kNoLimit;
  Zero zero = Zero::kAllowed;
  Top top = Top::kAllowed;
};

Status check(const Limits& limits) {
  const bool low = limits.zero == Zero::kAllowed ? limits.value >= 0.0 : limits.value > 0.0;
  const bool high = limits.top == Top::kAllowed ? limits.value <= limits.max : limits.value < limits.max;
  if (low && high && std::isfinite(limits.value)) return {};
  std::string expected = limits.zero == Zero::kAllowed ? "0 or more" : "more than 0";
  if (limits.max != kNoLimit) {
    expected += fmt::format(" and {} {}", limits.top == Top::kAllowed ? "at most" : "less than", limits.max);
  }
  return make_error(ErrorCode::kInvalidArgument, "{} is {}, expected {}", limits.key, limits.value, expected);
}

Status check_at_least(const char* key, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return {};
  return make_error(ErrorCode::kInvalidArgument, "{} is {}, expected {} to {}", key, value, least, most);
}

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();

Status check_counts(const RunConfig& config) {
  BF_TRY(check_at_least("steps", config.steps, 1, kIntMax));
  BF_TRY(check_at_least("seq", config.seq, 0, kIntMax));
  BF_TRY(check_at_least("global_batch", config.global_batch, 1, 1 << 20));
  BF_TRY(check_at_least("micro_batch", config.micro_batch, 0, 1 << 20));
  BF_TRY(check_at_least("threads", config.threads, 0, 1024));
  BF_TRY(check_at_least("evaluate_every", config.evaluate_every, 0, kIntMax));
  BF_TRY(check_at_least("sample_every", config.sample_every, 0, kIntMax));
  BF_TRY(check_at_least("parallel.ranks", config.parallel.ranks, 1, 1024));
  BF_TRY(check_at_least("parallel.mirror", config.parallel.mirror, 0, 16));
  BF_TRY(check_at_least("parallel.bucket_bytes", config.parallel.bucket_bytes, 1024, std::int64_t{1} << 32));
  BF_TRY(check_at_least("schedule.warmup_steps", config.schedule.warmup_steps, 0, config.steps));
  BF_TRY(check_at_least("guard.window_steps", config.guard.window_steps, 2, kIntMax));
  BF_TRY(check_at_least("checkpoint.every_steps", config.checkpoint.every_steps, 0, kIntMax));
  BF_TRY(check_at_least("checkpoint.max_restarts", config.checkpoint.max_restarts, 0, 1'000'000));
  return check_at_least("checkpoint.keep", config.checkpoint.keep, 1, kIntMax);
}

Status check_checkpoints(const RunConfig& config) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.every_steps > 0 && checkpoint.directory.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "checkpoint.every_steps is {}, and checkpoint.directory is not set: where to?",
                      checkpoint.every_steps);
  }
  if (checkpoint.max_restarts > 0 && (checkpoint.directory.empty() || checkpoint.every_steps == 0)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "checkpoint.max_restarts is {}, and checkpoint.{} is not set: what from?",
                      checkpoint.max_restarts, checkpoint.directory.empty() ? "directory" : "every_steps");
  }
  if (checkpoint.max_restarts > 0 && config.parallel.engine == RankEngine::kMpi) {
    return make_error(ErrorCode::kInvalidArgument,
                      "checkpoint.max_restarts is {}, and parallel.engine is mpi, which ends all ranks with one: what "
                      "started them has to start them again",
                      checkpoint.max_restarts);
  }
  return {};
}

Status check_rates(const RunConfig& config) {
  const OptimizerConfig& optimizer = config.optimizer;
  BF_TRY(check({.key = "optimizer.lr", .value = optimizer.rate, .zero = Zero::kRefused}));
  BF_TRY(check({.key = "optimizer.beta1", .value = optimizer.beta1, .max = 1.0, .top = Top::kRefused}));
  BF_TRY(check({.key = "optimizer.beta2", .value = optimizer.beta2, .max = 1.0, .top = Top::kRefused}));
  BF_TRY(check({.key = "optimizer.epsilon", .value = optimizer.epsilon, .zero = Zero::kRefused}));
  BF_TRY(check({.key = "optimizer.momentum", .value = optimizer.momentum, .max = 1.0, .top = Top::kRefused}));
  BF_TRY(check({.key = "optimizer.weight_decay", .value = optimizer.weight_decay}));
  BF_TRY(check({.key = "optimizer.max_grad_norm", .value = optimizer.clip_norm}));
  BF_TRY(check({.key = "router_aux_loss_coef", .value = config.router_aux_loss_coef}));
  BF_TRY(check({.key = "schedule.min_lr_ratio", .value = config.schedule.final_share, .max = 1.0}));
  BF_TRY(check({.key = "schedule.decay_share", .value = config.schedule.decay_share, .max = 1.0}));
  BF_TRY(check({.key = "guard.loss_sigmas", .value = config.guard.loss_sigmas}));
  BF_TRY(check({.key = "guard.gradient_sigmas", .value = config.guard.gradient_sigmas}));
  return check(
      {.key = "data.validation_share", .value = config.data.validation_share, .max = 1.0, .top = Top::kRefused});
}

/// A step is a whole number of micro-batches, and every rank computes at least one.
Status check_split(const RunConfig& config) {
  const bool pipeline = config.parallel.strategy == ParallelStrategy::kPipeline;  // every rank computes all of them
  const int ranks = pipeline ? 1 : ranks_of(config.parallel), batch = config.global_batch, micro = config.micro_batch;
  if (batch < ranks) {
    return make_error(ErrorCode::kInvalidArgument,
                      "global_batch is {} and parallel.ranks {}: every rank needs at least one sequence of a step",
                      batch, ranks);
  }
  if (micro == 0) return {};
  if (batch % micro != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "global_batch is {} and micro_batch {}, which does not divide it: {} would do", batch, micro,
                      std::gcd(batch, micro));
  }
  if (batch / micro < ranks) {
    return make_error(ErrorCode::kInvalidArgument,
                      "global_batch {} in micro-batches of {} makes {}, fewer than the {} ranks: at most {} would do",
                      batch, micro, batch / micro, ranks, batch / ranks);
  }
  return {};
}

Status check_speeds(const ParallelConfig& parallel) {
  const std::vector<double>& speeds = parallel.speeds;
  if (!speeds.empty() && speeds.size() != static_cast<std::size_t>(ranks_of(parallel))) {
    return make_error(ErrorCode::kInvalidArgument, "parallel.speeds has {} numbers for {} ranks", speeds.size(),
                      ranks_of(parallel));
  }
  for (double speed : speeds) {
    BF_TRY(check({.key = "parallel.speeds", .value = speed, .zero = Zero::kRefused}));
  }
  return {};
}

Status check_sharding(const ParallelConfig& parallel) {
  const int ranks = ranks_of(parallel);
  const int group = parallel.shard_group == 0 ? ranks : parallel.shard_group;
  if (group < 1 || (ranks % group != 0 && join_address_of(parallel).empty())) {
    return make_error(ErrorCode::kInvalidArgument,
                      "parallel.shard_group is {}, which does not divide the {} ranks into groups", group, ranks);
  }
  if (parallel.shard_group != 0 && parallel.strategy != ParallelStrategy::kHybrid) {
    return make_error(ErrorCode::kInvalidArgument, "parallel.shard_group is {}, only hybrid has groups",
                      parallel.shard_group);
  }
  if (!sharding_of(parallel.strategy).optimizer) return {};
  if (parallel.compression != GradientCompression::kOff) {
    return make_error(ErrorCode::kInvalidArgument,
                      "parallel.compression packs the gradients of ddp; with a strategy that divides the state they "
                      "travel as they are");
  }
  if (!parallel.state_shares.empty() && parallel.state_shares.size() != static_cast<std::size_t>(group)) {
    return make_error(ErrorCode::kInvalidArgument, "parallel.state_shares has {} numbers for a group of {} ranks",
                      parallel.state_shares.size(), group);
  }
  for (double share : parallel.state_shares) {
    BF_TRY(check({.key = "parallel.state_shares", .value = share, .zero = Zero::kRefused}));
  }
  return {};
}

/// Who may come while a run goes on, and what cannot be said of those that nobody knows yet.
Status check_join_address(const ParallelConfig& parallel) {
  const std::string& address = join_address_of(parallel);
  if (address.empty()) {
    if (parallel.nnodes.empty()) return {};
    return make_error(
        ErrorCode::kInvalidArgument,
        "parallel.nnodes is {}, and neither parallel.rendezvous nor parallel.join_at says where ranks meet",
        parallel.nnodes);
  }
  if (!parallel.rendezvous.empty() && !(parallel.join_at.empty() && parallel.workers.empty())) {
    return make_error(ErrorCode::kInvalidArgument,
                      "parallel.rendezvous is {}: all ranks meet there, parallel.join_at and parallel.workers are for "
                      "runs without one",
                      parallel.rendezvous);
  }
  BF_TRY(rank_limits(parallel.nnodes));
  if (parallel.workers.empty() && parallel.ranks != 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "parallel.ranks is {}, and others join at {}: parallel.nnodes says how many ranks there may be",
                      parallel.ranks, address);
  }
  if (!parallel.speeds.empty() || !parallel.state_shares.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "parallel.{} is of ranks that are known before the run begins, and others join at {}",
                      parallel.speeds.empty() ? "state_shares" : "speeds", address);
  }
  return {};
}

Status check_workers(const ParallelConfig& parallel) {
  const std::vector<std::string>& workers = parallel.workers;
  const std::set<std::string> different(workers.begin(), workers.end());
  if (different.size() < workers.size()) {
    return make_error(ErrorCode::kInvalidArgument, "parallel.workers has {} addresses, {} of them different: {}",
                      workers.size(), different.size(), fmt::join(workers, ", "));
  }
  if (parallel.engine == RankEngine::kMpi && has_ranks_elsewhere(parallel)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "parallel.engine is mpi, whose ranks are those that MPI has started: parallel.workers, "
                      "parallel.join_at and parallel.rendezvous do without it");
  }
  if (workers.empty() || parallel.ranks == 1 || parallel.ranks == ranks_of(parallel)) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "parallel.ranks is {}, {} workers and this process are {}: leave parallel.ranks out",
                    parallel.ranks, workers.size(), ranks_of(parallel));
}

}  // namespace

Result<RankLimits> rank_limits(const std::string& nnodes) {
  RankLimits limits;
  if (nnodes.empty()) return limits;
  const std::size_t colon = nnodes.find(':');
  const auto number = [](const std::string& text) {
    const auto value = parse_value(text, std::int64_t{0});
    return value ? std::get<std::int64_t>(*value) : 0;
  };
  const std::int64_t least = number(nnodes.substr(0, colon));
  const std::int64_t most = colon == std::string::npos ? least : number(nnodes.substr(colon + 1));
  if (least < 1 || most < least || most > limits.most) {
    return make_error(ErrorCode::kInvalidArgument,
                      "parallel.nnodes is {}, expected N or MIN:MAX with 1 <= MIN <= MAX <= {}", nnodes, limits.most);
  }
  return RankLimits{.least = static_cast<int>(least), .most = static_cast<int>(most)};
}

Status validate(const RunConfig& config) {
  if (config.model.empty() && config.shape.layers == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "model is not set, expected the path of a checkpoint or one of the shapes {}",
                      fmt::join(named_configs(), ", "));
  }
  if (config.data.files.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "data.files is empty, expected files of text or tokens, or synthetic:markov");
  }
  if (!config.memory.empty() && parse_bytes(config.memory) == 0) {
    return make_error(ErrorCode::kInvalidArgument, "memory is \"{}\", expected a size such as 8GiB", config.memory);
  }
  BF_TRY(check_counts(config));
  BF_TRY(check_rates(config));
  BF_TRY(check_join_address(config.parallel));
  BF_TRY(check_workers(config.parallel));
  BF_TRY(check_split(config));
  BF_TRY(check_speeds(config.parallel));
  BF_TRY(check_sharding(config.parallel));
  if (config.shape.context > 0 && config.seq > config.shape.context) {
    return make_error(ErrorCode::kInvalidArgument, "seq is {}, the model's context has {} tokens", config.seq,
                      config.shape.context);
  }
  return check_checkpoints(config);
}

}  // namespace butterfly
