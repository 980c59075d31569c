// The steps that cut a text into the words that a model looks up one by one. Immutable after creation, thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/text/steps/pattern.h"
#include "butterfly/text/steps/step_options.h"

namespace butterfly {

/// Words in order. Views point into the text that was cut, or into `texts` where a step spelled it anew.
struct Words {
  struct Word {
    std::string_view text;
    bool at_start = false;  // where the whole text starts
  };
  std::vector<Word> words;
  std::deque<std::string> texts;
};

class WordCutter {
 public:
  enum class Spelling : std::uint8_t { kBytes, kAlphabet };

  WordCutter() = default;

  /// `spelling` says what kByteLevel gives: words of the byte alphabet, or the bytes themselves for a model that knows
  /// that alphabet. Errors: those of Pattern::compile; kUnsupported for more than 16 patterns.
  static Result<WordCutter> create(const std::vector<PreTokenizerStep>& steps, Spelling spelling);

  /// Patterns that run over the text, for the budget.
  std::size_t patterns() const { return patterns_; }

  /// Cuts what `words` holds. Errors: those of Pattern::find_all.
  Status run(PatternBudget& budget, Words& words) const;

 private:
  struct Step {
    PreTokenizerStep options;
    std::shared_ptr<const Pattern> pattern;  // shared: a WordCutter is copied
  };
  Status apply(const Step& step, PatternBudget& budget, Words& words) const;
  static Status split(const Step& step, PatternBudget& budget, Words& words);

  std::vector<Step> steps_;
  Spelling spelling_ = Spelling::kAlphabet;
  std::size_t patterns_ = 0;
};

}  // namespace butterfly
