// Matmuls on a thread team: what blocks call. Work is cut along output panels, never along the reduced
// dimension, so the number of threads does not show in the result.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/inference/reduction_slices.h"
#include "butterfly/kernel/packed/packed_matrix.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

/// Rows of activations as matmuls take them: floats, and where the weights are quantised also blocks of int8.
/// All memory belongs to the caller and is sized for rows x cols.
struct ActivationRows {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const float* values = nullptr;  // [rows, cols]
  std::int8_t* quants = nullptr;  // [rows, cols]
  float* scales = nullptr;        // [rows, cols / 32]
  BlockSums* sums = nullptr;      // [rows, cols / 32]
};

/// Bytes of quantised rows: a byte for each element, a scale and two sums for each block.
inline std::uint64_t quantised_bytes(std::int64_t rows, std::int64_t cols) {
  const auto of_block = static_cast<std::int64_t>(sizeof(float) + sizeof(BlockSums));
  return static_cast<std::uint64_t>(rows * (cols + cols / kQuantBlock * of_block));
}

/// One matmul: y[rows, weights.rows()] = slices of x * weights^T (+ bias) (+ residual). The slices may cover a part of
/// the columns.
struct LinearJob {
  const PackedMatrix* weights = nullptr;
  const ActivationRows* x = nullptr;
  SliceBorders slices;
  const float* bias = nullptr;      // [weights.rows()] or null
  const float* residual = nullptr;  // same layout as y, or null
  float* y = nullptr;               // [rows, y_stride]
  std::int64_t y_stride = 0;        // elements; 0: weights.rows()
};

/// How the matrices that multiply the same rows read them.
struct RowForm {
  bool quantised = false;  // in blocks of kQuantBlock, or
  bool grouped = false;    // in groups of kQuantGroup within each slice
  SliceBorders slices{};   // that the columns are divided into, where they are
  SliceRange held{};       // those of them that the rows have

  /// The same for what another matrix reads, too. Where one of several quantised matrices is int8, all read groups.
  void add(const PackedMatrix& reader);
};

/// How `readers` read rows, the second time with the slices of a divided matmul.
RowForm row_form(std::initializer_list<const PackedMatrix*> readers);
RowForm row_form(const PackedMatrix& reader, const SliceBorders& slices, const SliceRange& held);

/// Fills quants, scales and sums of `row` from its values; form.quantised.
void quantize_activation_row(const Kernels& kernels, const ActivationRows& x, std::int64_t row, const RowForm& form);

/// Runs independent matmuls side by side; all read finished inputs.
void run_linear(const Kernels& kernels, ThreadTeam& team, std::span<const LinearJob> jobs,
                trace::Zone zone = trace::Zone::kMatmul);
/// The same within `scope`, which began where memory for the results was taken, and ends here.
void run_linear(const Kernels& kernels, ThreadTeam& team, std::span<const LinearJob> jobs, trace::Scope& scope);

}  // namespace butterfly
