// Options and steps that the commands share which run a model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/text/tokenizer.h"
#include "options/options.h"
#include "shared/access.h"

namespace butterfly::app {

struct RunOptions {
  std::string model;
  int threads = 0;  // 0: every core that this process may use, shared by the nodes of this process
  int nodes = 1;
  std::vector<std::string> workers;
  std::string join_at;
  int heartbeat_ms = 200;
  int dead_after_ms = 1500;
  int recover_within_s = 60;
  AccessOptions access;
  std::string split = "auto";
  std::string goal = "latency";
  std::string custom;  // file
  bool measure_links = false;
  std::string kv_type = "auto";
  std::string wire_type = "f32";
  std::string compress = "off";
  bool quiet = false;
};

/// -m, --threads, --nodes, --workers and what goes with them, --split, --kv-type, --quiet.
void add_run_options(Command command, RunOptions& options);

struct OpenModel {
  Checkpoint checkpoint;
  std::unique_ptr<Deployment> deployment;
  double load_s = 0;
};

/// Opens the model and deploys it, with progress on stderr unless quiet. Errors: those of both.
Result<OpenModel> open_model(const RunOptions& options, int sequences);

}  // namespace butterfly::app
