#include "butterfly/train/config/run_config.h"

#include <algorithm>

#include "butterfly/base/hash/digest.h"
#include "butterfly/model/core/config_json.h"
#include "butterfly/train/config/run_keys.h"

namespace butterfly {

Result<RunConfig> parse_run_config(const std::string& text, const std::string& name) {
  RunConfig config;
  BF_TRY(read_keys(text, name, bind_keys(run_keys(), config)));
  return config;
}

Result<RunConfig> read_run_config(const std::string& path, const RunConfig& standard) {
  RunConfig config = standard;
  BF_TRY(read_keys_file(path, "the file of a run", bind_keys(run_keys(), config)));
  return config;
}

int ranks_of(const ParallelConfig& parallel) {
  const int named = parallel.workers.empty() ? parallel.ranks : static_cast<int>(parallel.workers.size()) + 1;
  const auto limits = rank_limits(parallel.nnodes);
  return join_address_of(parallel).empty() || !limits ? named : std::max(named, limits->least);
}

int micro_batch_most(const RunConfig& config, int ranks) {
  constexpr int kMost = 8;
  constexpr int kPartsForAnyRanks = 16;
  constexpr int kPartsOfStage = 4;  // a pipeline is filled and drained in each step
  const bool pipeline = config.parallel.strategy == ParallelStrategy::kPipeline;
  const bool for_any = config.parallel.deterministic || !join_address_of(config.parallel).empty();
  const int parts = for_any ? kPartsForAnyRanks : pipeline ? kPartsOfStage * ranks : ranks;
  return std::min(kMost, std::max(1, config.global_batch / parts));
}

std::string to_toml(const RunConfig& config) {
  return keys_to_toml(run_keys(), config);
}

std::string fingerprint(const RunConfig& config) {
  std::string text = to_json(config.shape) + "\n";
  for (const RunKey& key : run_keys()) {
    // Runs without experts are the same whatever it is, and as they were before it existed.
    if (key.name.starts_with("router_aux_loss_") && config.shape.moe.experts == 0) continue;
    if (key.role == KeyRole::kDecides) text += fmt::format("{} = {}\n", key.name, to_toml(key.get(config)));
  }
  return to_hex(sha256(as_bytes(text)));
}

}  // namespace butterfly
