#include "butterfly/model/format/safetensors/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace butterfly {
namespace {

using ::testing::HasSubstr;

std::string image(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data_bytes, '\1');
}

/// Parses a copy that ends where its memory ends.
Result<SafetensorsFile> parse(const std::string& bytes, std::vector<std::byte>& memory) {
  memory.assign(as_bytes(bytes).begin(), as_bytes(bytes).end());
  return SafetensorsFile::parse(memory, "file");
}

std::string error_of(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> memory;
  const auto file = parse(image(header, data_bytes), memory);
  return file ? "" : file.error().message;
}

const char* const kValid =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

TEST(Safetensors, ReadsShapesTypesAndBytes) {
  std::vector<std::byte> memory;
  const auto file = parse(image(kValid, 32), memory);
  ASSERT_TRUE(file) << file.error().message;
  const SafetensorsEntry& a = file->entries().at("a");
  EXPECT_EQ(a.type, DType::kF32);
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(a.bytes.size(), 24u);
  EXPECT_EQ(file->entries().at("b").bytes.data(), a.bytes.data() + 24);
  EXPECT_EQ(file->entries().size(), 2u);
}

TEST(Safetensors, NamesWhatIsWrong) {
  const auto entry = [](const char* fields) { return std::string(R"({"a":{)") + fields + "}}"; };
  EXPECT_THAT(error_of("[]", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(error_of(R"({"a":)", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(error_of(std::string(100000, '['), 0), HasSubstr("no JSON object"));
  EXPECT_THAT(error_of(R"({"a":1})", 0), HasSubstr("a is number, expected an object"));
  EXPECT_THAT(error_of(entry(R"("dtype":"F32","shape":[1])"), 4), HasSubstr("lacks data_offsets"));
  EXPECT_THAT(error_of(entry(R"("shape":[1],"data_offsets":[0,4])"), 4), HasSubstr("lacks dtype"));
  EXPECT_THAT(error_of(entry(R"("dtype":"F32","data_offsets":[0,4])"), 4), HasSubstr("lacks shape"));
  EXPECT_THAT(error_of(entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4),
              HasSubstr("expected an integer of at least 0"));
  EXPECT_THAT(error_of(entry(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])"), 4),
              HasSubstr("expected an integer of at least 0"));
  EXPECT_THAT(error_of(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4),
              HasSubstr("has 4 bytes of data, its shape of F32 takes 8"));
  EXPECT_THAT(error_of(entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
              HasSubstr("overflows"));
  EXPECT_THAT(error_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4),
              HasSubstr("lies at bytes 4 to 0"));
  EXPECT_THAT(error_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615])"), 4),
              HasSubstr("the file has 4"));
  EXPECT_THAT(error_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8),
              HasSubstr("begin at 4, where the tensor before ends at 0"));
  EXPECT_THAT(error_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 8),
              HasSubstr("has 8 bytes of data, its header describes 4"));
  const std::string same = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(error_of("{" + same + "," + same + "}", 4), HasSubstr("has the tensor a twice"));
  EXPECT_THAT(error_of("{" + same + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
              HasSubstr("begin at 0, where the tensor before ends at 4"));
}

TEST(Safetensors, EveryTruncationAndEveryHeaderLengthIsRefused) {
  const std::string valid = image(kValid, 32);
  std::vector<std::byte> memory;
  for (std::size_t length = 0; length < valid.size(); ++length)
    EXPECT_FALSE(parse(valid.substr(0, length), memory)) << length;
  for (std::uint64_t claimed : {0ull, 1ull, valid.size() - 8ull, valid.size() - 7ull, 1ull << 32, 1ull << 63, ~0ull}) {
    std::string damaged = valid;
    damaged.replace(0, 8, std::string(reinterpret_cast<const char*>(&claimed), 8));
    EXPECT_FALSE(parse(damaged, memory)) << claimed;
  }
}

TEST(Safetensors, EveryDamagedByteIsRefusedOrReadable) {
  const std::string valid = image(kValid, 32);
  std::vector<std::byte> memory;
  for (std::size_t at = 0; at + 32 < valid.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string damaged = valid;
      damaged[at] = static_cast<char>(value);
      const auto file = parse(damaged, memory);
      if (!file) continue;
      for (const auto& [name, entry] : file->entries()) {
        const std::vector<std::byte> read(entry.bytes.begin(), entry.bytes.end());
        EXPECT_EQ(read.size(), entry.bytes.size());
      }
    }
  }
}

}  // namespace
}  // namespace butterfly
