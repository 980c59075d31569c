// What a node measured of its links to others, kept for some minutes: planning and people ask again and again, and two
// measurements at once would measure each other. Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "butterfly/cluster/control/node_status.h"

namespace butterfly {

class LinkBook {
 public:
  using Measurement = std::function<Result<LinkStatus>(const std::string& address)>;

  /// `measure` is called by one thread at a time.
  explicit LinkBook(Measurement measure) : measure_(std::move(measure)) {}

  enum class Freshness { kRemembered, kMeasuredNow };

  /// The link to this address, measured where nothing is remembered or it is older than kKept. What failed is not
  /// remembered.
  LinkStatus look_up(const std::string& address, Freshness freshness);

  static constexpr std::chrono::minutes kKept{10};
  static constexpr std::size_t kLinksMax = 1024;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    LinkStatus link;
    Clock::time_point measured;
  };

  const Measurement measure_;
  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

}  // namespace butterfly
