// One instruction set's way to multiply matrices: operands are copied into panels of a few rows of op(A), or columns of
// op(B), in the order in which the matmul reads them, padded with zeros. Each element of C is one chain of sums along
// the reduced dimension, wherever tiles end. Tables are immutable and thread-safe. A plain header: per-ISA files
// include it.
#pragma once

namespace butterfly {

/// Where panels come from: `lanes` rows of op(A), or columns of op(B), of `depth` elements each.
struct PanelSource {
  const void* from = nullptr;
  long stride = 0;              // elements between stored rows
  bool lanes_together = false;  // a stored row holds one element of each lane; else all elements of one
  long lanes = 0;
  long depth = 0;
};

/// Rows of memory, distances in bytes.
struct MemoryRows {
  const void* from = nullptr;
  long stride = 0;
  long bytes = 0;  // of a row
  long rows = 0;
};

/// C[m, n] = or += A[m, depth] B[depth, n] (+ bias[n]) from panels of A and one of B.
struct PanelMatmul {
  const void* a = nullptr;
  long a_panel = 0;  // bytes from a panel to the next
  const void* b = nullptr;
  float* c = nullptr;
  long c_stride = 0;
  long m = 0;
  long n = 0;      // at most GemmKernels::cols
  long depth = 0;  // of the panels, padded
  const float* bias = nullptr;
  bool add = false;
  MemoryRows ahead;     // worth having in the caches after this matmul: what the next panel of B is made of
  bool stream = false;  // C is larger than the caches: written past them where that is possible
};

struct GemmKernels {
  const char* name;
  long source_bytes;  // of an element of A or B
  long panel_bytes;   // of one in a panel
  long rows, cols;    // lanes of a panel of A and of B
  long depth;         // of the reduced dimension that is packed and multiplied at a time
  long depth_step;    // panels are padded to multiples of it
  /// Writes as many panels as there are lanes for, rows (or cols) * depth rounded up * panel_bytes bytes each,
  /// `panel_stride` apart, 64-byte aligned.
  void (*pack_rows)(const PanelSource& source, long panel_stride, void* panels);
  void (*pack_cols)(const PanelSource& source, long panel_stride, void* panels);
  void (*multiply)(const PanelMatmul& matmul);
};

#ifdef __x86_64__
extern const GemmKernels kAvx2GemmKernels;  // fp32
extern const GemmKernels kAvx512GemmKernels;
extern const GemmKernels kAvx2Bf16GemmKernels;  // bf16, which panels hold as fp32
extern const GemmKernels kAvx512Bf16GemmKernels;
/// bf16 by dot products of pairs, on CPUs with AVX-512 BF16.
extern const GemmKernels kAvx512DotGemmKernels;
/// bf16 in the CPU's tile registers, which the process has to ask for: matmuls go on subnormals as zeros.
extern const GemmKernels kAmxGemmKernels;
#endif

}  // namespace butterfly
