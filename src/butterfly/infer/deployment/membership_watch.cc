#include "butterfly/infer/deployment/membership_watch.h"

namespace butterfly {

MembershipWatch::MembershipWatch(const Membership& membership, Changed changed) {
  const Members first = membership.members();
  changed(first.nodes, "");
  thread_ =
      std::jthread([&membership, changed = std::move(changed), seen = first.version](std::stop_token stop) mutable {
        constexpr std::int64_t kWaitMs = 3'600'000;
        while (!stop.stop_requested()) {
          if (!membership.wait_for_change(seen, after_ms(kWaitMs), stop)) continue;
          const Members now = membership.members();
          seen = now.version;
          changed(now.nodes, membership.last_change());
        }
      });
}

}  // namespace butterfly
