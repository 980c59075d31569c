// Requests that wait for their turn: the most urgent first, of those alike users take turns, each user's in the order
// in which they came. Who waits becomes more urgent, so nobody waits for ever. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace butterfly {

struct Waiter {
  std::uint64_t id = 0;
  int priority = 0;
  std::string user{};
  std::chrono::steady_clock::time_point since{};
};

class WaitingLine {
 public:
  using Clock = std::chrono::steady_clock;
  /// After so long a wait a request counts as one priority higher: a request of priority p waits at most (q - p) times
  /// as long for those of priority q that come after it.
  static constexpr std::chrono::seconds kAgeing{5};

  void add(Waiter waiter) { waiting_.push_back(std::move(waiter)); }
  /// False where it does not wait.
  bool remove(std::uint64_t id);

  /// Whose turn it is; none where nobody waits.
  const Waiter* next(Clock::time_point now) const;

  /// Tokens that were computed for a user: of two users, the one who got less is next.
  void charge(const std::string& user, std::int64_t tokens);
  /// Users who neither wait nor are `present` are forgotten: who comes back begins as one who got as little as anybody.
  void settle(const std::vector<std::string>& present);

  std::size_t size() const { return waiting_.size(); }
  const std::vector<Waiter>& all() const { return waiting_; }

 private:
  std::int64_t served(const std::string& user) const;

  std::vector<Waiter> waiting_;
  std::map<std::string, std::int64_t> served_;
};

}  // namespace butterfly
