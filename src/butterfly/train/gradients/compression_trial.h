// Which of two ways to send gradients makes shorter steps: the one that is held, or a challenger, from timed steps of
// either in turn. Of equals, the held one wins: what noise can explain changes nothing. A calculation over numbers that
// all ranks have agreed on. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace butterfly {

class CompressionTrial {
 public:
  /// Steps of one side in a row. The first is not counted: buffers are cold, and what the other side left is paid.
  static constexpr int kBlock = 3;
  /// Counted steps of either side after which the trial ends.
  static constexpr std::size_t kSteps = 8;
  /// A side that wins is faster by kLead, in medians; before the end, by so much more that noise hardly explains it.
  static constexpr double kLead = 1.02, kLeadEarly = 1.1, kLeadAtOnce = 1.25;
  static constexpr std::size_t kEarlySteps = 5;  // counted ones of either side from which kLeadEarly is enough

  enum class Side : std::uint8_t { kHeld, kChallenger };
  enum class Verdict : std::uint8_t { kOpen, kHeld, kChallenger };

  /// Seconds of steps that were timed before; may be empty. The first block is the challenger's.
  CompressionTrial(std::vector<double> held_s, std::vector<double> challenger_s)
      : held_s_(std::move(held_s)), challenger_s_(std::move(challenger_s)) {}

  /// Which side the step under way is on.
  Side side() const { return step_ / kBlock % 2 == 0 ? Side::kChallenger : Side::kHeld; }
  bool counted() const { return step_ % kBlock != 0; }

  /// At the end of a step; its seconds do not matter where it is not counted. A side wins early where each of its steps
  /// was shorter than each of the other's, and at the end where that is so but for one step of either.
  Verdict observe(double seconds);

 private:
  int step_ = 0;
  std::vector<double> held_s_, challenger_s_;
};

}  // namespace butterfly
