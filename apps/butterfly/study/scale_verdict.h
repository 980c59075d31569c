// What a study of training on one rank says of many: a step by each strategy, and whether to divide weights, gradients
// and moments among ranks (FSDP) or not (DDP). Pure but for the number of this machine's CPUs and its memory.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/plan/cost/training_choice.h"
#include "butterfly/study/analysis/results.h"

namespace butterfly::app {

struct ScaleQuestion {
  int ranks = 1;
  bool weak = false;               // each rank has as many sequences as the one that was measured
  LinkDescriptor link{};           // between ranks
  bool link_assumed = true;        // nobody said so
  std::uint64_t memory_bytes = 0;  // of each rank; 0: this machine's, by CPU
};

struct ScaleVerdict {
  ScaleQuestion asked{};  // with what was not said, and no more ranks than there are sequences
  int ranks_asked = 1;
  std::vector<std::pair<TrainStrategy, TrainNodePrediction>> steps{};
  TrainChoice choice{};
};

/// Times and activations of the measured rank, the cost model's formulas for the rest. Errors: kNotFound where the
/// study has no steps of training, or does not know its model.
Result<ScaleVerdict> scale_verdict(const study::Study& one_rank, const ScaleQuestion& question);

std::string verdict_text(const ScaleVerdict& verdict);
nlohmann::ordered_json verdict_json(const ScaleVerdict& verdict);

}  // namespace butterfly::app
