#include "butterfly/plan/cost/share.h"

#include <algorithm>

namespace butterfly {

int subtree_count(const LaneRange& lanes) {
  int count = 0;
  for (int at = lanes.first; at < lanes.last; ++count) {
    // The largest subtree that begins here: as wide as the position is aligned, and within the range.
    int width = at == 0 ? kLanes : at & -at;
    while (at + width > lanes.last) width /= 2;
    at += width;
  }
  return count;
}

}  // namespace butterfly
