// What exchanges cost the members of a tensor group, measured before their first step: all of them compute and exchange
// as they will in a step, and what takes longer than the slowest one computes is the exchange. So the waits of members
// who are never done at the same moment, the wakes of those who sleep, and cores that several processes share are in
// it, as they will be in the run; of the run itself nothing is.
#pragma once

#include <functional>

#include "butterfly/plan/exchange_times.h"
#include "butterfly/wire/exchange.h"

namespace butterfly {

/// What one member does, and the clocks it reads.
struct ExchangeTrial {
  bool ready = true;  // where one member is not, nobody measures, and nothing fails
  int many_rows = 0;
  std::function<Status()> one_row;           // a block for one row: exchanges twice
  std::function<Status()> many;              // one exchange of many rows' sums
  std::function<std::uint64_t()> clock_ns;   // what passes
  std::function<std::uint64_t()> worked_ns;  // what of it was computing, up to the last exchange
};

/// Collective. Members agree on everything that decides how often they exchange. Takes some 100 ms; more only where six
/// blocks or five exchanges do. Nothing is measured where a member is not ready. Errors: those of the exchange and of
/// the trial; the group is at an end then.
Result<ExchangeTimes> measure_exchanges(Exchange& exchange, const ExchangeTrial& trial);

}  // namespace butterfly
