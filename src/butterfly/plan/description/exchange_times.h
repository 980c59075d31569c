// What exchanges cost the members of a tensor group, as they measured it among themselves before their first step; see
// stage/exchange_calibration.h. A plain value.
#pragma once

namespace butterfly {

/// Seconds of one exchange of sums, beyond what the slowest member computes when it is alone: waits, wakes, transfers.
struct ExchangeTimes {
  double one_row_s = 0.0;
  int many_rows = 0;  // 0: nothing was measured
  double many_rows_s = 0.0;
  // The whole block around two of them, its computing included; 0 where that is not known. A plan takes its own
  // idea of the computing from it: what its rates say too much or too little of that is made good so.
  double one_row_block_s = 0.0, many_rows_block_s = 0.0;
  bool measured() const { return many_rows > 1; }
  friend bool operator==(const ExchangeTimes&, const ExchangeTimes&) = default;
};

}  // namespace butterfly
