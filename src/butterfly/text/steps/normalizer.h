// The steps that rewrite a text before it is cut: normal forms, case, accents, replacements. Immutable after creation,
// thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/text/steps/charsmap.h"
#include "butterfly/text/steps/pattern.h"
#include "butterfly/text/steps/step_options.h"

namespace butterfly {

/// Texts that kSentencePiece leaves as they are.
class ProtectedTexts {
 public:
  virtual ~ProtectedTexts() = default;
  /// Bytes of the longest of them that `text` starts with; 0: none.
  virtual std::size_t match(std::string_view text) const = 0;
};

class Normalizer {
 public:
  Normalizer() = default;

  /// Errors: those of Pattern::compile and Charsmap::create.
  static Result<Normalizer> create(const std::vector<NormalizerStep>& steps);

  bool empty() const { return steps_.empty(); }

  /// Patterns that run over the text, for the budget.
  std::size_t patterns() const { return patterns_; }

  /// `text` is valid UTF-8, and so is the result. `kept` may be null. Errors: those of Pattern::find_all;
  /// kUnsupported for a text that grows beyond 2^30 bytes.
  Result<std::string> run(std::string_view text, PatternBudget& budget, const ProtectedTexts* kept = nullptr) const;

 private:
  struct Step {
    NormalizerStep options;
    std::shared_ptr<const Pattern> pattern;  // shared: a Normalizer is copied with its vocabulary
    std::shared_ptr<const Charsmap> charsmap;
  };
  static Result<std::string> apply(const Step& step, std::string text, PatternBudget& budget,
                                   const ProtectedTexts* kept);

  std::vector<Step> steps_;
  std::size_t patterns_ = 0;
};

}  // namespace butterfly
