#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "butterfly/kernel/gemm/gemm_tiles.h"
#include "butterfly/tensor/aligned_buffer.h"

namespace butterfly {
namespace {

// Of the reduced dimension, at a time: what is widened of a tile has a few MiB.
constexpr std::int64_t kDepth = 1024;

/// A stored matrix, or a part of it: `rows` runs of `count` elements.
struct Stored {
  const std::uint16_t* from;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t count;
};

void widen(const Stored& bf16, std::int64_t stride, float* to) {
  for (std::int64_t row = 0; row < bf16.rows; ++row) {
    const std::uint16_t* from = bf16.from + row * bf16.stride;
    float* out = to + row * stride;
    for (std::int64_t i = 0; i < bf16.count; ++i) out[i] = std::bit_cast<float>(std::uint32_t{from[i]} << 16);
  }
}

class WidenedEngine final : public TileEngine {
 public:
  explicit WidenedEngine(std::unique_ptr<TileEngine> fp32) : fp32_(std::move(fp32)) {}

  std::string_view name() const override { return fp32_->name(); }
  TileGrid plan(std::int64_t m, std::int64_t n, int members) const override { return fp32_->plan(m, n, members); }

  Status prepare(const GemmCall& call, const TileGrid& grid, int members) override {
    grid_ = grid;
    depth_ = std::min(call.k, kDepth);
    for (std::int64_t k = 0; k < call.k; k += kDepth) {
      // Of those in the middle, all are alike.
      if (k > kDepth && k + kDepth < call.k) continue;
      BF_TRY(fp32_->prepare(step(call, k), grid, members));
    }
    members_.resize(std::max(members_.size(), static_cast<std::size_t>(members)));
    const auto a = static_cast<std::uint64_t>(grid.rows * depth_) * sizeof(float);
    const auto b = static_cast<std::uint64_t>(grid.cols * depth_) * sizeof(float);
    for (Member& member : members_) {
      if (member.a.bytes() < a) {
        BF_ASSIGN_OR_RETURN(member.a, AlignedBuffer::create(a));
      }
      if (member.b.bytes() < b) {
        BF_ASSIGN_OR_RETURN(member.b, AlignedBuffer::create(b));
      }
    }
    return {};
  }

  bool tile(const GemmCall& tile, int member) override {
    const Member& self = members_[static_cast<std::size_t>(member)];
    const auto* a = static_cast<const std::uint16_t*>(tile.a);
    const auto* b = static_cast<const std::uint16_t*>(tile.b);
    for (std::int64_t k = 0; k < tile.k; k += kDepth) {
      GemmCall widened = step(tile, k);
      widened.a = self.a.data();
      widened.b = self.b.data();
      if (tile.a_transposed == Transpose::kYes) {
        widen({a + k * tile.a_stride, tile.a_stride, widened.k, tile.m}, widened.a_stride, floats(self.a));
      } else {
        widen({a + k, tile.a_stride, tile.m, widened.k}, widened.a_stride, floats(self.a));
      }
      if (tile.b_transposed == Transpose::kYes) {
        widen({b + k, tile.b_stride, tile.n, widened.k}, widened.b_stride, floats(self.b));
      } else {
        widen({b + k * tile.b_stride, tile.b_stride, widened.k, tile.n}, widened.b_stride, floats(self.b));
      }
      if (!fp32_->tile(widened, member)) return false;
    }
    return true;
  }

 private:
  struct Member {
    AlignedBuffer a, b;  // what is widened of both operands
  };

  static float* floats(const AlignedBuffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

  /// The fp32 matmul of the elements from `k` of the reduced dimension on, without its operands.
  GemmCall step(const GemmCall& call, std::int64_t k) const {
    GemmCall step = call;
    step.k = std::min(kDepth, call.k - k);
    step.a_stride = call.a_transposed == Transpose::kYes ? grid_.rows : depth_;
    step.b_stride = call.b_transposed == Transpose::kYes ? depth_ : grid_.cols;
    if (k > 0) {
      step.accumulate = Accumulate::kYes;
      step.bias = nullptr;
    }
    return step;
  }

  std::unique_ptr<TileEngine> fp32_;
  TileGrid grid_;           // of the prepared call
  std::int64_t depth_ = 0;  // of it, at a time
  std::vector<Member> members_;
};

}  // namespace

std::unique_ptr<TileEngine> make_widened_engine(std::unique_ptr<TileEngine> fp32) {
  return std::make_unique<WidenedEngine>(std::move(fp32));
}

}  // namespace butterfly
