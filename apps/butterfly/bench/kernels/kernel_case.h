// One operation made ready to be timed, and the makers of them. Cases live while they are visited, one after another,
// so that weights of every type need not be in memory together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly::app {

/// FLOPs and bytes are those of one call, counted from shapes: weights, operands and results once.
struct KernelCase {
  std::string operation{};  // "matmul", "attention", "rms_norm"
  std::string type{};       // of weights or of the cache; "f32 to q8_0"
  std::string shape{};      // "1 x 2048 to 5632"
  double flops = 0;
  double bytes = 0;
  int calls = 1;  // that `run` makes
  std::function<void(const Kernels& kernels, ThreadTeam& team)> run{};
};

using KernelVisit = std::function<Status(const KernelCase& one)>;

/// A matrix of a layer. `unit`: of the slices of a divided one; 0: it is not divided.
struct MatrixShape {
  std::int64_t out = 0;
  std::int64_t in = 0;
  std::int64_t unit = 0;
};

/// The four of one layer of llama-1.1b: queries, keys and values; attention's output; gate and up; down.
std::vector<MatrixShape> layer_matrices();

struct KernelWork {
  std::vector<MatrixShape> shapes{};
  std::vector<std::int64_t> rows{};  // of a step
  std::vector<int> keys{};           // that attention reads
  std::uint64_t bytes = 0;           // that a case reads at least, so that no cache holds them
};

/// Made-up weights of `type`, every shape with every number of rows. With one row several matrices are multiplied with
/// in turn. Errors: kNoMemory; those of `visit`.
Status visit_matmuls(DType type, const KernelWork& work, ThreadTeam& packers, const KernelVisit& visit);

/// Some key-value heads, divided among the threads, with every type of cache. Errors: as above.
Status visit_attention(const KernelWork& work, const KernelVisit& visit);

/// Norms, softmax, activations and quantisation of many rows, whose floats no cache holds. Errors: as above.
Status visit_rows(const KernelWork& work, const KernelVisit& visit);

/// Floats to `type` and back. Errors: as above.
Status visit_conversions(DType type, const KernelWork& work, const KernelVisit& visit);

}  // namespace butterfly::app
