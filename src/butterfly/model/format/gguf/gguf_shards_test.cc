#include "butterfly/model/format/gguf/gguf_shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/model/format/gguf/gguf_metadata.h"
#include "butterfly/model/format/gguf/gguf_writer.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

struct ShardOptions {
  std::uint32_t number = 0;
  std::uint32_t count = 3;
  std::uint32_t tensors = 0;  // of all files; 0: as many as there are
  bool everything = false;    // all tensors instead of a part of them
};

/// As llama-gguf-split writes them.
void write_shard(const Checkpoint& model, const std::string& path, const ShardOptions& options) {
  auto writer = GgufWriter::create(path);
  ASSERT_TRUE(writer) << writer.error().message;
  const auto weights = model.weights->list();
  if (options.number == 0) {
    ASSERT_TRUE(write_gguf_config(model.config, *writer));
    write_gguf_vocabulary(model.vocabulary, model.config.vocab, *writer);
  }
  writer->add_integer("split.no", options.number);
  writer->add_integer("split.count", options.count);
  const auto all = static_cast<std::uint32_t>(weights.size());
  writer->add_integer("split.tensors.count", options.tensors == 0 ? all : options.tensors);
  std::vector<WeightInfo> own;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (options.everything || i % options.count == options.number) own.push_back(weights[i]);
  }
  for (const WeightInfo& info : own) {
    ASSERT_TRUE(writer->declare({.name = info.name, .type = info.type, .rows = info.rows, .cols = info.cols}));
  }
  ASSERT_TRUE(writer->write_header());
  for (const WeightInfo& info : own) ASSERT_TRUE(writer->write(model.weights->find(info.name)->bytes));
  ASSERT_TRUE(writer->finish());
}

std::string shard_name(int number) {
  return fmt::format("m-{:05}-of-00003.gguf", number + 1);
}

void write_shards(const TempDir& dir, const Checkpoint& model) {
  for (std::uint32_t i = 0; i < 3; ++i) write_shard(model, dir / shard_name(static_cast<int>(i)), {.number = i});
}

TEST(GgufShards, NamesSayWhichFilesBelongTogether) {
  EXPECT_EQ(
      gguf_shards("a/m-00001-of-00003.gguf"),
      (std::vector<std::string>{"a/m-00001-of-00003.gguf", "a/m-00002-of-00003.gguf", "a/m-00003-of-00003.gguf"}));
  for (const char* alone : {"m.gguf", "m-00002-of-00003.gguf", "m-00001-of-0000x.gguf", "-00001-of-00003.gguf", "",
                            "m-00001-of-00003.ggu", "m-00001-of-00001.gguf"}) {
    EXPECT_EQ(gguf_shards(alone), std::vector<std::string>{alone});
  }
}

TEST(GgufShards, AModelInThreeFilesHasTheWeightsOfOne) {
  const TempDir dir;
  const Checkpoint model = small_checkpoint();
  write_shards(dir, model);
  const auto opened = open_checkpoint(dir / shard_name(0));
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->config.layers, model.config.layers);
  EXPECT_EQ(opened->vocabulary.pieces[3], "a");
  EXPECT_EQ(opened->weights->list().size(), model.weights->list().size());
  expect_same_weights(*model.weights, *opened->weights);
  std::uint64_t bytes = 0;
  for (int i = 0; i < 3; ++i) bytes += std::filesystem::file_size(dir / shard_name(i));
  EXPECT_EQ(content_bytes(dir / shard_name(0)).value(), bytes);
  const std::string before = content_hash(dir / shard_name(0)).value();
  std::string last = read_file(dir / shard_name(2));
  last.back() = static_cast<char>(last.back() ^ 1);
  write_file(dir / shard_name(2), last);
  EXPECT_NE(content_hash(dir / shard_name(0)).value(), before) << "every file counts";
}

TEST(GgufShards, WhatDoesNotFitTogetherIsNamed) {
  const Checkpoint model = small_checkpoint();
  const auto error_after = [&](const auto& change, int opened = 0) {
    const TempDir dir;
    write_shards(dir, model);
    change(dir);
    const auto result = open_checkpoint(dir / shard_name(opened));
    return result ? std::string() : result.error().message;
  };
  const auto nothing = [](const TempDir&) {};
  EXPECT_EQ(error_after(nothing), "");
  EXPECT_THAT(error_after(nothing, 1), HasSubstr("is part 2 of 3 of a model, open its first part"));
  EXPECT_THAT(error_after([](const TempDir& dir) { std::filesystem::remove(dir / shard_name(2)); }),
              HasSubstr("m-00003-of-00003.gguf"));
  EXPECT_THAT(error_after([](const TempDir& dir) {
                std::filesystem::copy_file(dir / shard_name(1), dir / shard_name(2),
                                           std::filesystem::copy_options::overwrite_existing);
              }),
              HasSubstr("says that it is part 2 of 3, its name part 3 of 3"));
  EXPECT_THAT(error_after([&](const TempDir& dir) { write_shard(model, dir / shard_name(0), {.count = 4}); }),
              HasSubstr("has 4 parts, its name says 3"));
  EXPECT_THAT(error_after([&](const TempDir& dir) {
                write_shard(model, dir / shard_name(1), {.number = 1, .everything = true});
              }),
              HasSubstr("has the tensor"));
  EXPECT_THAT(error_after([&](const TempDir& dir) { write_shard(model, dir / shard_name(0), {.tensors = 90}); }),
              HasSubstr("split.tensors.count is 90"));
  const TempDir dir;
  write_shard(model, dir / "alone.gguf", {});
  EXPECT_THAT(open_checkpoint(dir / "alone.gguf").error().message, HasSubstr("has 3 parts, its name says 1"));
}

}  // namespace
}  // namespace butterfly
