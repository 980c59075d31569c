#include <algorithm>
#include <new>
#include <vector>

#include "butterfly/kernel/gemm/gemm_tiles.h"
#include "butterfly/tensor/half.h"

namespace butterfly {
namespace {

// Depth of the reduced dimension at a time: that many rows of a tile of B, as floats, stay in the second-level cache.
constexpr std::int64_t kDepth = 128;

class PortableEngine final : public TileEngine {
 public:
  explicit PortableEngine(Precision precision) : precision_(precision) {}

  std::string_view name() const override { return "portable"; }

  Status prepare(const GemmCall&, const TileGrid& grid, int members) override {
    const auto floats = static_cast<std::size_t>(kDepth * (grid.cols + 1));
    try {
      packed_.resize(std::max(packed_.size(), static_cast<std::size_t>(members)));
      for (auto& packed : packed_) packed.resize(std::max(packed.size(), floats));
    } catch (const std::bad_alloc&) {
      return make_error(ErrorCode::kNoMemory, "{} times {} bytes to pack a matrix are not there", members, floats * 4);
    }
    return {};
  }

  void tile(const GemmCall& tile, int member) override {
    float* packed = packed_[static_cast<std::size_t>(member)].data();
    float* values = packed + kDepth * tile.n;
    for (std::int64_t i = 0; i < tile.m; ++i) {
      float* c = tile.c + i * tile.c_stride;
      if (tile.accumulate == Accumulate::kNo) std::fill_n(c, tile.n, 0.0f);
      for (std::int64_t j = 0; tile.bias != nullptr && j < tile.n; ++j) c[j] += tile.bias[j];
    }
    for (std::int64_t begin = 0; begin < tile.k; begin += kDepth) {
      const std::int64_t depth = std::min(kDepth, tile.k - begin);
      for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t j = 0; j < tile.n; ++j) {
          packed[k * tile.n + j] = value(tile.b, tile.b_stride, tile.b_transposed, begin + k, j);
        }
      }
      for (std::int64_t i = 0; i < tile.m; ++i) {
        for (std::int64_t k = 0; k < depth; ++k)
          values[k] = value(tile.a, tile.a_stride, tile.a_transposed, i, begin + k);
        float* c = tile.c + i * tile.c_stride;
        for (std::int64_t k = 0; k < depth; ++k) {
          const float* b = packed + k * tile.n;
          for (std::int64_t j = 0; j < tile.n; ++j) c[j] += values[k] * b[j];
        }
      }
    }
  }

 private:
  float value(const void* base, std::int64_t stride, Transpose transposed, std::int64_t row, std::int64_t col) const {
    const std::int64_t index = transposed == Transpose::kYes ? col * stride + row : row * stride + col;
    if (precision_ == Precision::kFloat32) return static_cast<const float*>(base)[index];
    return bfloat16_to_float(static_cast<const std::uint16_t*>(base)[index]);
  }

  Precision precision_;
  std::vector<std::vector<float>> packed_;  // of each member: [kDepth, cols] of B and [kDepth] of A
};

}  // namespace

std::unique_ptr<TileEngine> make_portable_engine(Precision precision) {
  return std::make_unique<PortableEngine>(precision);
}

}  // namespace butterfly
