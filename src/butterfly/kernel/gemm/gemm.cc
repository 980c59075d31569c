#include "butterfly/kernel/gemm/gemm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

#include "butterfly/base/check.h"
#include "butterfly/kernel/gemm/gemm_tiles.h"

namespace butterfly {
namespace {

constexpr std::array kPrecisions{Precision::kFloat32, Precision::kBfloat16};

// Twice as many tiles as a team of four has members, so that the last ones do not leave half of it idle.
constexpr std::int64_t kTilesWanted = 8;
constexpr std::int64_t kTileRowsMost = 512;
constexpr std::int64_t kTileColsMost = 1024;
constexpr std::int64_t kTileLeast = 128;
// Whole vectors and whole AMX tiles.
constexpr std::int64_t kTileAlign = 64;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Pieces of one size, but for the last, that are at most `largest`.
std::int64_t even_pieces(std::int64_t size, std::int64_t largest) {
  return divide_up(divide_up(size, divide_up(size, largest)), kTileAlign) * kTileAlign;
}

class TiledGemm final : public Gemm {
 public:
  TiledGemm(Precision precision, std::unique_ptr<TileEngine> engine, ThreadTeam& team)
      : precision_(precision), engine_(std::move(engine)), team_(team) {}

  Precision precision() const override { return precision_; }
  std::string_view name() const override { return engine_->name(); }

  Status run(const GemmCall& call) override {
    check(call);
    if (call.m == 0 || call.n == 0) return {};
    if (call.k == 0) {
      add_nothing(call);
      return {};
    }
    const TileGrid grid = engine_->plan(call.m, call.n, team_.size());
    BF_TRY(engine_->prepare(call, grid, team_.size()));
    std::atomic<std::int64_t> next{0};
    const std::int64_t tiles = grid.row_tiles * grid.col_tiles;
    team_.run([&](int member) {
      for (std::int64_t i = next.fetch_add(1); i < tiles; i = next.fetch_add(1)) {
        engine_->tile(part(call, grid, i), member);
      }
    });
    return {};
  }

 private:
  static void check(const GemmCall& call) {
    BF_CHECK(call.m >= 0 && call.n >= 0 && call.k >= 0, "a matmul has no negative sizes");
    BF_CHECK(call.a_stride >= (call.a_transposed == Transpose::kYes ? call.m : call.k), "rows of A overlap");
    BF_CHECK(call.b_stride >= (call.b_transposed == Transpose::kYes ? call.k : call.n), "rows of B overlap");
    BF_CHECK(call.c_stride >= call.n, "rows of C overlap");
  }

  /// A matmul over nothing: C (+)= bias.
  static void add_nothing(const GemmCall& call) {
    for (std::int64_t i = 0; i < call.m; ++i) {
      float* row = call.c + i * call.c_stride;
      if (call.accumulate == Accumulate::kNo) std::fill_n(row, call.n, 0.0f);
      for (std::int64_t j = 0; call.bias != nullptr && j < call.n; ++j) row[j] += call.bias[j];
    }
  }

  const void* element(const void* base, std::int64_t index) const {
    return static_cast<const std::byte*>(base) + index * (precision_ == Precision::kFloat32 ? 4 : 2);
  }

  GemmCall part(const GemmCall& call, const TileGrid& grid, std::int64_t index) const {
    // Neighbours share a part of B, which is the larger one where there are many tiles.
    const std::int64_t row = index % grid.row_tiles * grid.rows;
    const std::int64_t col = index / grid.row_tiles * grid.cols;
    GemmCall tile = call;
    tile.m = std::min(grid.rows, call.m - row);
    tile.n = std::min(grid.cols, call.n - col);
    tile.a = element(call.a, call.a_transposed == Transpose::kYes ? row : row * call.a_stride);
    tile.b = element(call.b, call.b_transposed == Transpose::kYes ? col * call.b_stride : col);
    tile.c = call.c + row * call.c_stride + col;
    if (call.bias != nullptr) tile.bias = call.bias + col;
    return tile;
  }

  Precision precision_;
  std::unique_ptr<TileEngine> engine_;
  ThreadTeam& team_;
};

}  // namespace

std::string_view to_string(Precision precision) {
  return precision == Precision::kFloat32 ? "fp32" : "bf16";
}

Result<Precision> parse_precision(std::string_view name) {
  for (const Precision precision : kPrecisions) {
    if (name == to_string(precision)) return precision;
  }
  return make_error(ErrorCode::kInvalidArgument, "unknown precision '{}' (known: fp32, bf16)", name);
}

TileGrid plan_tiles(std::int64_t m, std::int64_t n) {
  std::int64_t rows = std::min(m, even_pieces(m, kTileRowsMost));
  std::int64_t cols = std::min(n, even_pieces(n, kTileColsMost));
  while (divide_up(m, rows) * divide_up(n, cols) < kTilesWanted) {
    const bool rows_first = cols < 2 * kTileLeast || (2 * rows > cols && rows >= 2 * kTileLeast);
    std::int64_t& cut = rows_first ? rows : cols;
    if (cut < 2 * kTileLeast) break;
    cut = even_pieces(cut, divide_up(cut, 2));
  }
  return {rows, cols, divide_up(m, rows), divide_up(n, cols)};
}

std::unique_ptr<Gemm> make_tiled_gemm(Precision precision, std::unique_ptr<TileEngine> engine, ThreadTeam& team) {
  return std::make_unique<TiledGemm>(precision, std::move(engine), team);
}

std::unique_ptr<Gemm> make_gemm(Precision precision, Isa isa, ThreadTeam& team) {
  if (auto own = make_packed_engine(precision, isa)) return make_tiled_gemm(precision, std::move(own), team);
  return make_tiled_gemm(precision, make_portable_engine(precision), team);
}

}  // namespace butterfly
