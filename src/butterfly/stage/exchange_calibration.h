// What exchanges cost the members of a tensor group, measured before their first step: all of them run blocks together,
// exchanging as they will in a step, and each runs some alone while the others wait. What the former take longer than
// the slowest of the latter is the exchange. So the waits of members who are never done at the same moment, the wakes
// of those who sleep, and cores and memory that several processes share are in it, as they will be in the run; of the
// run itself nothing is.
#pragma once

#include <functional>

#include "butterfly/machine/topology.h"
#include "butterfly/plan/description/exchange_times.h"
#include "butterfly/wire/exchange/exchange.h"

namespace butterfly {

enum class Company : std::uint8_t { kTogether, kAlone };

/// What one member does, and the clocks it reads.
struct ExchangeTrial {
  bool ready = true;  // where one member is not, nobody measures, and nothing fails
  int many_rows = 0;
  std::function<Status(int rows, Company company)> block;  // together it exchanges twice, alone never
  std::function<std::uint64_t()> clock_ns;                 // what passes
  std::function<std::uint64_t()> worked_ns;                // what of it was computing, up to the last exchange
  std::function<CorePlace()> core = this_core;             // that the block ran on
};

/// Members that wake each other all the time are kept on one core where a machine has another for them, which happens
/// seldom in a run: such blocks do not count where there are others. Where a machine has fewer cores than members, all
/// do.
///
/// Collective. Members agree on everything that decides how often they exchange. Takes about a tenth of a second
/// for each size and some hundredths for each member; more only where five blocks do. Nothing is measured where a
/// member is not ready. Errors: those of the exchange and of the trial; the group is at an end then.
Result<ExchangeTimes> measure_exchanges(Exchange& exchange, const ExchangeTrial& trial);

}  // namespace butterfly
