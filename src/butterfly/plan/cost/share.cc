#include "butterfly/plan/cost/share.h"

namespace butterfly {

int subtree_count(const SliceRange& slices) {
  return static_cast<int>(subtrees(slices).size());
}

}  // namespace butterfly
