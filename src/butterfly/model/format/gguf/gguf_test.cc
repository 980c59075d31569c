#include "butterfly/model/format/gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/model/format/gguf/gguf_weights.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

/// Builds GGUF images field by field, wrong ones too.
class Image {
 public:
  Image(std::uint64_t tensors, std::uint64_t entries) {
    bytes = "GGUF";
    put(std::uint32_t{3}).put(tensors).put(entries);
  }
  template <typename T>
  Image& put(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Image& text(std::string_view value) {
    put(static_cast<std::uint64_t>(value.size()));
    bytes += value;
    return *this;
  }
  Image& key(std::string_view name, GgufType type) { return text(name).put(static_cast<std::uint32_t>(type)); }
  Image& tensor(std::string_view name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
                std::uint64_t offset) {
    text(name).put(static_cast<std::uint32_t>(shape.size()));
    for (std::uint64_t extent : shape) put(extent);
    return put(type).put(offset);
  }
  Image& data(std::size_t count) {
    bytes.resize((bytes.size() + 31) / 32 * 32 + count, '\1');
    return *this;
  }
  std::string error() const {
    const auto file = GgufFile::parse(as_bytes(bytes), "image");
    return file ? "" : file.error().message;
  }
  std::string bytes;
};

TEST(Gguf, ReadsEveryTypeOfMetadata) {
  Image image(0, 8);
  image.key("u8", GgufType::kUint8).put(std::uint8_t{200});
  image.key("i16", GgufType::kInt16).put(std::int16_t{-5});
  image.key("u64", GgufType::kUint64).put(std::uint64_t{1} << 40);
  image.key("f32", GgufType::kFloat32).put(0.5f);
  image.key("f64", GgufType::kFloat64).put(0.25);
  image.key("yes", GgufType::kBool).put(std::uint8_t{1});
  image.key("text", GgufType::kString).text("hello");
  image.key("list", GgufType::kArray)
      .put(static_cast<std::uint32_t>(GgufType::kString))
      .put(std::uint64_t{2})
      .text("x")
      .text("");
  const auto file = GgufFile::parse(as_bytes(image.bytes), "image");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->get_int("u8").value(), 200);
  EXPECT_EQ(file->get_int("i16").value(), -5);
  EXPECT_EQ(file->get_int("u64").value(), std::int64_t{1} << 40);
  EXPECT_EQ(file->get_float("f32").value(), 0.5);
  EXPECT_EQ(file->get_float("f64").value(), 0.25);
  EXPECT_EQ(file->get_bool("yes").value(), true);
  EXPECT_EQ(file->get_string("text").value(), "hello");
  EXPECT_EQ(file->get_strings("list").value(), (std::vector<std::string_view>{"x", ""}));
  EXPECT_FALSE(file->get_int("absent").value());
  EXPECT_THAT(file->get_int("text").error().message, HasSubstr("text is a string, expected an integer"));
  EXPECT_THAT(file->get_string("u8").error().message, HasSubstr("u8 is an integer, expected a string"));
  EXPECT_THAT(file->get_ints("list").error().message, HasSubstr("expected an array of integers"));
}

TEST(Gguf, NamesWhatIsWrongWithTheHeader) {
  EXPECT_THAT(Image(0, 0).error(), "");
  Image other(0, 0);
  other.bytes.replace(0, 4, "GGML");
  EXPECT_THAT(other.error(), HasSubstr("is no GGUF file"));
  for (std::uint32_t version : {0u, 1u, 4u, 0x03000000u}) {
    Image image(0, 0);
    image.bytes.replace(4, 4, std::string(reinterpret_cast<const char*>(&version), 4));
    EXPECT_THAT(image.error(), HasSubstr("supported are little-endian versions 2 and 3")) << version;
  }
  EXPECT_THAT(Image(~0ull, 0).error(), HasSubstr("claims 18446744073709551615 tensors"));
  EXPECT_THAT(Image(0, ~0ull).error(), HasSubstr("claims 18446744073709551615 metadata entries"));
}

TEST(Gguf, NamesWhatIsWrongWithMetadata) {
  EXPECT_THAT(Image(0, 1).put(~0ull).put(0).put(0).error(), HasSubstr("bytes are left"));
  EXPECT_THAT(Image(0, 1).key("k", static_cast<GgufType>(13)).put(0).error(), HasSubstr("type 13"));
  EXPECT_THAT(Image(0, 1).key("", GgufType::kBool).put('\1').put(0).error(), HasSubstr("0 bytes long"));
  const auto array = [](GgufType element, std::uint64_t count) {
    return Image(0, 1).key("k", GgufType::kArray).put(static_cast<std::uint32_t>(element)).put(count);
  };
  EXPECT_THAT(array(GgufType::kUint64, 1ull << 61).error(), HasSubstr("2305843009213693952 elements"));
  EXPECT_THAT(array(GgufType::kString, 1ull << 61).error(), HasSubstr("2305843009213693952 array elements"));
  Image nested = array(GgufType::kArray, 1);
  for (int depth = 0; depth < 100; ++depth)
    nested.put(static_cast<std::uint32_t>(GgufType::kArray)).put(std::uint64_t{1});
  EXPECT_THAT(nested.error(), HasSubstr("nests arrays deeper"));
  Image twice(0, 2);
  twice.key("k", GgufType::kBool).put('\0').key("k", GgufType::kBool).put('\0');
  EXPECT_THAT(twice.error(), HasSubstr("has the metadata key k twice"));
  for (std::uint32_t alignment : {0u, 1u, 24u, 1u << 31}) {
    EXPECT_THAT(Image(0, 1).key("general.alignment", GgufType::kUint32).put(alignment).error(),
                HasSubstr("power of two"));
  }
}

TEST(Gguf, NamesWhatIsWrongWithTensors) {
  EXPECT_THAT(Image(1, 0).tensor("t", {8}, 0, 0).data(32).error(), "");
  EXPECT_THAT(Image(1, 0).tensor("t", {8, 1, 1, 1, 1}, 0, 0).data(32).error(), HasSubstr("t has 5 dimensions"));
  EXPECT_THAT(Image(1, 0).tensor("t", {8, 0}, 0, 0).data(32).error(), HasSubstr("dimension 1 of t is 0"));
  EXPECT_THAT(Image(1, 0).tensor("t", {1ull << 63}, 0, 0).data(32).error(), HasSubstr("dimension 0 of t"));
  EXPECT_THAT(Image(1, 0).tensor("t", {1ull << 40, 1ull << 40}, 0, 0).data(32).error(), HasSubstr("overflows"));
  EXPECT_THAT(Image(1, 0).tensor("t", {172, 4}, 8, 0).data(736).error(),
              HasSubstr("rows of t have 172 elements, Q8_0 needs a multiple of 32"));
  EXPECT_THAT(Image(1, 0).tensor("t", {16}, 0, 0).data(32).error(), HasSubstr("t needs 64 bytes"));
  EXPECT_THAT(Image(1, 0).tensor("t", {8}, 0, 32).data(64).error(), HasSubstr("begin at 32, expected 0"));
  EXPECT_THAT(Image(1, 0).tensor("t", {8}, 0, ~0ull - 31).data(64).error(), HasSubstr("expected 0"));
  Image twice(2, 0);
  twice.tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32).data(64);
  EXPECT_THAT(twice.error(), HasSubstr("has the tensor t twice"));
  Image overlap(2, 0);
  overlap.tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 32).data(64);
  EXPECT_THAT(overlap.error(), HasSubstr("the data of b begin at 32, expected 64"));
  // F32 data under the label F16: half of the bytes belong to nobody.
  Image mislabelled(1, 0);
  mislabelled.tensor("t", {16}, 1, 0).data(64);
  EXPECT_THAT(mislabelled.error(), HasSubstr("has 64 bytes of tensor data, its types and shapes say 32"));
}

TEST(Gguf, HostileNamesDoNotReachMessages) {
  EXPECT_THAT(Image(1, 0).tensor("\x1b[31m\n", {16}, 0, 0).data(32).error(), HasSubstr("?[31m? needs"));
  EXPECT_EQ(printable(std::string(200, 'x')).size(), 83u);
}

/// Whatever opens must be readable to the last byte.
void read_everything(const Checkpoint& checkpoint) {
  unsigned sum = 0;
  for (const WeightInfo& info : checkpoint.weights->list()) {
    const auto view = checkpoint.weights->find(info.name);
    ASSERT_TRUE(view) << view.error().message;
    sum += static_cast<unsigned>(view->bytes.front()) + static_cast<unsigned>(view->bytes.back());
  }
  EXPECT_GE(sum, 0u);
}

/// Opens a copy that ends where its memory ends, so that a sanitizer sees every read beyond it.
Result<Checkpoint> open_exact(const std::string& bytes, std::vector<std::byte>& memory) {
  memory.assign(as_bytes(bytes).begin(), as_bytes(bytes).end());
  return open_gguf_bytes(memory, "file", {});
}

TEST(GgufHostile, EveryTruncationIsRefused) {
  for (const char* architecture : {"llama", "gpt2"}) {
    const std::string valid = small_gguf(architecture, DType::kQ8_0);
    std::vector<std::byte> memory;
    ASSERT_TRUE(open_exact(valid, memory));
    // Among the weights one byte is as good as another.
    const std::size_t weights = valid.rfind(".weight") + 64;
    const std::size_t among_weights = kSanitized ? 61 : 1;
    // The last tensor's padding may be missing.
    for (std::size_t length = 0; length + 32 < valid.size(); length += length < weights ? 1 : among_weights) {
      const auto opened = open_exact(valid.substr(0, length), memory);
      ASSERT_FALSE(opened) << length;
      ASSERT_EQ(opened.error().code, ErrorCode::kBadData) << opened.error().message;
      ASSERT_THAT(opened.error().message, HasSubstr("file: "));
    }
  }
}

TEST(GgufHostile, EveryFieldAtExtremeValuesIsRefusedOrReadable) {
  const std::string valid = small_gguf("llama", DType::kQ4_0);
  const std::size_t header = valid.find("blk.1.ffn_down.weight") + 64;
  std::vector<std::byte> memory;
  int refused = 0;
  constexpr std::size_t kStride = kSanitized ? 7 : 1;
  std::size_t turn = 0;
  for (std::uint64_t value :
       {0ull, 1ull, 0xffull, 0x7fffffffull, 0xffffffffull, 1ull << 32, 1ull << 62, 1ull << 63, ~0ull}) {
    for (std::size_t width : {1u, 4u, 8u}) {
      for (std::size_t at = turn++ % kStride; at + width <= header; at += kStride) {
        std::string damaged = valid;
        damaged.replace(at, width, std::string(reinterpret_cast<const char*>(&value), width));
        const auto opened = open_exact(damaged, memory);
        if (opened) {
          read_everything(*opened);
        } else {
          ASSERT_FALSE(opened.error().message.empty());
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(refused, 3000 / static_cast<int>(kStride));
}

TEST(GgufHostile, FilesThatLoadersMustRejectAreRejected) {
  BF_NEEDS_DATA("negative");
  const auto unfinished = open_checkpoint(data_path("negative/stories260K-Q4_0_unfinished.gguf"));
  ASSERT_FALSE(unfinished);
  EXPECT_THAT(unfinished.error().message, HasSubstr("is no GGUF file"));
  const auto rows = open_checkpoint(data_path("negative/stories260K-Q8_0_ik_row172.gguf"));
  ASSERT_FALSE(rows);
  EXPECT_THAT(rows.error().message, HasSubstr("have 172 elements, Q8_0 needs a multiple of 32"));
}

}  // namespace
}  // namespace butterfly
