// Gradients to few bytes and back, with the error that is fed back: elementwise loops whose bits are the same on every
// instruction set. Tables are immutable and thread-safe; callers own all memory. A plain header: per-ISA files include
// it.
#pragma once

namespace butterfly {

/// Elements that share a scale; the last block of a row may be shorter.
inline constexpr long kGradientBlock = 32;

/// Encoding takes x = g + e (rounded to float) for each gradient g and what is still residual of it, e, writes Q(x) to
/// `out` and leaves e = x - Q(x), which is exact. Where Q(x) is not finite, x is sent as it is and e becomes 0, so that
/// one bad step does not stay. Bytes need no alignment.
struct GradientRows {
  const char* name;

  /// bf16, nearest, ties to even: 2 bytes for each element.
  void (*encode_bf16)(const float* g, float* e, long n, unsigned char* out);
  void (*decode_bf16)(const unsigned char* in, long n, float* y);

  /// Blocks of kGradientBlock: the scale, max|x| / 127 rounded up to a bf16, then a signed byte for each element,
  /// x / scale to the nearest, ties to even. A block below 2^-100 is sent as zeros.
  void (*encode_int8)(const float* g, float* e, long n, unsigned char* out);
  void (*decode_int8)(const unsigned char* in, long n, float* y);
};

extern const GradientRows kReferenceGradientRows;
#ifdef __x86_64__
extern const GradientRows kAvx2GradientRows;
extern const GradientRows kAvx512GradientRows;
#endif

}  // namespace butterfly
