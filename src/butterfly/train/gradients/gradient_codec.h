// What gradients may travel as: fewer bits with the error fed back into the next step, or the same bits compressed.
// Packed bytes come from a peer and are checked. A codec keeps scratch memory and belongs to one thread at a time.
//
// Error feedback, per element, where e is what was left out so far and Q what the codec makes of a value:
//   x = g + e (rounded to float), Q(x) is sent, e' = x - Q(x), which is exact for all codecs here.
// So Q(x) + e' = x without rounding in every step, and the sum of what was sent plus e is the sum of all g but for the
// rounding of g + e. (https://arxiv.org/abs/1901.09847)
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/machine/isa.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly {

/// "off", "fp16", "bf16", "int8", "lz4", "zstd", "auto".
std::string_view gradient_compression_name(GradientCompression method);

/// Whether a method leaves something out and feeds it back.
constexpr bool is_lossy(GradientCompression method) {
  return method == GradientCompression::kFp16 || method == GradientCompression::kBf16 ||
         method == GradientCompression::kInt8;
}

class GradientCodec {
 public:
  virtual ~GradientCodec() = default;

  /// Bytes of `elements` elements; nothing where that depends on their values.
  virtual std::optional<std::size_t> fixed_bytes(std::size_t elements) const = 0;
  /// No encoding of `elements` elements is larger.
  virtual std::size_t bytes_max(std::size_t elements) const = 0;

  /// Writes at most bytes_max() and says how many. `residual` is e, as long as the values where the codec is lossy, and
  /// not looked at otherwise.
  virtual std::size_t encode(std::span<const float> values, std::span<float> residual, MutableByteSpan out) = 0;

  /// Errors: kProtocol for bytes that no encode() of that number of elements writes.
  virtual Status decode(ByteSpan bytes, std::span<float> values) = 0;
};

/// `method` is neither kOff nor kAuto. fp16: IEEE half, values beyond 65504 are sent as that. bf16 and int8:
/// kernel/gradient_rows.h. lz4 and zstd: bytes of equal significance side by side, then compressed; floats as they are
/// where that is not smaller.
std::unique_ptr<GradientCodec> make_gradient_codec(GradientCompression method, Isa isa);

}  // namespace butterfly
