// How a model is deployed: on which nodes, how its work is shared out among them, and what they compute with. Plain
// values, which parts of a deployment are given by reference.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/cluster/membership/membership.h"
#include "butterfly/machine/isa.h"
#include "butterfly/plan/partition/plan.h"
#include "butterfly/stage/stage_host.h"
#include "butterfly/wire/enrolment/node_access.h"

namespace butterfly {

/// What the nodes of this process compute with. Workers decide on their own, but for kv_type.
struct ComputeConfig {
  int threads = 0;                 // of each node; 0: all that this process may use, shared by its nodes
  std::vector<Isa> isas{};         // of the nodes, repeated in turn; empty: choose_isa()
  std::optional<DType> kv_type{};  // of every node; nothing: kv_type_for(config)
  std::string packed_folder{};     // where packed weights outlive the process (PackedCache); empty: nowhere
};

struct TimeoutConfig {
  std::chrono::milliseconds step{600'000};           // for one step to come back
  std::chrono::milliseconds ready{600'000};          // for all workers to have their weights
  std::chrono::milliseconds recover_within{60'000};  // for workers to come back or join where too few are left
};

struct DeploymentConfig {
  int nodes = 1;  // in this process, where there are no workers
  ComputeConfig compute{};
  MembershipOptions membership{};  // the workers, and where others may join; resolved() fills in their access
  AccessOptions access{};
  TimeoutConfig timeouts{};
  PlanOptions plan{.strategy = "auto"};  // resolved() fills in kv_type
  std::string custom_file{};             // of what the strategy `custom` follows, instead of plan.custom
  bool measure_links = false;            // before the first plan; strategies that look at links do so anyway
  StageSettings stage{};                 // how activations travel; resolved() fills in kv_type

  /// Whether all layers are in this process.
  bool is_here() const { return membership.workers.empty() && membership.join_at.empty(); }
};

/// What replica `number` of `replicas` of the model runs on: an equal run of the workers, or of the threads of this
/// process. Errors: kInvalidArgument where there are too few workers, or others may join: which replica would have
/// them?
Result<DeploymentConfig> replica_config(DeploymentConfig config, int number, int replicas);

/// With everything decided that depends on this machine, on the model or on files: threads, the type of the cache,
/// credentials, a plan that is followed. Errors: kInvalidArgument for numbers out of range; those of reading the files.
Result<DeploymentConfig> resolved(DeploymentConfig config, const ModelConfig& model);

}  // namespace butterfly
