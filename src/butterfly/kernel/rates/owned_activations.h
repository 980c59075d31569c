// Rows of activations with memory of their own, as measurements multiply them.
#pragma once

#include <cstdint>
#include <vector>

#include "butterfly/kernel/inference/linear.h"

namespace butterfly {

struct OwnedActivations {
  OwnedActivations(const Kernels& kernels, std::int64_t rows, std::int64_t cols,
                   const RowForm& form = {.quantised = true})
      : values(static_cast<std::size_t>(rows * cols), 0.5f),
        quants(values.size()),
        scales(values.size() / kQuantBlock),
        sums(scales.size()),
        view{.rows = rows,
             .cols = cols,
             .values = values.data(),
             .quants = quants.data(),
             .scales = scales.data(),
             .sums = sums.data()} {
    for (std::int64_t row = 0; row < rows; ++row) quantize_activation_row(kernels, view, row, form);
  }
  std::vector<float> values;
  std::vector<std::int8_t> quants;
  std::vector<float> scales;
  std::vector<BlockSums> sums;
  ActivationRows view;
};

}  // namespace butterfly
