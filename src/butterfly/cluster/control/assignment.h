// What a coordinator asks of one worker for one epoch: an assignment for each stage that it has a share of, in pipeline
// order. Plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/model/core/config.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/wire/channel/channel.h"

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

/// Types that activations may travel in: floats as they are, or rounded to halves or to int8 in blocks of 32.
inline bool is_wire_type(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kQ8_0;
}

/// What the coordinator decides for every stage alike: what shows in the bits, and how they travel.
struct StageSettings {
  DType kv_type = DType::kF16;    // one of cache_types()
  DType wire_type = DType::kF32;  // of activations between stages; kF16 and kQ8_0 lose something
  Compression compression = Compression::kOff;
};

/// Its epoch, model, config, settings and number of stages are those of every other one of the same epoch.
struct Assignment {
  Epoch epoch{};
  ModelIdentity model{};
  ModelConfig config{};
  StageSettings settings{};
  StageAssignment stage{};
  Rank rank{};  // of the stage in the pipeline, the same for all members of a tensor group
  int stages = 1;
  std::string next_address{};  // of the worker that leads the next stage; empty: results go to the coordinator, or
                               // this member does not lead
  std::vector<std::string> holders{};  // addresses of workers with the model's file, the one to ask first in front
  std::vector<std::string> group{};    // addresses of the members of its tensor group, by slices; empty: it is alone
  int member = 0;                      // which of them this is; the first leads

  bool leads() const { return member == 0; }
};

/// "stage 2 of 3", "stage 2 of 3, slices 3-5".
std::string describe(const Assignment& assignment);

/// All that one worker has: "stages 1 and 3 of 4".
std::string describe(std::span<const Assignment> assignments);

/// How many stages a worker may have in one epoch.
inline constexpr int kSharesMax = 128;

}  // namespace butterfly
