#include <algorithm>
#include <cstddef>
#include <vector>

#include "butterfly/kernel/gemm/gemm_kernels.h"
#include "butterfly/kernel/gemm/gemm_tiles.h"
#include "butterfly/machine/topology.h"
#include "butterfly/tensor/aligned_buffer.h"

namespace butterfly {
namespace {

// A tile's part of A has at most this number of rows, and those that the second-level cache holds.
constexpr std::int64_t kTileRowsMost = 512;

// Each: the others take over what one that is held up leaves.
constexpr std::int64_t kTilesPerMember = 2;
constexpr std::int64_t kTileLeast = 128;
// Alignment of a tile: whole vectors and whole AMX tiles.
constexpr std::int64_t kTileAlign = 64;

// Size of C from which stores bypass the caches: more than a core's cache holds.
constexpr std::int64_t kStreamedBytes = std::int64_t{4} << 20;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return divide_up(a, b) * b;
}

/// One operand of a tile.
struct Operand {
  const void* from = nullptr;
  std::int64_t stride = 0;
  bool lanes_together = false;
};

class PackedEngine final : public TileEngine {
 public:
  explicit PackedEngine(const GemmKernels& kernels) : kernels_(kernels), tile_rows_most_(rows_in_cache(kernels)) {}

  std::string_view name() const override { return kernels_.name; }

  /// A tile's part of A is packed for its columns alone, and B for its rows: tiles are as large as the caches and the
  /// number of threads allow, and cut where that packs least. Each element of C is one chain of sums wherever they end.
  TileGrid plan(std::int64_t m, std::int64_t n, int members) const override {
    std::int64_t row_tiles = divide_up(m, tile_rows_most_);
    std::int64_t col_tiles = 1;
    const std::int64_t wanted = members == 1 ? 1 : members * kTilesPerMember;
    while (row_tiles * col_tiles < wanted) {
      // Another cut of the columns packs A once more, m elements for each of the depth; of the rows B, n elements.
      const bool may_cut_rows = m / row_tiles >= 2 * kTileLeast;
      const bool may_cut_cols = n / col_tiles >= 2 * kTileLeast;
      if (!may_cut_rows && !may_cut_cols) break;
      const bool rows = may_cut_rows && (!may_cut_cols || n * row_tiles < m * col_tiles);
      (rows ? row_tiles : col_tiles) *= 2;
    }
    const std::int64_t rows = round_up(divide_up(m, row_tiles), kTileAlign);
    const std::int64_t cols = round_up(divide_up(n, col_tiles), kTileAlign);
    return {rows, cols, divide_up(m, rows), divide_up(n, cols)};
  }

  Status prepare(const GemmCall& call, const TileGrid& grid, int members) override {
    stream_ = call.k <= kernels_.depth && call.m * call.n * 4 > kStreamedBytes;
    const std::int64_t depth = std::min<std::int64_t>(call.k, kernels_.depth);
    const std::int64_t panels = divide_up(grid.rows, kernels_.rows);
    const auto rows = static_cast<std::uint64_t>(panels * panel_bytes(kernels_.rows, depth));
    const auto cols = static_cast<std::uint64_t>(panel_bytes(kernels_.cols, depth));
    members_.resize(std::max(members_.size(), static_cast<std::size_t>(members)));
    for (Member& member : members_) {
      if (member.rows.bytes() < rows) {
        BF_ASSIGN_OR_RETURN(member.rows, AlignedBuffer::create(rows));
      }
      if (member.cols.bytes() < cols) {
        BF_ASSIGN_OR_RETURN(member.cols, AlignedBuffer::create(cols));
      }
    }
    return {};
  }

  void tile(const GemmCall& tile, int member) override {
    const Member& self = members_[static_cast<std::size_t>(member)];
    const Operand rows{tile.a, tile.a_stride, tile.a_transposed == Transpose::kYes};
    const Operand cols{tile.b, tile.b_stride, tile.b_transposed == Transpose::kNo};
    for (std::int64_t k = 0; k < tile.k; k += kernels_.depth) {
      const std::int64_t depth = std::min<std::int64_t>(kernels_.depth, tile.k - k);
      const PanelSource a = source(rows, 0, tile.m, k, depth);
      PanelMatmul matmul{.a = self.rows.data(),
                         .a_panel = panel_bytes(kernels_.rows, depth),
                         .b = self.cols.data(),
                         .c_stride = tile.c_stride,
                         .m = tile.m,
                         .depth = round_up(depth, kernels_.depth_step),
                         .add = k > 0 || tile.accumulate == Accumulate::kYes,
                         .ahead = {},
                         .stream = stream_};
      for (std::int64_t col = 0; col < tile.n; col += kernels_.cols) {
        matmul.n = std::min(kernels_.cols, tile.n - col);
        matmul.c = tile.c + col;
        matmul.bias = k == 0 && tile.bias != nullptr ? tile.bias + col : nullptr;
        kernels_.pack_cols(source(cols, col, matmul.n, k, depth), panel_bytes(kernels_.cols, depth), self.cols.data());
        const std::int64_t next = col + kernels_.cols;
        matmul.ahead =
            next < tile.n ? memory(source(cols, next, std::min(kernels_.cols, tile.n - next), k, depth)) : MemoryRows{};
        if (col == 0) {
          pack_and_multiply(a, matmul, self.rows.data());
        } else {
          kernels_.multiply(matmul);
        }
      }
    }
  }

 private:
  struct Member {
    AlignedBuffer rows;  // the panels of a tile's part of A
    AlignedBuffer cols;  // one of B
  };

  static std::int64_t rows_in_cache(const GemmKernels& kernels) {
    const auto row = static_cast<std::uint64_t>(kernels.depth * kernels.panel_bytes);
    const auto fit = static_cast<std::int64_t>(l2_bytes() / row) / kTileAlign * kTileAlign;
    return std::clamp(fit, kTileLeast, kTileRowsMost);
  }

  /// The matmul with the first panel of B, and all of A's panels, which the others will find in `panels`.
  void pack_and_multiply(const PanelSource& a, const PanelMatmul& matmul, std::byte* panels) const {
    if (a.lanes_together) {
      kernels_.pack_rows(a, matmul.a_panel, panels);
      return kernels_.multiply(matmul);
    }
    // Panel by panel, so that the sums of one hide how long the memory takes for the next.
    PanelMatmul part = matmul;
    for (std::int64_t row = 0; row < matmul.m; row += kernels_.rows) {
      const std::int64_t next = row + kernels_.rows;
      std::byte* panel = panels + row / kernels_.rows * matmul.a_panel;
      kernels_.pack_rows(lanes_of(a, row), matmul.a_panel, panel);
      part.a = panel;
      part.m = std::min(kernels_.rows, matmul.m - row);
      part.c = matmul.c + row * matmul.c_stride;
      part.ahead = next < matmul.m ? memory(lanes_of(a, next)) : matmul.ahead;
      kernels_.multiply(part);
    }
  }

  /// The panel of `all`, whose lanes are apart, that begins with lane `lane`.
  PanelSource lanes_of(const PanelSource& all, std::int64_t lane) const {
    PanelSource panel = all;
    panel.from = static_cast<const std::byte*>(all.from) + lane * all.stride * kernels_.source_bytes;
    panel.lanes = std::min(kernels_.rows, all.lanes - lane);
    return panel;
  }

  std::int64_t panel_bytes(std::int64_t lanes, std::int64_t depth) const {
    constexpr std::int64_t kLine = 64;
    return round_up(round_up(depth, kernels_.depth_step) * lanes * kernels_.panel_bytes, kLine);
  }

  PanelSource source(const Operand& operand, std::int64_t lane, std::int64_t lanes, std::int64_t k,
                     std::int64_t depth) const {
    const std::int64_t at = operand.lanes_together ? k * operand.stride + lane : lane * operand.stride + k;
    return {.from = static_cast<const std::byte*>(operand.from) + at * kernels_.source_bytes,
            .stride = operand.stride,
            .lanes_together = operand.lanes_together,
            .lanes = lanes,
            .depth = depth};
  }

  MemoryRows memory(const PanelSource& source) const {
    const long row = source.lanes_together ? source.lanes : source.depth;
    return {.from = source.from,
            .stride = source.stride * kernels_.source_bytes,
            .bytes = row * kernels_.source_bytes,
            .rows = source.lanes_together ? source.depth : source.lanes};
  }

  const GemmKernels& kernels_;
  const std::int64_t tile_rows_most_;
  bool stream_ = false;  // of the prepared call
  std::vector<Member> members_;
};

}  // namespace

std::unique_ptr<TileEngine> make_packed_engine([[maybe_unused]] Precision precision, [[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  const bool fp32 = precision == Precision::kFloat32;
  if (isa == Isa::kReference) return nullptr;
  if (isa == Isa::kAvx2) return std::make_unique<PackedEngine>(fp32 ? kAvx2GemmKernels : kAvx2Bf16GemmKernels);
  if (fp32) return std::make_unique<PackedEngine>(kAvx512GemmKernels);
  if (isa == Isa::kAmx) return std::make_unique<PackedEngine>(kAmxGemmKernels);
  const bool dot_products = __builtin_cpu_supports("avx512bf16");
  return std::make_unique<PackedEngine>(dot_products ? kAvx512DotGemmKernels : kAvx512Bf16GemmKernels);
#else
  return nullptr;
#endif
}

}  // namespace butterfly
