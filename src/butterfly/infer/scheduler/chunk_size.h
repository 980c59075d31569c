// How many tokens of prompts may be computed beside texts that are being written, so that these are slowed down by no
// more than a given factor: from the times of the steps so far. Not thread-safe.
#pragma once

#include <array>

namespace butterfly {

class ChunkSize {
 public:
  static constexpr int kFewest = 4;  // a prompt goes on, whatever it costs

  /// `slowdown_max`: of a step, against one without prompts; 0: as many tokens as fit.
  ChunkSize(double slowdown_max, int rows_max) : slowdown_max_(slowdown_max), rows_max_(rows_max) {}

  /// A step of `texts` that grow by one token, and `prompt_rows` tokens of prompts.
  void observe(int texts, int prompt_rows, double seconds);

  /// Tokens of prompts for a step that `texts` wait for. Now and then none, so that the time without is known.
  int rows(int texts);

  /// The same for a step before theirs, which they wait for all the same; not limited before their time is known.
  int rows_before(int texts) const;

 private:
  static constexpr int kSizes = 16;  // classes of numbers of texts, each twice the one before
  static constexpr int kAgain = 32;  // steps after which one without prompts is measured again
  double& text_s(int texts);
  double known_text_s(int texts) const;
  int bearable(double without_s) const;

  double slowdown_max_;
  int rows_max_;
  std::array<double, kSizes> text_s_{};  // of a step without prompts; 0: not known
  double row_s_ = 0;                     // of one more token of a prompt
  int mixed_ = 0;                        // steps with prompts since the last one without
};

}  // namespace butterfly
