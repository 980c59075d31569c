// How evenly work is spread over nodes, in one figure that plans, summaries, status and the library share.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

namespace butterfly {

/// The least over the greatest of the nodes' times: 1 is perfect, near 0 one node does it all. 0 where a time is
/// unknown (infinite), or nobody worked.
inline double load_balance_factor(std::span<const double> node_s) {
  if (node_s.empty()) return 0.0;
  const auto [least, greatest] = std::ranges::minmax(node_s);
  return std::isfinite(greatest) && greatest > 0.0 && least >= 0.0 ? least / greatest : 0.0;
}

}  // namespace butterfly
