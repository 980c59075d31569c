// Where the parts of attention's scratch lie. A plain header: per-ISA files include it.
#pragma once

namespace butterfly {

/// Queries, and keys, that are taken at a time.
inline constexpr long kAttentionTile = 64;
/// Floats that a packed row is padded to: the widest vector.
inline constexpr long kAttentionWidth = 16;
inline constexpr int kAttentionTiles = 7;

namespace {

constexpr long round_to(long n, long multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Every part begins at a multiple of 64 bytes.
struct AttentionScratch {
  AttentionScratch(float* base, long seq, long head_dim) : width(round_to(head_dim, kAttentionWidth)) {
    const auto take = [&base](long floats) {
      float* part = base;
      base += floats;
      return part;
    };
    const long rows_all = round_to(seq, kAttentionTile);
    rows = take(rows_all * width);
    maximum = take(rows_all);
    sum = take(rows_all);
    for (float*& tile : tiles) tile = take(kAttentionTile * width);
    scores = take(kAttentionTile * kAttentionTile);
    slopes = take(kAttentionTile * kAttentionTile);
  }
  static constexpr long floats(long seq, long head_dim) {
    const long width = round_to(head_dim, kAttentionWidth);
    return round_to(seq, kAttentionTile) * (width + 2) +
           kAttentionTile * (kAttentionTiles * width + 2 * kAttentionTile);
  }

  long width;
  float* rows = nullptr;               // [seq, width]: of the output, or of the gradient of the queries
  float* maximum = nullptr;            // [seq]
  float* sum = nullptr;                // [seq]
  float* tiles[kAttentionTiles] = {};  // [kAttentionTile, width] each, or transposed
  float* scores = nullptr;             // [kAttentionTile, kAttentionTile]
  float* slopes = nullptr;             // the same
};

}  // namespace
}  // namespace butterfly
