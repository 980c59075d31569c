// A node's place for its stages: what a worker does when a coordinator assigns it layers. Called by the cluster's
// threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "butterfly/cluster/worker/worker_delegate.h"
#include "butterfly/stage/paced_stage.h"

namespace butterfly {

struct StageHostOptions {
  int threads = 1;
  Isa isa = Isa::kReference;
  std::uint64_t kv_bytes_max = 0;      // of all stages together, by their layers; 0: no limit
  std::uint64_t weight_bytes_max = 0;  // of an assignment, and kept between assignments; 0: no limit
  std::string packed_folder{};         // where packed weights outlive the process (PackedCache); empty: nowhere
  std::string model_stamp{};           // which model it is where assignments have no hash of it
  double emulated_speed = 1.0;         // see PacedStageOptions
  /// How far load() has come, for each share in turn; called by the thread that loads.
  std::function<void(const LoadProgress& progress)> progress{};
};

class StageHost final : public WorkerDelegate {
 public:
  explicit StageHost(const StageHostOptions& options) : options_(options), kept_(options.packed_folder) {}

  Result<std::vector<std::uint64_t>> load(std::span<const Assignment> assignments, WeightFetcher& weights,
                                          std::stop_token stop) override;
  /// With one thread, so that the stages that run are not held up.
  Status prepare(std::span<const Assignment> assignments, WeightFetcher& weights, std::stop_token stop) override;
  Result<ExchangeTimes> join_group(const Assignment& assignment, Exchange& exchange) override;
  Status serve(const Assignment& assignment, const StageLinks& links, std::stop_token stop) override;
  Result<WeightProvider> open_weights(const std::string& path) const override;
  StageWork done() const override { return {.steps = counters_.steps, .busy_ns = counters_.busy_ns}; }

  /// The weights stay: the next assignment is often nearly the same, and so is the next coordinator's.
  void unload() override { stages_.clear(); }

 private:
  StageHostOptions options_;
  StageCounters counters_;
  StageParts kept_;
  Compression compression_ = Compression::kOff;         // of the last assignment
  std::map<Rank, std::unique_ptr<PacedStage>> stages_;  // by their place in the pipeline
};

}  // namespace butterfly
