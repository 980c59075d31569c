// Learns a model from text, as `butterfly train` does: on this machine's threads, over processes of it, or over
// workers. The settings are those of a run file (docs/formats/run.md). Not thread-safe; a stop may be requested from
// any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

struct TrainingStep {
  std::int64_t step = 0;  // from 1
  std::int64_t steps = 0;
  double loss = 0.0;  // mean over the step's tokens, all ranks; nats
  double gradient_norm = 0.0;
  double learning_rate = 0.0;
  std::int64_t tokens = 0;
  double step_s = 0.0;
};

struct TrainerOptions {
  std::string run_file{};  // TOML; empty: every setting has its default
  /// Key and value, as flags of the program: {"optimizer.rate", "1e-3"}, {"workers", "a:7000,b:7000"}. They win over
  /// the file, and later ones over earlier ones.
  std::vector<std::pair<std::string, std::string>> settings{};
  std::string credentials{};                         // folder, for runs over workers; as GeneratorOptions::credentials
  bool any_address = false;                          // as GeneratorOptions::any_address
  std::chrono::milliseconds member_timeout{60'000};  // a rank that is silent for so long is done without

  // What happens, told by the thread that runs:
  std::function<void(const TrainingStep&)> step{};
  std::function<void(std::int64_t step, double validation_loss)> evaluated{};
  std::function<void(std::int64_t step, const std::string& path)> saved{};
  std::function<void(const std::string&)> note{};  // lines for people: ranks that come and go, and the like
};

struct TrainingResult {
  std::int64_t steps = 0;               // done, those before a resume included
  double final_loss = 0.0;              // nats per token
  double validation_loss = 0.0;         // 0 where nothing was evaluated
  double tokens_per_s = 0.0;            // all ranks together
  double step_s = 0.0;                  // mean
  double mfu = 0.0;                     // share of the measured peak; 0 where that is not known
  std::uint64_t peak_memory_bytes = 0;  // that the run asked for, on this rank
  std::string weights_hash{};           // SHA-256
  bool valid = false;                   // whether the run passed its own audit
  std::vector<std::string> reasons{};   // why not
  std::string json{};                   // everything, as `butterfly train --json` prints it
};

class Trainer {
 public:
  /// Reads the settings. Errors: those of the file; kInvalidArgument naming the key, its value and what would do, or
  /// the nearest key for one that does not exist.
  static Result<Trainer> create(const TrainerOptions& options);

  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;
  ~Trainer();

  /// The whole run, to its last step or until `stop` is requested, which ends it after a step, saved where there is a
  /// checkpoint directory. A rank that is lost is done without; the others go on from the last step. A run with several
  /// processes of this machine forks: call it before there are other threads. Errors: those of the model's and the
  /// data's files, of memory, of reaching workers, kIo of what is to be written.
  Result<TrainingResult> run(std::stop_token stop = {});

  /// Every setting as TOML, as a run file has it.
  std::string settings() const;

 private:
  struct State;
  explicit Trainer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct CommunicationEstimate {
  double bytes_per_step = 0.0;  // that each rank sends
  int messages_per_step = 0;    // that each rank sends one after another
};

/// What a training step of ranks on several nodes moves, by a ring: "ddp" (every rank has the whole model, gradients
/// are summed), "shard_grad_op" (gradients and moments are divided) or "full_shard", also "sharded" (weights, too). All
/// floats are of 4 bytes; a rank computes its sequences at once. Errors: kInvalidArgument (strategy, a world size below
/// 1).
Result<CommunicationEstimate> estimate_communication(const std::string& strategy, int world_size,
                                                     std::uint64_t parameters);

}  // namespace butterfly
