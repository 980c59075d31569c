// What a coordinator asks of one worker for one epoch. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/plan/plan.h"

namespace butterfly {

/// A model by content, so that two machines agree on it whatever the file is called.
struct ModelIdentity {
  std::string hash{};       // SHA-256 of its files, lower-case hex
  std::uint64_t bytes = 0;  // that were hashed
  std::string name{};       // for people
};

/// What a node has done since its worker began.
struct StageWork {
  std::uint64_t steps = 0;
  std::uint64_t busy_ns = 0;
};

struct Assignment {
  Epoch epoch{};
  ModelIdentity model{};
  std::string config{};   // the model's configuration, as the layer above serialises it
  std::string options{};  // threads, cache type and the like, as the layer above serialises them
  StageAssignment stage{};
  Rank rank{};  // of the stage in the pipeline
  int stages = 1;
  std::string next_address{};          // of the worker with the next stage; empty: results go to the coordinator
  std::vector<std::string> holders{};  // addresses of workers with the model's file, the one to ask first in front
};

}  // namespace butterfly
