// Canonical lanes: a product whose reduced dimension may be cut over nodes (attention output, MLP down) is defined as
// up to kLanes partial sums over fixed slices, added in a fixed binary tree. The slices depend on the model alone, so
// n nodes that hold whole lanes add the same numbers in the same order as one. Plain values, thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <span>

#include "butterfly/tensor/dtype.h"

namespace butterfly {

inline constexpr int kLanes = 8;

class LaneBorders {
 public:
  /// One lane over [0, cols).
  static LaneBorders single(std::int64_t cols) {
    LaneBorders borders;
    borders.count_ = 1;
    borders.begin_[1] = static_cast<int>(cols);
    return borders;
  }

  /// kLanes slices of [0, cols), as even as whole units allow; a unit is `unit` elements rounded up to a common
  /// multiple with the quantisation block (a head for attention output, 1 for the MLP). Some lanes may be empty.
  static LaneBorders canonical(std::int64_t cols, std::int64_t unit) {
    const std::int64_t step = std::lcm(unit, static_cast<std::int64_t>(kQuantBlock));
    const std::int64_t units = (cols + step - 1) / step;
    LaneBorders borders;
    borders.count_ = kLanes;
    for (int lane = 0; lane <= kLanes; ++lane) {
      const std::int64_t at = units * lane / kLanes * step;
      borders.begin_[static_cast<std::size_t>(lane)] = static_cast<int>(at < cols ? at : cols);
    }
    return borders;
  }

  int count() const { return count_; }
  const int* data() const { return begin_.data(); }

 private:
  std::array<int, kLanes + 1> begin_{};
  int count_ = 0;
};

}  // namespace butterfly
