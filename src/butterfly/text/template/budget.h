// What a template may cost: steps and memory that is alive. Templates come with models, so they are hostile.
// One per rendering; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "butterfly/base/result.h"

namespace butterfly {

class TemplateBudget {
 public:
  static constexpr std::size_t kBytes = std::size_t{8} << 20;
  static constexpr std::uint64_t kSteps = 2'000'000;
  static constexpr int kDepth = 400;    // of evaluation: nested expressions, statements and macros together
  static constexpr int kNesting = 100;  // of lists and dicts

  /// `input_bytes` and `input_values` of the conversation, which the template may walk through some dozens of times.
  TemplateBudget(std::size_t input_bytes, std::size_t input_values)
      : bytes_max_(kBytes + 16 * input_bytes), steps_max_(kSteps + 2 * input_bytes + 200 * input_values) {}

  Status step(std::uint64_t count = 1) {
    steps_ += count;
    if (steps_ <= steps_max_) return {};
    return make_error(ErrorCode::kInvalidArgument, "the template takes more than {} steps: it may not end at all",
                      steps_max_);
  }

  /// For reading or writing a text.
  Status step_bytes(std::size_t bytes) { return step(1 + bytes / 64); }

  /// Whether this number of further bytes can be had.
  Status check(std::size_t bytes) const {
    if (bytes <= bytes_max_ && used_ <= bytes_max_ - bytes) return {};
    return make_error(ErrorCode::kInvalidArgument, "the template wants more than {} bytes of memory", bytes_max_);
  }

  std::size_t room() const { return used_ < bytes_max_ ? bytes_max_ - used_ : 0; }
  void take(std::size_t bytes) { used_ += bytes; }
  void give_back(std::size_t bytes) { used_ -= bytes; }

  Status enter() {
    if (++depth_ <= kDepth) return {};
    return make_error(ErrorCode::kInvalidArgument, "the template nests calls and expressions more than {} deep",
                      kDepth);
  }
  void leave() { --depth_; }

 private:
  const std::size_t bytes_max_;
  const std::uint64_t steps_max_;
  std::size_t used_ = 0;
  std::uint64_t steps_ = 0;
  int depth_ = 0;
};

/// One level of TemplateBudget::enter(), left at the end of the block.
class TemplateLevel {
 public:
  explicit TemplateLevel(TemplateBudget& budget) : budget_(budget), entered_(budget.enter()) {}
  ~TemplateLevel() { budget_.leave(); }
  TemplateLevel(const TemplateLevel&) = delete;
  TemplateLevel& operator=(const TemplateLevel&) = delete;
  const Status& entered() const { return entered_; }

 private:
  TemplateBudget& budget_;
  Status entered_;
};

}  // namespace butterfly
