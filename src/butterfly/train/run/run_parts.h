// What a run is made of, made from its configuration; tests put other parts in. A plain bundle of owners.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "butterfly/base/result.h"
#include "butterfly/model/training/trainable_transformer.h"
#include "butterfly/text/vocabulary.h"
#include "butterfly/train/checkpoint/checkpoint_files.h"
#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "butterfly/train/checkpoint/run_lock.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/data/dataset.h"
#include "butterfly/train/gradients/reducer.h"
#include "butterfly/train/run/trainer.h"
#include "butterfly/train/step/optimizer.h"

namespace butterfly {

/// The state that a rank begins with: what it has made or read itself, or what another rank has.
enum class FirstState : std::uint8_t { kOwn, kReceived };

struct RunParts {
  RunConfig config{};             // every choice made: shape, seq, micro_batch, threads
  std::optional<RunLock> lock{};  // of the checkpoint folder, on the rank that writes into it
  Isa isa = Isa::kReference;
  Vocabulary vocabulary{};  // of kind kNone where the data has none
  std::unique_ptr<Dataset> data{};
  std::string data_digest{};  // Dataset::digest() where the run is saved or resumed; else empty
  std::unique_ptr<TrainableTransformer> transformer{};
  std::unique_ptr<Optimizer> optimizer{};  // on the transformer's team
  std::optional<SavedRun> resumed{};       // that the run goes on from; not read yet
  FirstState first_state = FirstState::kOwn;
  std::function<Result<std::unique_ptr<GradientReducer>>(const ReducerOptions&)> make_reducer =
      [](const ReducerOptions& options) { return butterfly::make_reducer(options); };
  CheckpointFiles* files = &disk_files();
};

/// What is known besides the configuration.
struct RunKnown {
  std::optional<Isa> isa{};                                  // nothing: choose_isa()
  std::optional<ModelConfig> shape{};                        // nothing: config.model's
  const std::map<std::string, TokenFile>* tokens = nullptr;  // DatasetOptions::opened
};

/// Opens, plans and initialises. Errors: those of RankTrainer::create().
Result<RunParts> make_run_parts(const RunConfig& config, const TrainRank& rank, const RunKnown& known = {});

/// Gives `transformer` the weights that a run of `config` begins with; of weights that come and go, it keeps `kept`.
/// Errors: those of the checkpoint that the run continues, kNotFound where this machine has no such file.
Status make_first_weights(const RunConfig& config, const std::vector<ParameterRange>& kept,
                          TrainableTransformer& transformer);

/// A trainer over `parts`; reads parts.resumed. Errors: those of the saved files and of the reducer.
Result<std::unique_ptr<RankTrainer>> make_trainer(RunParts parts, const TrainRank& rank);

}  // namespace butterfly
