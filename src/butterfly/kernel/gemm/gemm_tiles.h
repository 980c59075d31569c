// The half of a Gemm that every engine shares: C is cut into tiles, the members of the team take them from a common
// counter, and no tile's reduced dimension is cut. Engines compute one tile, on one thread, and say how to cut where no
// bit depends on it.
#pragma once

#include <cstdint>
#include <memory>

#include "butterfly/kernel/gemm/gemm.h"

namespace butterfly {

/// Tiles of rows x cols of C, the last ones smaller.
struct TileGrid {
  std::int64_t rows = 0, cols = 0;  // of a tile
  std::int64_t row_tiles = 0, col_tiles = 0;
};
/// m and n at least 1. Tiles are large enough to keep the processor busy and, where the matrix is, many enough to
/// share. The number of threads does not show: an engine's sums may depend on the tile.
TileGrid plan_tiles(std::int64_t m, std::int64_t n);

/// Computes single tiles, each on the calling thread alone.
class TileEngine {
 public:
  virtual ~TileEngine() = default;
  virtual std::string_view name() const = 0;
  /// How to cut C[m, n] for `members` threads. An engine may ask how many there are only where no bit of C depends on
  /// where tiles end.
  virtual TileGrid plan(std::int64_t m, std::int64_t n, int /*members*/) const { return plan_tiles(m, n); }
  /// Everything that tile() will need for matmuls like `call` cut like `grid` by `members` threads. Not concurrent.
  /// Errors: kNoMemory.
  virtual Status prepare(const GemmCall& call, const TileGrid& grid, int members) = 0;
  /// The matmul `tile`, a part of the prepared call; `member` < members is the caller's number.
  virtual void tile(const GemmCall& tile, int member) = 0;
};

/// Float arithmetic in portable loops, for any operands.
std::unique_ptr<TileEngine> make_portable_engine(Precision precision);

/// Our own kernels (gemm_kernels.h). Null where `isa` and this CPU have none for `precision`.
std::unique_ptr<TileEngine> make_packed_engine(Precision precision, Isa isa);

/// `team` is borrowed.
std::unique_ptr<Gemm> make_tiled_gemm(Precision precision, std::unique_ptr<TileEngine> engine, ThreadTeam& team);

}  // namespace butterfly
