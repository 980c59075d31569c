// Regular expressions with Unicode classes that cut a text into pre-tokens. Patterns may come from a model file:
// memory and time of a match are limited, and whatever exceeds the limits is an error. Immutable after creation,
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

/// kBuiltIn patterns are ours and linear in the text. kUntrusted ones are watched while they run, which costs time.
enum class PatternSource : std::uint8_t { kBuiltIn, kUntrusted };

class Pattern {
 public:
  /// Errors: kBadData for what is no regular expression, saying where; kUnsupported for more than 16 KiB.
  static Result<Pattern> compile(const std::string& expression, PatternSource source);

  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  /// Appends to `parts` every match in `text` and everything between two matches; together they are `text`.
  /// `text` must be valid UTF-8. Errors: kTimeout and kUnsupported (memory) for a pattern that exceeds its limits.
  Status split(std::string_view text, std::vector<std::string_view>& parts) const;

 private:
  struct Impl;
  explicit Pattern(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace butterfly
