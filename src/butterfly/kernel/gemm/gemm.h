// Large matmuls for training, cut into tiles that the thread team shares, each computed on one thread. fp32, or bf16
// operands with fp32 sums. The number of threads does not show in the bits: each element of C is one chain of sums
// wherever tiles end. Not reentrant for one Gemm.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/machine/isa.h"
#include "butterfly/machine/thread_team.h"

namespace butterfly {

enum class Precision : std::uint8_t { kFloat32, kBfloat16 };
std::string_view to_string(Precision precision);  // "fp32", "bf16"
/// Errors: kInvalidArgument naming the known ones.
Result<Precision> parse_precision(std::string_view name);

enum class Transpose : std::uint8_t { kNo, kYes };
enum class Accumulate : std::uint8_t { kNo, kYes };

/// C[m, n] (+)= op(A)[m, k] * op(B)[k, n] (+ bias[n]), row-major; strides in elements. A and B are float for kFloat32
/// and bf16 (unsigned short) for kBfloat16; C is always float.
struct GemmCall {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  float* c = nullptr;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;  // between stored rows
  Transpose a_transposed = Transpose::kNo;
  Transpose b_transposed = Transpose::kNo;
  Accumulate accumulate = Accumulate::kNo;
  const float* bias = nullptr;
};

class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual Precision precision() const = 0;
  /// "avx2", "avx512", "avx512_bf16", "amx", "portable".
  virtual std::string_view name() const = 0;
  /// The first call with a shape may allocate; later ones do not. Errors: kNoMemory.
  virtual Status run(const GemmCall& call) = 0;
};

/// `team` is borrowed. Kernels of the instruction set: bf16 in tiles for Isa::kAmx, by dot products of pairs where the
/// CPU has them, else as fp32. "portable" for Isa::kReference: matmuls are then computed in float, slowly.
std::unique_ptr<Gemm> make_gemm(Precision precision, Isa isa, ThreadTeam& team);

}  // namespace butterfly
