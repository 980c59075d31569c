#include "butterfly/train/gradients/gradient_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/kernel/training/gradient_dispatch.h"
#include "butterfly/wire/channel/codec.h"

namespace butterfly {
namespace {

const unsigned char* raw(ByteSpan bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

unsigned char* raw(MutableByteSpan bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

Status check_size(std::size_t bytes, std::size_t expected, std::size_t elements) {
  if (bytes == expected) return {};
  return make_error(ErrorCode::kProtocol, "{} packed gradients take {} bytes, {} came", elements, expected, bytes);
}

/// Those whose size does not depend on values.
class FixedCodec : public GradientCodec {
 public:
  std::optional<std::size_t> fixed_bytes(std::size_t elements) const override { return bytes_max(elements); }
};

class Bf16Codec final : public FixedCodec {
 public:
  explicit Bf16Codec(const GradientRows& rows) : rows_(rows) {}
  std::size_t bytes_max(std::size_t elements) const override { return 2 * elements; }

  std::size_t encode(std::span<const float> values, std::span<float> residual, MutableByteSpan out) override {
    BF_CHECK(residual.size() == values.size() && out.size() >= bytes_max(values.size()));
    rows_.encode_bf16(values.data(), residual.data(), static_cast<long>(values.size()), raw(out));
    return bytes_max(values.size());
  }

  Status decode(ByteSpan bytes, std::span<float> values) override {
    BF_TRY(check_size(bytes.size(), bytes_max(values.size()), values.size()));
    rows_.decode_bf16(raw(bytes), static_cast<long>(values.size()), values.data());
    return {};
  }

 private:
  const GradientRows& rows_;
};

class Int8Codec final : public FixedCodec {
 public:
  explicit Int8Codec(const GradientRows& rows) : rows_(rows) {}
  std::size_t bytes_max(std::size_t elements) const override {
    constexpr auto kBlock = static_cast<std::size_t>(kGradientBlock);
    return elements + 2 * ((elements + kBlock - 1) / kBlock);
  }

  std::size_t encode(std::span<const float> values, std::span<float> residual, MutableByteSpan out) override {
    BF_CHECK(residual.size() == values.size() && out.size() >= bytes_max(values.size()));
    rows_.encode_int8(values.data(), residual.data(), static_cast<long>(values.size()), raw(out));
    return bytes_max(values.size());
  }

  Status decode(ByteSpan bytes, std::span<float> values) override {
    BF_TRY(check_size(bytes.size(), bytes_max(values.size()), values.size()));
    rows_.decode_int8(raw(bytes), static_cast<long>(values.size()), values.data());
    return {};
  }

 private:
  const GradientRows& rows_;
};

class Fp16Codec final : public FixedCodec {
 public:
  explicit Fp16Codec(const Kernels& kernels) : kernels_(kernels) {}
  std::size_t bytes_max(std::size_t elements) const override { return 2 * elements; }

  std::size_t encode(std::span<const float> values, std::span<float> residual, MutableByteSpan out) override {
    BF_CHECK(residual.size() == values.size() && out.size() >= bytes_max(values.size()));
    for (std::size_t begin = 0; begin < values.size(); begin += kChunk) {
      const std::size_t size = std::min(kChunk, values.size() - begin);
      encode_chunk(values.subspan(begin, size), residual.subspan(begin, size), raw(out) + 2 * begin);
    }
    return bytes_max(values.size());
  }

  Status decode(ByteSpan bytes, std::span<float> values) override {
    BF_TRY(check_size(bytes.size(), bytes_max(values.size()), values.size()));
    kernels_.halves_to_floats(raw(bytes), static_cast<long>(values.size()), values.data());
    return {};
  }

 private:
  static constexpr std::size_t kChunk = 1024;  // stays in the first cache
  static constexpr float kLargest = 65504.0F;

  void encode_chunk(std::span<const float> values, std::span<float> residual, unsigned char* out) {
    const std::size_t size = values.size();
    for (std::size_t i = 0; i < size; ++i) {
      const float x = values[i] + residual[i];
      residual[i] = x;
      // Infinities and NaN go as they are.
      chunk_[i] = std::abs(x) <= 3.402823466e38F ? std::clamp(x, -kLargest, kLargest) : x;
    }
    kernels_.floats_to_halves(chunk_.data(), static_cast<long>(size), out);
    kernels_.halves_to_floats(out, static_cast<long>(size), chunk_.data());
    for (std::size_t i = 0; i < size; ++i) {
      const float left = residual[i] - chunk_[i];
      residual[i] = std::abs(left) <= 3.402823466e38F ? left : 0.0F;
    }
  }

  const Kernels& kernels_;
  std::array<float, kChunk> chunk_{};
};

/// LZ4 and zstd. What did not become smaller travels as it is, which its size says.
class LosslessCodec final : public GradientCodec {
 public:
  explicit LosslessCodec(Codec codec) : packing_{.codec = codec, .element_bytes = sizeof(float)} {}

  std::optional<std::size_t> fixed_bytes(std::size_t /*elements*/) const override { return std::nullopt; }
  std::size_t bytes_max(std::size_t elements) const override { return elements * sizeof(float); }

  std::size_t encode(std::span<const float> values, std::span<float> /*residual*/, MutableByteSpan out) override {
    BF_CHECK(out.size() >= bytes_max(values.size()));
    const ByteSpan bytes = std::as_bytes(values);
    const auto packed = codec_.pack(bytes, packing_);
    const ByteSpan sent = packed ? ByteSpan(packed->bytes) : bytes;
    std::ranges::copy(sent, out.begin());
    return sent.size();
  }

  Status decode(ByteSpan bytes, std::span<float> values) override {
    const MutableByteSpan out = std::as_writable_bytes(values);
    if (bytes.size() == out.size()) {
      std::ranges::copy(bytes, out.begin());
      return {};
    }
    const auto in_place = [&](std::uint64_t size) -> Result<Payload> {
      BF_TRY(check_size(size, out.size(), values.size()));
      return Payload{.owner = {}, .bytes = out};
    };
    BF_TRY(codec_.unpack(bytes, packing_, in_place, out.size()));
    return {};
  }

 private:
  const Packing packing_;
  PayloadCodec codec_;
};

}  // namespace

std::string_view gradient_compression_name(GradientCompression method) {
  constexpr std::array<std::string_view, 7> kNames{"off", "fp16", "bf16", "int8", "lz4", "zstd", "auto"};
  return kNames[static_cast<std::size_t>(method)];
}

std::unique_ptr<GradientCodec> make_gradient_codec(GradientCompression method, Isa isa) {
  switch (method) {
    case GradientCompression::kFp16:
      return std::make_unique<Fp16Codec>(kernels_for(isa));
    case GradientCompression::kBf16:
      return std::make_unique<Bf16Codec>(gradient_rows_for(isa));
    case GradientCompression::kInt8:
      return std::make_unique<Int8Codec>(gradient_rows_for(isa));
    case GradientCompression::kLz4:
      return std::make_unique<LosslessCodec>(Codec::kLz4);
    case GradientCompression::kZstd:
      return std::make_unique<LosslessCodec>(Codec::kZstd);
    case GradientCompression::kOff:
    case GradientCompression::kAuto:
      break;
  }
  detail::check_failed(__FILE__, __LINE__, "no codec");
}

}  // namespace butterfly
