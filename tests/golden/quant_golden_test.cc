// Quantised blocks against the gguf package of Python: tools/make_quant_golden.py writes the file.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "butterfly/tensor/quantize.h"
#include "butterfly/tensor/sub_blocks.h"
#include "golden_data.h"

namespace butterfly {
namespace {

struct Record {
  DType type = DType::kF32;
  bool encoded = false;  // the bytes were made of the floats, else the floats of the bytes
  std::vector<std::byte> bytes;
  std::vector<float> floats;
};

std::vector<Record> read_records() {
  const std::string file = golden::read_file(golden::committed("quant_types.bin"));
  std::vector<Record> records;
  for (std::size_t at = 0; at < file.size();) {
    const std::string name(file.data() + at, ::strnlen(file.data() + at, 8));
    std::uint32_t head[3];
    std::memcpy(head, file.data() + at + 8, sizeof(head));
    at += 8 + sizeof(head);
    Record record{
        .encoded = head[0] == 1, .bytes = std::vector<std::byte>(head[1]), .floats = std::vector<float>(head[2])};
    const auto type = parse_dtype(name);
    EXPECT_TRUE(type) << name;
    record.type = type.value_or(DType::kF32);
    std::memcpy(record.bytes.data(), file.data() + at, head[1]);
    std::memcpy(record.floats.data(), file.data() + at + head[1], head[2] * sizeof(float));
    at += head[1] + head[2] * sizeof(float);
    records.push_back(std::move(record));
  }
  return records;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(QuantGolden, DecodedBlocksHaveTheBitsOfTheGgufPackage) {
  std::set<DType> seen;
  for (const Record& record : read_records()) {
    if (record.encoded) continue;
    seen.insert(record.type);
    std::vector<float> floats(record.floats.size());
    decode_row(record.type, record.bytes, floats);
    EXPECT_TRUE(same_bits(floats, record.floats)) << to_string(record.type);
  }
  for (const DType type : kAllDTypes) {
    const bool not_of_the_package = block_elements(type) == 1 || type == DType::kInt8;
    EXPECT_TRUE(not_of_the_package || seen.contains(type)) << to_string(type);
  }
}

TEST(QuantGolden, AnyColumnsOfARowDecodeToTheSameBitsInTheirComputingType) {
  for (const Record& record : read_records()) {
    if (record.encoded) continue;
    for (const IndexRange cols : {IndexRange{0, 512}, {32, 512}, {224, 288}, {256, 480}, {480, 512}}) {
      const auto count = static_cast<std::size_t>(cols.size());
      const DType type = computing_type(record.type);
      std::vector<std::byte> bytes(*row_bytes(type, count));
      to_computing_type(record.type, record.bytes, cols, bytes);
      std::vector<float> floats(count);
      decode_row(type, bytes, floats);
      const auto first = record.floats.begin() + cols.begin;
      EXPECT_TRUE(same_bits(floats, {first, first + cols.size()})) << to_string(record.type) << " from " << cols.begin;
    }
  }
}

TEST(QuantGolden, EncodedFloatsHaveTheBytesOfTheGgufPackage) {
  int count = 0;
  for (const Record& record : read_records()) {
    if (!record.encoded) continue;
    ++count;
    std::vector<std::byte> bytes(record.bytes.size());
    encode_row(record.type, record.floats, bytes);
    EXPECT_EQ(bytes, record.bytes) << to_string(record.type);
  }
  EXPECT_EQ(count, 6);
}

}  // namespace
}  // namespace butterfly
