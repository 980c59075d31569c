#include "butterfly/kernel/inference/row_codec.h"

#include "butterfly/base/check.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {

void encode_row(const Kernels& kernels, DType type, std::span<const float> values, MutableByteSpan bytes) {
  if (type != DType::kF16 && type != DType::kQ8_0) return encode_row(type, values, bytes);
  BF_CHECK(row_bytes(type, values.size()) == bytes.size());
  auto* out = reinterpret_cast<unsigned char*>(bytes.data());
  const auto encode = type == DType::kF16 ? kernels.floats_to_halves : kernels.floats_to_q8_0;
  encode(values.data(), static_cast<long>(values.size()), out);
}

void decode_row(const Kernels& kernels, DType type, ByteSpan bytes, std::span<float> values) {
  if (type != DType::kF16 && type != DType::kQ8_0) return decode_row(type, bytes, values);
  BF_CHECK(row_bytes(type, values.size()) == bytes.size());
  const auto* in = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto decode = type == DType::kF16 ? kernels.halves_to_floats : kernels.q8_0_to_floats;
  decode(in, static_cast<long>(values.size()), values.data());
}

}  // namespace butterfly
