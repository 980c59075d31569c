#include "butterfly/infer/scheduler/waiting_line.h"

#include <algorithm>
#include <tuple>

namespace butterfly {

bool WaitingLine::remove(std::uint64_t id) {
  return std::erase_if(waiting_, [&](const Waiter& waiter) { return waiter.id == id; }) > 0;
}

std::int64_t WaitingLine::served(const std::string& user) const {
  const auto found = served_.find(user);
  if (found != served_.end()) return found->second;
  std::int64_t least = 0;
  for (auto each = served_.begin(); each != served_.end(); ++each) {
    least = each == served_.begin() ? each->second : std::min(least, each->second);
  }
  return least;
}

const Waiter* WaitingLine::next(Clock::time_point now) const {
  const auto rank = [&](const Waiter& waiter) {
    const auto aged = (now - waiter.since) / kAgeing;
    return std::tuple(-(static_cast<std::int64_t>(waiter.priority) + static_cast<std::int64_t>(aged)),
                      served(waiter.user), waiter.id);
  };
  const auto first = std::ranges::min_element(waiting_, {}, rank);
  return first == waiting_.end() ? nullptr : &*first;
}

void WaitingLine::charge(const std::string& user, std::int64_t tokens) {
  const std::int64_t before = served(user);
  served_[user] = before + tokens;
}

void WaitingLine::settle(const std::vector<std::string>& present) {
  std::erase_if(served_, [&](const auto& entry) {
    const bool waits = std::ranges::any_of(waiting_, [&](const Waiter& w) { return w.user == entry.first; });
    return !waits && std::ranges::find(present, entry.first) == present.end();
  });
}

}  // namespace butterfly
