#include "butterfly/plan/shares/share_groups.h"

namespace butterfly {
namespace {

bool same_stage(const StageAssignment& a, const StageAssignment& b) {
  return a.first_layer == b.first_layer && a.last_layer == b.last_layer && a.embedding == b.embedding &&
         a.head == b.head;
}

}  // namespace

Result<std::vector<ShareGroup>> share_groups(std::span<const StageAssignment> shares) {
  std::vector<ShareGroup> groups;
  HeldSlices before;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const HeldSlices& slices = shares[i].slices;
    const bool begins = before.ends();
    if (begins) before = HeldSlices::none();
    if (!slices.follows(before) || slices.empty() || !is_run(slices) || !is_run(slices.experts)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "share {} has slices {} to {} and experts' slices {} to {} of {}, the one before ends at {} "
                        "and {}",
                        i, slices.first, slices.last, slices.experts.first, slices.experts.last, kReductionSlices,
                        before.last, before.experts.last);
    }
    if (!begins && !same_stage(shares[i], shares[i - 1])) {
      return make_error(
          ErrorCode::kInvalidArgument, "share {} has layers {} to {}, the members of its tensor group have {} to {}", i,
          shares[i].first_layer, shares[i].last_layer, shares[i - 1].first_layer, shares[i - 1].last_layer);
    }
    if (begins) groups.push_back({.first = i, .last = i});
    groups.back().last = i + 1;
    before = slices;
  }
  if (!before.ends()) {
    return make_error(ErrorCode::kInvalidArgument, "the last tensor group ends at slice {} and experts' slice {} of {}",
                      before.last, before.experts.last, kReductionSlices);
  }
  return groups;
}

int pipeline_stages(std::span<const StageAssignment> shares) {
  const auto groups = share_groups(shares);
  return groups ? static_cast<int>(groups->size()) : 0;
}

}  // namespace butterfly
