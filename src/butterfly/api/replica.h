// One copy of a generator's model on its own nodes, and the thread that computes what callers ask of it. rebalance() of
// its deployment may be called beside that.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "butterfly/generator.h"
#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/scheduler/scheduler.h"

namespace butterfly {

/// Whether another replica may do what this one could not: its nodes are gone.
inline bool is_lost(const Error& error) {
  return ends_epoch(error) || error.code == ErrorCode::kNoMemory;
}

class Replica {
 public:
  /// Computes on a thread of its own until it is destroyed. `tokenizer` outlives it.
  Replica(std::unique_ptr<Deployment> deployed, const Tokenizer& tokenizer, const SchedulerOptions& options);

  Deployment& deployment() const { return *deployment_; }
  std::string suffix{};  // of its nodes' names, where several replicas have nodes of the same name

  /// From several threads: their requests are computed side by side. `sink` is called by the caller's thread.
  Result<GeneratedText> generate(const Request& request, const std::function<void(std::string_view)>& sink,
                                 std::stop_token stop);
  /// These wait while texts are generated.
  std::string describe() const;
  BalanceReport balance() const;

 private:
  void compute(const std::stop_token& stop);

  std::unique_ptr<Deployment> deployment_;
  Scheduler scheduler_;
  std::atomic<std::uint64_t> wire_bytes_{0};  // when a text last ended
  mutable std::mutex computing_;              // the deployment has one user at a time
  std::jthread thread_;                       // last: ends before what it works with
};

}  // namespace butterfly
