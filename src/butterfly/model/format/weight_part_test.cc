// Parts of weights: what a member of a tensor group takes out of a file, whatever the order the file has them in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "butterfly/model/core/shard.h"
#include "butterfly/model/format/export_model.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

/// Row after row, wherever the rows lie.
std::string content(const WeightView& view) {
  const std::uint64_t row = *row_bytes(view.type, static_cast<std::uint64_t>(view.cols));
  const std::uint64_t step = view.stride == 0 ? row : view.stride;
  std::string all;
  for (std::uint64_t r = 0; r < static_cast<std::uint64_t>(view.rows); ++r)
    all += as_text(view.bytes.subspan(r * step, row));
  return all;
}

/// Beginning, middle, end and all of `size`, between blocks.
std::vector<IndexRange> ranges(std::int64_t size, std::int64_t block) {
  const std::int64_t blocks = size / block;
  std::vector<IndexRange> some{{0, size}};
  if (blocks < 2) return some;
  some.push_back({0, block});
  some.push_back({(blocks - 1) * block, size});
  some.push_back({blocks / 2 * block, size});
  return some;
}

void expect_parts(const WeightSource& source) {
  for (const WeightInfo& info : source.list()) {
    const auto whole = source.find(info.name);
    ASSERT_TRUE(whole) << whole.error().message;
    for (const IndexRange& rows : ranges(whole->rows, 1)) {
      for (const IndexRange& cols : ranges(whole->cols, block_elements(whole->type))) {
        const auto part = source.find_part(info.name, {whole->rows, whole->cols, rows, cols});
        ASSERT_TRUE(part) << part.error().message;
        EXPECT_EQ(part->rows, rows.size());
        EXPECT_EQ(part->cols, cols.size());
        EXPECT_TRUE(content(*part) == content(whole->cut(rows, cols)))
            << info.name << " rows " << rows.begin << " to " << rows.end << " cols " << cols.begin << " to "
            << cols.end;
      }
    }
  }
}

TEST(WeightParts, OfEverySourceAreTheRowsAndColumnsOfTheWhole) {
  for (const char* architecture : {"llama", "qwen2", "gpt2"}) {
    for (const DType type : {DType::kF32, DType::kF16}) {
      SCOPED_TRACE(std::string(architecture) + " " + std::string(to_string(type)));
      const TempDir dir;
      const Checkpoint original = small_checkpoint(architecture, type);
      expect_parts(*original.weights);
      for (const char* name : {"model", "model.gguf"}) {  // a directory's are permuted, transposed, side by side
        ASSERT_TRUE(export_model(original, dir / name, {}));
        const auto read = open_checkpoint(dir / name, {.vocabulary_required = false});
        ASSERT_TRUE(read) << read.error().message;
        expect_parts(*read->weights);
      }
    }
  }
}

/// Puts a space behind the header, so that no tensor of more than a byte an element is aligned.
void misalign(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  std::string bytes = content.str();
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes.insert(sizeof(header) + header, " ");
  ++header;
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(WeightParts, OfAFileThatDoesNotAlignItsTensorsAreTheSame) {
  for (const char* architecture : {"llama", "gpt2"}) {
    const TempDir dir;
    const Checkpoint original = small_checkpoint(architecture);
    ASSERT_TRUE(export_model(original, dir / "model", {}));
    misalign(dir / "model/model.safetensors");
    const auto read = open_checkpoint(dir / "model", {.vocabulary_required = false});
    ASSERT_TRUE(read) << read.error().message;
    expect_parts(*read->weights);
  }
}

TEST(WeightParts, OfQuantisedMatricesAreWholeBlocks) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    const TempDir dir;
    const Checkpoint original = small_checkpoint("llama", type);
    expect_parts(*original.weights);
    ASSERT_TRUE(export_model(original, dir / "model.gguf", {}));
    const auto read = open_checkpoint(dir / "model.gguf");
    ASSERT_TRUE(read) << read.error().message;
    expect_parts(*read->weights);
    for (const IndexRange& cols : {IndexRange{16, 48}, {0, 48}, {16, 64}}) {
      const auto part = read->weights->find_part("blk.0.ffn_down.weight", {32, 64, {0, 32}, cols});
      ASSERT_FALSE(part);
      EXPECT_EQ(part.error().code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(part.error().message,
                  HasSubstr(fmt::format("blk.0.ffn_down.weight has blocks of 32 columns, {} to {} were asked for",
                                        cols.begin, cols.end)));
    }
  }
}

TEST(WeightParts, ThatDoNotExistAreRefusedNamingBothRanges) {
  const TempDir dir;
  const Checkpoint original = small_checkpoint("llama");
  ASSERT_TRUE(export_model(original, dir / "model", {}) && export_model(original, dir / "model.gguf", {}));
  const Checkpoint directory = open_checkpoint(dir / "model", {.vocabulary_required = false}).value();
  const Checkpoint file = open_checkpoint(dir / "model.gguf").value();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const Checkpoint* checkpoint : {&original, &directory, &file}) {
    const auto ask = [&](const WeightPart& part) {
      const auto found = checkpoint->weights->find_part("blk.1.ffn_up.weight", part);
      return found ? "nothing is wrong" : found.error().message;
    };
    EXPECT_THAT(ask({64, 32, {60, 65}, {0, 32}}),
                HasSubstr("blk.1.ffn_up.weight has rows 0 to 64, 60 to 65 were asked"));
    EXPECT_THAT(ask({64, 32, {-1, 4}, {0, 32}}), HasSubstr("has rows 0 to 64, -1 to 4 were asked for"));
    EXPECT_THAT(ask({64, 32, {4, 4}, {0, 32}}), HasSubstr("has rows 0 to 64, 4 to 4 were asked for"));
    EXPECT_THAT(ask({64, 32, {0, 64}, {0, kMost}}), HasSubstr("has columns 0 to 32, 0 to 9223372036854775807 were"));
    EXPECT_THAT(ask({64, 32, {0, 64}, {-kMost, kMost}}), HasSubstr("has columns 0 to 32, -9223372036854775807 to"));
    EXPECT_THAT(ask({kMost, 32, {64, 70}, {0, 32}}), HasSubstr("is 64 x 32, the model's configuration says 92233"));
  }
}

/// Elements of the matrices that a member is to have, one of each divided dimension times the other.
std::int64_t matrix_elements(const ModelConfig& config, const Shard& shard) {
  const std::int64_t columns = 2 * shard.q_dim() + 2 * shard.kv_dim() + 3 * shard.ff.size();
  return config.model_dim * (config.layers * columns + 2 * shard.vocab.size());
}

TEST(WeightParts, OfAllMembersCoverEachMatrixAndNobodyHasMoreThanItsShare) {
  ModelConfig config = *named_config("llama-1.1b");
  const WeightRange range{.last_layer = config.layers, .embedding = true, .head = true};
  for (const std::vector<int>& borders :
       std::vector<std::vector<int>>{{0, 32}, {0, 16, 32}, {0, 5, 12, 32}, {0, 7, 12, 21, 32}}) {
    std::map<std::string, std::int64_t> covered;
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      const SliceRange slices{borders[i], borders[i + 1]};
      std::int64_t elements = 0;
      for (const ExpectedPart& expected : expected_parts(config, range, slices)) {
        if (expected.whole.rows == 1) continue;
        const std::int64_t size = expected.part.of_rows.size() * expected.part.of_cols.size();
        elements += size;
        covered[expected.whole.name] += size;
      }
      EXPECT_EQ(elements, matrix_elements(config, shard_of(config, slices)));
    }
    for (const WeightInfo& whole : expected_weights(config, range)) {
      if (whole.rows == 1) continue;
      // Neighbours within a group of heads both have its keys and values.
      const bool shared =
          whole.name.find("attn_k") != std::string::npos || whole.name.find("attn_v") != std::string::npos;
      if (shared) {
        EXPECT_GE(covered[whole.name], whole.rows * whole.cols) << whole.name;
      } else {
        EXPECT_EQ(covered[whole.name], whole.rows * whole.cols) << whole.name;
      }
    }
  }
}

}  // namespace
}  // namespace butterfly
