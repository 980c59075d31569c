#include "butterfly/plan/cost/share.h"

#include <algorithm>

namespace butterfly {

int subtree_count(const SliceRange& slices) {
  int count = 0;
  for (int at = slices.first; at < slices.last; ++count) {
    // The largest subtree that begins here: as wide as the position is aligned, and within the range.
    int width = at == 0 ? kReductionSlices : at & -at;
    while (at + width > slices.last) width /= 2;
    at += width;
  }
  return count;
}

}  // namespace butterfly
