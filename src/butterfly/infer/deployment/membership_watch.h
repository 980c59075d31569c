// Tells how a membership changes, from a thread of its own, so that news does not wait for the next step. The
// membership must outlive the watch; no call is under way once it has ended.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "butterfly/cluster/membership/membership.h"

namespace butterfly {

class MembershipWatch {
 public:
  using Changed = std::function<void(const std::vector<NodeDescriptor>& members, const std::string& change)>;

  /// Calls `changed` once before it returns, then after each change.
  MembershipWatch(const Membership& membership, Changed changed);

 private:
  std::jthread thread_;
};

}  // namespace butterfly
