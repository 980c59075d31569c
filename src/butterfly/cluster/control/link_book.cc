#include "butterfly/cluster/control/link_book.h"

namespace butterfly {

LinkStatus LinkBook::look_up(const std::string& address, Freshness freshness) {
  std::lock_guard lock(mutex_);  // also while it measures: one link at a time
  const auto known = entries_.find(address);
  if (known != entries_.end()) {
    const auto age = Clock::now() - known->second.measured;
    if (freshness == Freshness::kRemembered && age < kKept) {
      known->second.link.age_s = std::chrono::duration<double>(age).count();
      return known->second.link;
    }
    entries_.erase(known);
  }
  auto measured = measure_(address);
  if (!measured) return {.to = address, .error = measured.error().message};
  if (entries_.size() >= kLinksMax) entries_.clear();  // addresses that nobody has any more
  entries_[address] = {.link = *measured, .measured = Clock::now()};
  return std::move(*measured);
}

}  // namespace butterfly
