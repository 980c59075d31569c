// Compiled with AMX's tiles and int8: everything but the table is static.
#if defined(__x86_64__)
#include <immintrin.h>

#include "butterfly/machine/peak_loops.h"

namespace butterfly {
namespace {

constexpr int kTiles = 4;  // sums that do not wait for one another

struct TileConfig {
  unsigned char palette = 1;
  unsigned char start_row = 0;
  unsigned char reserved[14] = {};
  unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64};
  unsigned char rows[16] = {16, 16, 16, 16, 16, 16};
};

int dot_bytes(long iterations, int seed) {
  const TileConfig config;
  alignas(64) int numbers[16 * 16];
  for (int& number : numbers) number = seed;
  asm volatile("" ::: "memory");
  _tile_loadconfig(&config);
  _tile_loadd(4, numbers, 64);
  _tile_loadd(5, numbers, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (long n = 0; n < iterations; ++n) {
    _tile_dpbssd(0, 4, 5);
    _tile_dpbssd(1, 4, 5);
    _tile_dpbssd(2, 4, 5);
    _tile_dpbssd(3, 4, 5);
  }
  _tile_stored(3, numbers, 64);
  _tile_release();
  return numbers[0];
}

}  // namespace

const PeakLoops& peak_loops_amx() {
  static const PeakLoops loops = [] {
    PeakLoops table = peak_loops_avx512();
    table.dot_bytes = dot_bytes;
    table.byte_ops_per_iteration = 2.0 * 16 * 16 * 64 * kTiles;
    return table;
  }();
  return loops;
}

}  // namespace butterfly
#endif
