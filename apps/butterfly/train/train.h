// The parts of `butterfly train`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/mpi/mpi_world.h"
#include "butterfly/plan/cost/training_cost.h"
#include "butterfly/plan/description/cluster_model.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/fit/fit_search.h"
#include "butterfly/train/run/run_log.h"
#include "butterfly/train/run/trainer.h"
#include "butterfly/wire/enrolment/node_access.h"
#include "shared/predicted.h"

namespace butterfly::app {

/// The shape that a run will have, as far as that is known without reading the data. Errors: those of the model's and
/// the tokenizer's files.
Result<ModelConfig> shape_of_run(const RunConfig& config);

/// Threads of each rank.
int threads_of_run(const RunConfig& config);

/// --find-batch: tries micro-batches, prints each on stderr and the result on stdout.
enum class ResultForm : std::uint8_t { kText, kJson };
Status find_batch_of_run(const RunConfig& config, ResultForm form);

/// What a run shows on stderr while it goes: on a terminal one line that changes, elsewhere a line now and then. Also
/// feeds the log, and knows what both cost. Used by the thread of the run.
class TrainDisplay {
 public:
  TrainDisplay(const RunConfig& config, RunLog& log);

  /// Borrows the display.
  TrainObserver observer();
  /// Ends the line that changes.
  void end();
  /// Seconds inside the observer's functions.
  double spent_s() const { return spent_s_; }

 private:
  void step(const StepReport& report, std::int64_t steps);
  std::string progress(const StepReport& report, std::int64_t steps) const;
  void say(const std::string& line);
  bool is_due(const StepReport& report, std::int64_t steps);
  void find_peak();

  const RunConfig& config_;
  RunLog& log_;
  bool terminal_ = false;
  bool open_line_ = false;          // on the terminal
  double flops_per_token_ = 0.0;    // 0: not known
  double peak_flops_ = 0.0;         // of all ranks; 0: not known
  double step_s_ = 0.0;             // moving average, with whatever is between steps
  std::uint64_t last_step_ns_ = 0;  // when the last one was reported
  std::uint64_t last_shown_ns_ = 0;
  double spent_s_ = 0.0;
};

/// Seconds of a step as the planner predicts them: for ranks of this machine from the rate of matmuls (`peak_gflops`,
/// of the first) and of memory, and what parallel.speeds say of the others; with `workers` from what these said of
/// themselves. Nothing where that is not known.
std::optional<double> predicted_step_s(const RunConfig& config, const std::optional<PlanCluster>& workers,
                                       double peak_gflops);

/// With parallel.strategy = auto: what the cost model recommends for ranks on these nodes, and why, as a sentence.
/// Errors: those of shape_of_run(); kNoMemory where none of them fits.
Result<std::string> choose_strategy(RunConfig& config, const PlanCluster& cluster);

/// A step of the run as the cost model takes it.
TrainOptions planned_step(const RunConfig& config, TrainStrategy strategy);
/// Ranks of this machine share it, as parallel.speeds say; workers have one each, and are asked. Other machines, of MPI
/// and of who joins, are taken to be like this one. Errors: those of measure_node() and ask_cluster().
Result<PlanCluster> nodes_of_ranks(const RunConfig& config, const NodeAccess& access);

/// With `memory`: the fastest choice of what is open that fits, into `config`; what it tried on stderr. Returns the
/// bytes that each rank is predicted to take at its peak. Errors: those of find_fit() and shape_of_run().
Result<std::uint64_t> fit_to_memory(RunConfig& config, FitOpen open, const PlanCluster& cluster);
/// What MPI decides of a run, on each rank: how many ranks there are, where, and with how many threads; ranks above 0
/// neither show nor log anything. Errors: kInvalidArgument for another number of ranks, or for several machines where
/// `access` does not allow plain text.
Status take_place(const MpiWorld& world, const AccessOptions& access, RunConfig& config);

/// `train` as one of the ranks that MPI has started: an error on any of them is all ranks' end, and is said once.
/// Errors: those of MpiWorld::open().
Result<int> train_on_mpi(const std::function<Result<int>(MpiWorld& world)>& train);

/// What a run cost outside its steps, and what was expected of them.
struct TrainAside {
  double display_s = 0.0;
  std::optional<Judged> step{};    // predicted and measured
  std::uint64_t memory_bytes = 0;  // of a rank at its peak, predicted; 0: nobody asked
  double stolen = 0.0;             // share of the CPU time that the host took meanwhile
  std::string disturbance{};       // the same as a sentence; empty where it is not worth saying
};

/// The result for people, a table of a dozen lines.
std::string describe(const TrainResult& result, const RunConfig& config, const TrainAside& aside);

}  // namespace butterfly::app
