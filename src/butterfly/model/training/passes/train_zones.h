// The zones of what a TrainableTransformer does, with FLOPs and bytes counted from shapes. Matmuls and attention count
// their multiplications and additions, as PyTorch's FlopCounterMode does; other operations count none, as there.
#pragma once

#include <cstdint>

#include "butterfly/kernel/gemm/gemm.h"
#include "butterfly/model/training/passes/train_context.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

/// `call` by context.gemm in its zone: [m, k] by [k, n].
Status run_matmul(const TrainContext& context, trace::Zone zone, trace::Pass pass, const GemmCall& call);

/// Something done to each element of [rows, cols].
struct ElementWork {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint64_t bytes = 0;  // of each element
  trace::Pass pass = trace::Pass::kForward;
};
trace::Work work_of(const ElementWork& elements);

/// Attention of one layer. Fused, a query is multiplied with the keys that it sees, seq (seq + 1) / 2 pairs of each
/// head without a window, and the backward pass has five matmuls, since it computes the scores again. PyTorch's counter
/// has the same matmuls over all seq^2 pairs. Not fused, all pairs are computed, and the backward pass has four
/// matmuls.
trace::Work attention_work(const TrainContext& context, std::int64_t window, trace::Pass pass);

}  // namespace butterfly
