// One copy of a generator's model on its own nodes. Its deployment has one user at a time; rebalance() of it may be
// called beside that.
#pragma once

#include <memory>
#include <mutex>
#include <stop_token>
#include <string>

#include "butterfly/generator.h"
#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/scheduler/generate.h"

namespace butterfly {

/// Whether another replica may do what this one could not: its nodes are gone.
inline bool is_lost(const Error& error) {
  return ends_epoch(error) || error.code == ErrorCode::kNoMemory;
}

struct Replica {
  std::unique_ptr<Deployment> deployment{};
  std::string suffix{};  // of its nodes' names, where several replicas have nodes of the same name
  mutable std::mutex mutex{};

  /// These three wait for one another.
  Result<GeneratedText> generate(const Tokenizer& tokenizer, const Request& request, int context, const TextSink& sink,
                                 std::stop_token stop);
  std::string describe() const;
  BalanceReport balance() const;
};

}  // namespace butterfly
