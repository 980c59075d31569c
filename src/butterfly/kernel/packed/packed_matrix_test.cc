// What is packed can be unpacked, bit for bit.
#include "butterfly/kernel/packed/packed_matrix.h"

#include <gtest/gtest.h>

#include "butterfly/kernel/inference/parity/parity_values_test.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

TEST(Packing, UnpackGivesBackWhatWasStored) {
  ThreadTeam team(2);
  const auto bytes = random_matrix(DType::kQ4_0, 19, 64, 12);
  const auto w = PackedMatrix::pack({DType::kQ4_0, 19, 64, bytes}, team);
  ASSERT_TRUE(w);
  std::vector<float> row(64);
  for (int r = 0; r < 19; ++r) {
    w->unpack_row(r, row);
    const auto* blocks = reinterpret_cast<const BlockQ4_0*>(bytes.data()) + r * 2;
    for (int k = 0; k < 64; ++k) {
      const BlockQ4_0& block = blocks[k / 32];
      const int nibble = k % 32 < 16 ? block.quants[k % 16] & 15 : block.quants[k % 16] >> 4;
      EXPECT_EQ(row[static_cast<std::size_t>(k)], half_to_float(block.scale) * static_cast<float>(nibble - 8));
    }
  }
}

TEST(Packing, QuantsThatNoTypeOfFilesGivesAreRefused) {
  ThreadTeam team(2);
  const auto refusal = [&](DType type, int quant) {
    std::vector<std::byte> bytes(3 * *row_bytes(type, 64));
    bytes.back() = static_cast<std::byte>(quant);
    const auto packed = PackedMatrix::pack({.type = type, .rows = 3, .cols = 64, .bytes = bytes}, team);
    return packed ? std::string() : packed.error().message;
  };
  EXPECT_EQ(refusal(DType::kBytes16, -32), "");
  EXPECT_EQ(refusal(DType::kBytes16, -33), "a bytes16 matrix has the quant -33, they are from -32 to 31");
  EXPECT_EQ(refusal(DType::kBytes32Min, 31), "");
  EXPECT_EQ(refusal(DType::kBytes32Min, -1), "a bytes32min matrix has the quant -1, they are from 0 to 31");
}

TEST(Packing, AnyPartUnpacksToTheBytesThatWerePacked) {
  ThreadTeam team(2);
  for (const DType stored_type : kAllDTypes) {
    if (stored_type == DType::kI32) continue;
    const StoredMatrix stored(stored_type, 37, 96, 13);
    const MatrixView whole = stored.view;
    const DType type = whole.type;
    const auto w = PackedMatrix::pack(whole, team);
    ASSERT_TRUE(w);
    for (const IndexRange rows : {IndexRange{0, 37}, {15, 17}, {36, 37}}) {
      for (const IndexRange cols : {IndexRange{0, 96}, {32, 64}, {64, 96}}) {
        const MatrixView part = whole.part(rows, cols);
        const std::uint64_t row = *row_bytes(type, static_cast<std::uint64_t>(cols.size()));
        std::vector<std::byte> out((row + 3) * static_cast<std::size_t>(rows.size()), std::byte{7});
        w->unpack(rows, cols, out, row + 3);
        for (std::size_t r = 0; r < static_cast<std::size_t>(rows.size()); ++r) {
          EXPECT_EQ(std::memcmp(out.data() + r * (row + 3), part.bytes.data() + r * part.stride, row), 0);
          EXPECT_EQ(out[r * (row + 3) + row], std::byte{7}) << "between rows";
        }
      }
    }
  }
}

TEST(Packing, StoredTypesArePackedAsWhatTheyAreComputedAs) {
  ThreadTeam team(2);
  for (const DType type : kAllDTypes) {
    if (type == DType::kI32) continue;
    const auto bytes = random_matrix(type, 19, 512, 14);
    const auto w = PackedMatrix::pack({type, 19, 512, bytes}, team);
    ASSERT_TRUE(w) << to_string(type);
    EXPECT_EQ(w->type(), computing_type(type));
    EXPECT_EQ(w->bytes(), PackedMatrix::packed_bytes(type, 19, 512));
    std::vector<float> expected(512), row(512);
    for (std::size_t r = 0; r < 19; ++r) {
      const std::size_t size = bytes.size() / 19;
      decode_row(type, ByteSpan(bytes).subspan(r * size, size), expected);
      w->unpack_row(static_cast<std::int64_t>(r), row);
      EXPECT_TRUE(same_bits(row, expected)) << to_string(type) << " row " << r;
    }
  }
}

TEST(Packing, SuperBlocksTakeAboutWhatFilesTake) {
  const auto of_file = [](DType type) {
    return static_cast<double>(PackedMatrix::packed_bytes(type, 160, 2048)) /
           static_cast<double>(160 * *row_bytes(type, 2048));
  };
  for (const DType type : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS}) {
    EXPECT_LT(of_file(type), 1.04) << to_string(type);
  }
  for (const DType type : kAllDTypes) {
    if (type == DType::kI32) continue;
    EXPECT_EQ(160 * packed_row_bytes(type, 2048), PackedMatrix::packed_bytes(type, 160, 2048)) << to_string(type);
  }
}

TEST(Packing, SuperBlocksUnpackToWhatTheyAreComputedAs) {
  ThreadTeam team(2);
  for (const DType type : kAllDTypes) {
    if (!has_shared_scales(type)) continue;
    const auto bytes = random_matrix(type, 19, 512, 14);
    const StoredMatrix computed(type, 19, 512, 14);
    const auto w = PackedMatrix::pack({type, 19, 512, bytes}, team);
    ASSERT_TRUE(w);
    const std::uint64_t row = *row_bytes(w->type(), 160);
    std::vector<std::byte> out(row * 19);
    w->unpack({0, 19}, {224, 384}, out, row);
    const MatrixView part = computed.view.part({0, 19}, {224, 384});
    for (std::size_t r = 0; r < 19; ++r) {
      EXPECT_EQ(std::memcmp(out.data() + r * row, part.bytes.data() + r * part.stride, row), 0) << to_string(type);
    }
  }
}

TEST(Packing, RefusesAnInt8RowOfTwoScales) {
  ThreadTeam team(1);
  std::vector<std::byte> bytes = random_matrix(DType::kInt8, 3, 96, 2);
  bytes[2 * 3 * sizeof(BlockQ8_0) + sizeof(BlockQ8_0)] ^= std::byte{1};
  const auto packed = PackedMatrix::pack({DType::kInt8, 3, 96, bytes}, team);
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().message, "row 2 of an int8 matrix has more than one scale");
}

TEST(Packing, RefusesBytesThatDoNotMatchTheShape) {
  ThreadTeam team(1);
  std::vector<std::byte> bytes(100);
  const auto packed = PackedMatrix::pack({DType::kF32, 5, 6, bytes}, team);
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().message, "a f32 matrix of 5 x 6 cannot have 100 bytes");
}

}  // namespace
}  // namespace butterfly
