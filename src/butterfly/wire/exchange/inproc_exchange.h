// The exchange between threads of one process: every member copies straight from the others' buffers. Each end is used
// by one thread at a time, abort() by any. The ends share the state and may die in any order; one that dies aborts.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "butterfly/wire/exchange/exchange.h"

namespace butterfly {

struct InprocExchangeOptions {
  std::chrono::microseconds spin{50};  // looked again for that long before a wait blocks
  std::int64_t timeout_ms = 60'000;    // for all others to come to the same exchange
};

/// The ends of `members` >= 1 members; the i-th has rank i.
std::vector<std::unique_ptr<Exchange>> make_inproc_exchange(int members, const InprocExchangeOptions& options = {});

}  // namespace butterfly
