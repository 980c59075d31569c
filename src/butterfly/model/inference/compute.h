// What arithmetic on a node needs besides weights: kernels, threads, scratch. Borrowed; one step at a time.
#pragma once

#include <atomic>
#include <cstdint>

#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/inference/linear.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/tensor/arena.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

class TensorGroup;

struct Compute {
  const Kernels* kernels = nullptr;
  ThreadTeam* team = nullptr;
  Arena* arena = nullptr;        // reset by the owner between steps
  TensorGroup* group = nullptr;  // where this node holds some of the slices; null: it holds all
};

/// Calls work(row) for every row: on the team where rows * elements is worth waking it, else on the caller.
template <typename Work>
void for_each_row(const Compute& compute, std::int64_t rows, std::int64_t elements, const Work& work) {
  constexpr std::int64_t kWorthWaking = 16 * 1024;  // a wake costs a few microseconds, as 16 Ki simple elements do
  if (rows * elements < kWorthWaking || rows == 1) {
    for (std::int64_t row = 0; row < rows; ++row) work(row);
    return;
  }
  compute.team->run([&](int member) {
    const WorkRange range = split_work(rows, member, compute.team->size());
    for (std::int64_t row = range.begin; row < range.end; ++row) work(row);
  });
}

/// What an operation over rows of `width` did that read and wrote `floats` floats of each. FLOPs are those of matmuls
/// and attention; other operations wait for memory.
inline trace::Work work_on_rows(std::int64_t rows, std::int64_t width, std::int64_t floats) {
  return {.number = static_cast<std::uint32_t>(rows),
          .in = static_cast<std::uint32_t>(width),
          .out = static_cast<std::uint32_t>(width),
          .bytes = static_cast<std::uint64_t>(rows * floats) * sizeof(float)};
}

/// Scratch. Errors: kNoMemory.
inline Result<float*> allocate_floats(const Compute& compute, std::int64_t rows, std::int64_t cols) {
  BF_ASSIGN_OR_RETURN(const auto values, compute.arena->allocate_array<float>(static_cast<std::uint64_t>(rows * cols)));
  return values.data();
}

/// Quantises the rows where one of the matrices that read them is quantised.
void prepare_rows(const Compute& compute, const ActivationRows& x, const RowForm& form);

/// Scratch for activations that `weights` will be multiplied with. Errors: kNoMemory.
Result<ActivationRows> allocate_activations(Arena& arena, std::int64_t rows, std::int64_t cols, float* values);

/// Rows as matmuls read them, quantised where one of their matrices is; without memory for that where none is.
/// Errors: kNoMemory.
Result<ActivationRows> prepared_rows(const Compute& compute, std::int64_t rows, std::int64_t cols, float* values,
                                     const RowForm& form);

}  // namespace butterfly
