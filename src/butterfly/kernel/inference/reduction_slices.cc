#include "butterfly/kernel/inference/reduction_slices.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "butterfly/tensor/dtype.h"

namespace butterfly {
namespace {

constexpr std::int64_t kNarrowestSlice = 2 * kQuantBlock;

std::string run_text(std::string_view what, const SliceRange& run) {
  if (run.count() <= 0) return fmt::format("no {}", what);
  return fmt::format("{} {}-{}", what, run.first, run.last - 1);
}

}  // namespace

std::string HeldSlices::text() const {
  if (whole()) return {};
  const std::string own = run_text("slices", slices());
  return experts_follow() ? own : fmt::format("{}, {}", own, run_text("expert slices", experts));
}

std::vector<SliceRange> subtrees(const SliceRange& slices) {
  std::vector<SliceRange> nodes;
  for (int at = slices.first; at < slices.last; at = nodes.back().last) {
    int size = 1;
    while (at % (2 * size) == 0 && at + 2 * size <= slices.last) size *= 2;
    nodes.push_back({at, at + size});
  }
  return nodes;
}

SliceBorders SliceBorders::single(std::int64_t cols) {
  SliceBorders borders;
  borders.count_ = 1;
  borders.begin_[1] = static_cast<int>(cols);
  return borders;
}

SliceBorders SliceBorders::canonical(std::int64_t cols, std::int64_t unit, int slices) {
  const std::int64_t block = cols < slices * kNarrowestSlice ? kNarrowestSlice : kQuantBlock;
  const std::int64_t step = std::lcm(unit, block);
  const std::int64_t units = (cols + step - 1) / step;
  SliceBorders borders;
  borders.count_ = slices;
  for (int slice = 0; slice <= slices; ++slice) {
    borders.begin_[static_cast<std::size_t>(slice)] = static_cast<int>(std::min(units * slice / slices * step, cols));
  }
  return borders;
}

SliceBorders SliceBorders::even(std::int64_t count) {
  SliceBorders borders;
  borders.count_ = kReductionSlices;
  for (int slice = 0; slice <= kReductionSlices; ++slice) {
    borders.begin_[static_cast<std::size_t>(slice)] = static_cast<int>(count * slice / kReductionSlices);
  }
  return borders;
}

SliceBorders SliceBorders::node(const SliceRange& slices, int first_col) const {
  SliceBorders borders;
  borders.count_ = slices.count();
  for (int i = 0; i <= slices.count(); ++i) {
    borders.begin_[static_cast<std::size_t>(i)] = at(slices.first + i) - first_col;
  }
  return borders;
}

}  // namespace butterfly
