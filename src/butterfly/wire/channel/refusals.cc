#include "butterfly/wire/channel/refusals.h"

#include "butterfly/base/log.h"

namespace butterfly {
namespace {

constexpr int kLinesPerWindow = 5;
constexpr auto kWindow = std::chrono::seconds(1);

}  // namespace

void Refusals::refuse(const std::string& peer, const std::string& reason) {
  const auto now = std::chrono::steady_clock::now();
  if (now >= window_end_) {
    flush();
    window_end_ = now + kWindow;
    logged_ = 0;
  }
  if (logged_ == kLinesPerWindow) {
    ++suppressed_;
    return;
  }
  ++logged_;
  log().warn("refused {} on {}: {}", peer, where_, reason);
}

void Refusals::flush() {
  if (suppressed_ == 0 || std::chrono::steady_clock::now() < window_end_) return;
  log().warn("refused {} more clients on {} in the same second", suppressed_, where_);
  suppressed_ = 0;
}

Deadline Refusals::next_flush() const {
  return suppressed_ > 0 ? window_end_ : Deadline::max();
}

}  // namespace butterfly
