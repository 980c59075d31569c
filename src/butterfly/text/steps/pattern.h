// Regular expressions with Unicode classes that cut a text into pre-tokens. Patterns may come from a model file:
// memory and time of a match are limited, and whatever exceeds the limits is an error. Immutable after creation,
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/range.h"
#include "butterfly/base/result.h"
#include "butterfly/text/steps/step_options.h"

namespace butterfly {

/// kBuiltIn patterns are ours and linear in the text. kUntrusted ones are watched while they run, which costs time.
enum class PatternSource : std::uint8_t { kBuiltIn, kUntrusted };

/// How long untrusted patterns may run on one text, all their matches together. The clock is this thread's processor
/// time, so that a busy or suspended machine does not turn a good pattern into an error. One per text and thread.
class PatternBudget {
 public:
  /// Honest patterns need about 0.2 us per byte and pattern; this allows a second and 25 times that.
  PatternBudget(std::size_t text_bytes, std::size_t patterns);

  bool spent() {
    if (++steps_ % 256 == 0) look_at_clock();
    return spent_;
  }

 private:
  void look_at_clock();

  std::int64_t deadline_ns_;
  unsigned steps_ = 0;
  bool spent_ = false;
};

class Pattern {
 public:
  /// Errors: kBadData for what is no regular expression, saying where; kUnsupported for more than 16 KiB, and for what
  /// PCRE2 cannot do.
  static Result<Pattern> compile(const std::string& expression, PatternSource source,
                                 PatternDialect dialect = PatternDialect::kOniguruma);

  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  /// Appends to `parts` every match in `text` and everything between two matches; together they are `text`.
  /// `text` must be valid UTF-8. Errors: kTimeout and kUnsupported (memory) for a pattern that exceeds its limits.
  Status split(std::string_view text, PatternBudget& budget, std::vector<std::string_view>& parts) const;

  /// Appends where the matches are, empty ones too. As split() in all else.
  Status find_all(std::string_view text, PatternBudget& budget, std::vector<Range<std::size_t>>& matches) const;

 private:
  struct Impl;
  explicit Pattern(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace butterfly
