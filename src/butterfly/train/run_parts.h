// What a run is made of, made from its configuration; tests put other parts in. A plain bundle of owners.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "butterfly/base/result.h"
#include "butterfly/model/network.h"
#include "butterfly/text/vocabulary.h"
#include "butterfly/train/checkpoint_files.h"
#include "butterfly/train/dataset.h"
#include "butterfly/train/optimizer.h"
#include "butterfly/train/reducer.h"
#include "butterfly/train/run_checkpoint.h"
#include "butterfly/train/run_config.h"
#include "butterfly/train/trainer.h"

namespace butterfly {

struct RunParts {
  RunConfig config{};  // every choice made: shape, seq, micro_batch, threads
  Isa isa = Isa::kReference;
  Vocabulary vocabulary{};  // of kind kNone where the data has none
  std::unique_ptr<Dataset> data{};
  std::unique_ptr<Network> network{};
  std::unique_ptr<Optimizer> optimizer{};  // on the network's team
  std::optional<SavedRun> resumed{};       // that the run goes on from; not read yet
  std::function<Result<std::unique_ptr<GradientReducer>>(const ReducerOptions&)> make_reducer =
      [](const ReducerOptions& options) { return butterfly::make_reducer(options); };
  CheckpointFiles* files = &disk_files();
};

/// Opens, plans and initialises. Errors: those of Trainer::create().
Result<RunParts> make_run_parts(const RunConfig& config, const TrainRank& rank);

/// A trainer over `parts`; reads parts.resumed. Errors: those of the saved files and of the reducer.
Result<std::unique_ptr<Trainer>> make_trainer(RunParts parts, const TrainRank& rank);

}  // namespace butterfly
