// Which shares of a plan work on the same layers: a pipeline stage is one share, or the shares of a tensor group.
// Plain functions, thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/plan/cost/share.h"

namespace butterfly {

/// Shares [first, last) of a plan; the first is the group's leader.
struct ShareGroup {
  std::size_t first = 0, last = 0;
  std::size_t size() const { return last - first; }
  friend bool operator==(const ShareGroup&, const ShareGroup&) = default;
};

/// In pipeline order. Errors: kInvalidArgument for shares of the same layers that do not divide the slices among them.
Result<std::vector<ShareGroup>> share_groups(std::span<const StageAssignment> shares);

/// Pipeline stages of shares that share_groups() accepts.
int pipeline_stages(std::span<const StageAssignment> shares);

}  // namespace butterfly
