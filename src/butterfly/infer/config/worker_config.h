// Every setting of `butterfly worker`, with its default: keys of its file and its flags (docs/configuration.md). The
// keys are immutable and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/base/settings/config_file.h"
#include "butterfly/cluster/worker/worker_server.h"
#include "butterfly/wire/enrolment/node_access.h"

namespace butterfly {

struct WorkerConfig {
  WorkerOptions server{};  // whose keys are listen, join, model_dir and shared_memory
  AccessOptions access{};
  int threads = 0;                 // 0: all that this process may use
  std::uint64_t memory_bytes = 0;  // that a plan may use here; 0: what is available
  std::string packed_folder{};     // where packed weights outlive the process; empty: nowhere
  double emulate = 1.0;            // share of one thread's speed
  bool train = true;               // take part in training runs
};

/// In the order of the documentation.
const std::vector<ConfigKey<WorkerConfig>>& worker_keys();

/// Errors: kInvalidArgument naming the keys that do not go together.
Status validate(const WorkerConfig& config);

}  // namespace butterfly
