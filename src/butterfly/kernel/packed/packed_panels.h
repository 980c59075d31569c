// One panel of a packed matrix, from rows as they are stored and back: packed_matrix.h says how it lies. Plain
// functions, thread-safe; callers own all memory and have checked the sizes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "butterfly/base/range.h"
#include "butterfly/kernel/packed/packed_type.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// Outputs of a panel, and their columns.
struct PanelShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

/// Rows of the type `layout`, `step` bytes apart, to a panel.
void pack_panel(DType layout, const std::byte* from, std::int64_t step, const PanelShape& shape, std::byte* to);

/// How a panel is packed, and what its rows unpack to.
struct PanelType {
  PackedType packed{};
  DType computing{};
};

/// Columns `of_cols` of row i, whole blocks, in the computing type.
void unpack_panel_row(const PanelType& type, const std::byte* panel, std::int64_t i, const IndexRange& of_cols,
                      std::byte* out);

}  // namespace butterfly
