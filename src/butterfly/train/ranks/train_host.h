// A worker's part in training runs: a rank above 0, as its coordinator describes it (rank_workers.h). Called by the
// cluster's threads, one run at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "butterfly/cluster/worker/local_models.h"
#include "butterfly/cluster/worker/rank_host.h"
#include "butterfly/machine/isa.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/train/ranks/rank_task.h"

namespace butterfly {

struct TrainHostOptions {
  int threads = 1;
  Isa isa = Isa::kReference;          // the fastest that a run may use here
  std::uint64_t token_bytes_max = 0;  // of token files that are received, together; 0: no limit
  std::string directory{};            // below it token files are found by content; empty: all are received
  ContentFunctions content{};         // needed where there is a directory
  std::chrono::milliseconds member_timeout{60'000};
  SharedMemoryUse shared_memory = SharedMemoryUse::kAllowed;  // with other ranks on this host
  std::stop_token run_end{};                                  // the run shall save and end, on all ranks
};

class TrainHost final : public RankHost {
 public:
  explicit TrainHost(const TrainHostOptions& options) : options_(options), local_(options.directory, options.content) {}

  Status take_part(const RankConnections& connections, std::stop_token stop) override;
  RankStatus status() const override;
  Epoch epoch() const override;
  double computing_s() const override;

 private:
  class Progress;
  /// Token files that are open, and the memory of those that were received.
  struct Tokens {
    std::map<std::string, TokenFile> files{};
    std::vector<AlignedBuffer> received{};
  };
  Result<RankTask> prepare(const RankConnections& connections, Tokens& tokens);
  Status check(const RankTask& task) const;
  Result<std::vector<std::size_t>> look_up(const RankTask& task, Tokens& tokens);
  Status fetch(const RankConnections& connections, const RankTask& task, Tokens& tokens);

  const TrainHostOptions options_;
  LocalModels local_;
  mutable std::mutex mutex_;  // guards what follows
  RankStatus status_{};
  Epoch epoch_{};
  double runs_before_s_ = 0.0;  // of computing
};

}  // namespace butterfly
