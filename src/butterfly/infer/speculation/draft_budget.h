// How many guessed tokens a step should compute: as many as make it write the most tokens per second, by the measured
// times of steps and by how often guesses for these texts came true. Not thread-safe.
#pragma once

#include <array>
#include <span>

namespace butterfly {

/// How often a guessed token of one text came true when those before it had.
class DraftAcceptance {
 public:
  double rate() const { return rate_; }

  /// `tried` guesses were computed, the first `accepted` of them came true.
  void observe(int tried, int accepted);

  /// Guesses were not worth a try. Texts change: they are tried again before long, and after each try in vain later.
  void skip();

 private:
  static constexpr double kPrior = 0.5;
  static constexpr double kReturn = 0.02;
  double rate_ = kPrior;
  double return_ = kReturn;  // how much of the way to kPrior a skip goes
};

class DraftBudget {
 public:
  static constexpr int kRowsMax = 64;  // of one step, with guesses

  /// A step of `texts` that are being written, and of `rows` tokens, guessed ones among them.
  void observe(int texts, int rows, double seconds);

  /// How many rows to guess in a step of `texts`, with their chances to be of use, the best first, where each guess
  /// itself takes `guess_s` seconds. Now and then none, so that the time without is known.
  int rows(int texts, std::span<const double> chances, double guess_s = 0) const;

  /// The measured time of such a step, or what its neighbours say; 0: nothing is known.
  double seconds(int rows) const;

 private:
  static constexpr int kFirstTry = 4;  // rows that may be tried although nothing like it was measured
  static constexpr int kFirst = 3;     // steps without guesses before any is tried: the first are slow
  static constexpr int kAgain = 32;    // steps with guesses after which one without is measured again

  /// Of the next step: a try of twice what is known shows what more would cost before much is spent.
  int rows_max() const;

  std::array<double, kRowsMax + 1> seconds_{};  // by rows; 0: not known
  int plain_ = 0;                               // steps without guesses, up to kFirst
  int guessed_ = 0;                             // steps with guesses since the last one without
};

}  // namespace butterfly
