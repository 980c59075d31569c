#include "butterfly/model/packed/packed_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "butterfly/base/read_file.h"
#include "butterfly/base/test_folder_test.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/files/file_stamp.h"
#include "butterfly/model/inference/block.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

class PackedCacheTest : public ::testing::TestWithParam<DType> {
 protected:
  static ModelConfig config(DType type) {
    ModelConfig small = *named_config("llama-1.1b");
    small.layers = 2;
    small.model_dim = 512;
    small.heads = 8;
    small.kv_heads = 4;
    small.head_dim = 64;
    small.ff_dim = 512;
    small.vocab = 64;
    small.rope.dim = 64;
    small.weight_type = type;
    return small;
  }

  Result<Block> load(PackedCache& cache, const HeldSlices& slices = {0, kReductionSlices}) {
    const auto source = [&]() -> Result<std::shared_ptr<const WeightSource>> {
      ++packed;
      return checkpoint.weights;
    };
    return cache.load("block", team, source, [&](const WeightSource& weights) {
      return Block::load(checkpoint.config, 1, weights, team, slices);
    });
  }

  std::string only_file() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
      if (entry.path().extension() == ".packed") found.push_back(entry.path().string());
    }
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? std::string() : found.front();
  }

  static void flip_byte(const std::string& path, std::streamoff at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char flipped = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(flipped);
  }

  PackedCache cache_of(const std::string& identity) const {
    PackedCache cache(folder.path());
    cache.set_model(identity);
    return cache;
  }

  static void expect_same(const Block& a, const Block& b) {
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
      const ByteSpan one = a.matrix(name)->packed(), other = b.matrix(name)->packed();
      EXPECT_TRUE(std::ranges::equal(one, other)) << name;
      EXPECT_NE(one.data(), other.data());
    }
  }

  const TestFolder folder;
  const Checkpoint checkpoint = *random_checkpoint(config(GetParam()), {.seed = 5});
  ThreadTeam team{2};
  int packed = 0;  // times that the source was asked for
};

// Fails when a part is packed again though it is there, or when a byte of it differs.
TEST_P(PackedCacheTest, TheNextStartMapsWhatThisOnePacked) {
  PackedCache first = cache_of("model"), second = cache_of("model");
  const Block own = load(first).value();
  const Block mapped = load(second).value();
  EXPECT_EQ(packed, 1);
  expect_same(own, mapped);
}

INSTANTIATE_TEST_SUITE_P(Types, PackedCacheTest,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ5_1,
                                           DType::kQ4_K, DType::kQ6_K, DType::kIQ4_XS),
                         [](const auto& type) { return std::string(to_string(type.param)); });

class PackedFileTest : public PackedCacheTest {};
INSTANTIATE_TEST_SUITE_P(One, PackedFileTest, ::testing::Values(DType::kQ4_0));

// Fails when weights of one model, or some slices of it, are taken for those of another.
TEST_P(PackedFileTest, AnotherModelAndOtherSlicesArePackedAnew) {
  PackedCache cache = cache_of("model"), other = cache_of("other");
  ASSERT_TRUE(load(cache));
  ASSERT_TRUE(load(other));
  EXPECT_EQ(packed, 2);
  ASSERT_TRUE(load(cache, {0, kReductionSlices / 2})) << "under the same name: its file has another part";
  EXPECT_EQ(packed, 3);
  cache.set_model({});
  ASSERT_TRUE(load(cache)) << "nobody's parts are kept";
  EXPECT_EQ(packed, 4);
}

// Fails when any part of a file is believed without a look: each flipped byte, each length is noticed and mended.
TEST_P(PackedFileTest, ADamagedFileIsPackedAnew) {
  PackedCache cache = cache_of("model");
  const Block own = load(cache).value();
  const std::string path = only_file();
  const auto size = static_cast<std::streamoff>(fs::file_size(path));
  int expected = 1;
  for (const std::streamoff at : {std::streamoff{0}, std::streamoff{9}, std::streamoff{17}, std::streamoff{25},
                                  std::streamoff{4096}, size / 2, size - 300, size - 1}) {
    flip_byte(path, at);
    expect_same(own, load(cache).value());
    EXPECT_EQ(packed, ++expected) << "byte " << at << " of " << size;
  }
  for (const std::streamoff length : {std::streamoff{0}, std::streamoff{31}, std::streamoff{5000}, size - 1}) {
    fs::resize_file(path, static_cast<std::uintmax_t>(length));
    expect_same(own, load(cache).value());
    EXPECT_EQ(packed, ++expected) << "cut to " << length;
  }
}

// Fails when checksums are looked at in every start, or what one start saw is believed of another machine's start, or
// of a file that changed since. The mark is forged where a byte was changed.
TEST_P(PackedFileTest, ChecksumsAreLookedAtOnceForEachStartOfTheMachine) {
  PackedCache cache = cache_of("model");
  ASSERT_TRUE(load(cache));
  const std::string path = only_file(), mark_path = path + "-checked";
  const std::string mark = read_file(mark_path, kAnySize).value();
  EXPECT_THAT(mark, ::testing::EndsWith(file_stamp(path)));
  std::ofstream(mark_path) << "another start " << file_stamp(path);
  ASSERT_TRUE(load(cache));
  EXPECT_EQ(packed, 1);
  EXPECT_EQ(read_file(mark_path, kAnySize).value(), mark) << "looked at, and said so";
  flip_byte(path, 4096);
  std::ofstream(mark_path) << mark.substr(0, mark.find(' ') + 1) << file_stamp(path);
  std::this_thread::sleep_for(until_stamp_settles(path));
  ASSERT_TRUE(load(cache));
  EXPECT_EQ(packed, 1) << "not looked at again";
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::hours(1));
  std::this_thread::sleep_for(until_stamp_settles(path));
  ASSERT_TRUE(load(cache));
  EXPECT_EQ(packed, 2) << "what was changed is";
}

// Fails when what was packed from a file that changed meanwhile stays.
TEST_P(PackedFileTest, AModelThatIsForgottenIsPackedAnew) {
  PackedCache cache = cache_of("model");
  ASSERT_TRUE(load(cache));
  cache.forget_model();
  PackedCache next = cache_of("model");
  ASSERT_TRUE(load(next));
  EXPECT_EQ(packed, 2);
}

// Fails when a folder that cannot be written to keeps a model from starting.
TEST_P(PackedFileTest, AFolderThatCannotBeKeptInChangesNothing) {
  std::ofstream(folder / "file") << "no folder";
  PackedCache cache(folder / "file");
  cache.set_model("model");
  EXPECT_TRUE(load(cache));
  EXPECT_EQ(packed, 1);
}

}  // namespace
}  // namespace butterfly
