// Slices and experts of a tensor group divided together: two runs for each member, whose costs add up. Pure functions,
// thread-safe.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "butterfly/kernel/inference/reduction_slices.h"

namespace butterfly {

/// What runs cost one member, by ModelCost::run(): seconds, and bytes beside what it may hold.
struct JointCosts {
  std::vector<double> slices_s{}, experts_s{};
  std::vector<double> slices_bytes{}, experts_bytes{};
  double memory = 0.0;  // bytes that it may hold
};

/// One slice or more for each member, experts as they fit: the slowest member is as fast as it can be, and the others
/// are as even as runs of experts allow. Nothing where no division fits the memory.
std::optional<std::vector<HeldSlices>> divide_jointly(std::span<const JointCosts> members);

/// The experts divided anew, the slices kept: the fewest sums to exchange with no member above `limit_s`.
std::optional<std::vector<HeldSlices>> fewest_expert_sums(std::span<const JointCosts> members,
                                                          std::vector<HeldSlices> held, double limit_s);

/// The slowest member.
double slowest_s(std::span<const JointCosts> members, std::span<const HeldSlices> held);

}  // namespace butterfly
