// Small model files that the tests of this module make for themselves.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/format/convert.h"

namespace butterfly {

/// A folder that goes away with the test.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "butterfly-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string data_path(const std::string& name) {
  const char* root = std::getenv("BUTTERFLY_DATA");
  return (root ? std::string(root) : std::string(BUTTERFLY_SOURCE_DIR "/../shared/data")) + "/" + name;
}

/// Skips the test where the outside data are not there.
#define BF_NEEDS_DATA(name)                                                             \
  if (!std::filesystem::exists(data_path(name))) {                                      \
    GTEST_SKIP() << data_path(name) << " is not here; BUTTERFLY_DATA names its folder"; \
  }

inline ModelConfig small_config(const std::string& architecture = "llama") {
  const char* shape = architecture == "gpt2" ? "gpt2-124m" : architecture == "qwen2" ? "qwen2-0.5b" : "llama-1.1b";
  ModelConfig config = *named_config(shape);
  config.name = "small";
  config.layers = 2;
  config.model_dim = 32;
  config.heads = 4;
  config.kv_heads = architecture == "gpt2" ? 4 : 2;
  config.head_dim = 8;
  config.ff_dim = 64;
  config.vocab = 12;
  config.context = 16;
  if (config.position == PositionKind::kRope) config.rope.dim = 8;
  return config;
}

inline Vocabulary small_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kSentencePiece;
  vocabulary.pieces = {"<unk>", "<s>", "</s>", "a", "b", "ab", "<|im_end|>", "\u2581"};
  vocabulary.scores = {0, 0, 0, -1, -2, -3, 0, -4};
  vocabulary.types.assign(8, TokenType::kNormal);
  vocabulary.types[0] = TokenType::kUnknown;
  vocabulary.types[1] = vocabulary.types[2] = vocabulary.types[6] = TokenType::kControl;
  vocabulary.bos = TokenId{1};
  vocabulary.eos = TokenId{2};
  vocabulary.unknown = TokenId{0};
  vocabulary.end_tokens = {TokenId{2}, TokenId{6}};
  vocabulary.add_bos = true;
  vocabulary.add_space_prefix = true;
  return vocabulary;
}

inline Checkpoint small_checkpoint(const std::string& architecture = "llama", DType type = DType::kF32) {
  Checkpoint checkpoint = *random_checkpoint(small_config(architecture), {.seed = 1, .type = type});
  checkpoint.vocabulary = small_vocabulary();
  return checkpoint;
}

/// The bytes of a small, valid GGUF file.
inline std::string small_gguf(const std::string& architecture = "llama", DType type = DType::kF32) {
  const TempDir dir;
  const auto report = convert(small_checkpoint(architecture, type), dir / "small.gguf", {});
  EXPECT_TRUE(report) << report.error().message;
  return read_file(dir / "small.gguf");
}

/// Every weight of `expected` is in `actual`, with the same bytes.
inline void expect_same_weights(const WeightSource& expected, const WeightSource& actual) {
  for (const WeightInfo& info : expected.list()) {
    const auto a = expected.find(info.name);
    const auto b = actual.find(info.name);
    ASSERT_TRUE(a) << a.error().message;
    ASSERT_TRUE(b) << b.error().message;
    EXPECT_EQ(a->type, b->type) << info.name;
    EXPECT_EQ(a->rows, b->rows) << info.name;
    EXPECT_EQ(a->cols, b->cols) << info.name;
    EXPECT_TRUE(as_text(a->bytes) == as_text(b->bytes)) << info.name;
  }
}

}  // namespace butterfly
