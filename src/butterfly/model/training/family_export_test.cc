// Every family that `transformers` writes is either trained and written as GGUF again, or refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "butterfly/model/core/parameter_weights.h"
#include "butterfly/model/format/export_model.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/model/training/training_model_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

/// Words of the refusal; empty for a family that is trained.
std::string refusal_of(const std::string& family) {
  if (family.starts_with("deepseek")) return "latent attention has no backward pass";
  if (family.starts_with("gpt_oss")) return "attention sinks have no backward pass";
  if (family.starts_with("mpt")) return "ALiBi has no backward pass";
  return "";
}

/// Writes the parameters there and reads them back.
void expect_written(TrainableTransformer& transformer, const Checkpoint& trained, const std::string& path) {
  const auto written = export_model(trained, path, {});
  ASSERT_TRUE(written) << written.error().message;
  const auto again = open_checkpoint(path, {.vocabulary_required = false});
  ASSERT_TRUE(again) << again.error().message;
  const auto continued = TrainableTransformer::create(again->config, {.seq = 8});
  ASSERT_TRUE(continued) << continued.error().message;
  ASSERT_TRUE(load_weights(*again->weights, (*continued)->parameters()));
  EXPECT_EQ((*continued)->parameters().hash(), transformer.parameters().hash()) << path;
}

/// Which formats the trained model was written in.
struct Formats {
  bool gguf = false;
  bool directory = false;
};
Formats train_and_write(const Checkpoint& read, TrainableTransformer& transformer) {
  EXPECT_TRUE(load_weights(*read.weights, transformer.parameters()));
  forward_backward(transformer);
  // Every element moves, so that one which is not written, or written elsewhere, shows.
  const std::span<float> weights = transformer.parameters().weights();
  for (const Parameter& parameter : transformer.parameters().list()) {
    for (std::int64_t i = 0; i < parameter.size(); ++i) {
      weights[static_cast<std::size_t>(parameter.offset + i)] += 1e-3f * static_cast<float>(i % 7);
    }
  }
  const TempDir dir;
  const Checkpoint trained = trained_checkpoint(transformer.parameters(), read.config, Vocabulary{});
  Formats formats;
  for (const auto& [name, done] : {std::pair{"model.gguf", &formats.gguf}, {"model", &formats.directory}}) {
    const Status checked = check_export(dir / name, read.config);
    EXPECT_FALSE(std::filesystem::exists(dir / name));
    *done = checked.has_value();
    if (checked) {
      expect_written(transformer, trained, dir / name);
      continue;
    }
    // What is refused before is what is refused at the end.
    EXPECT_EQ(checked.error().code, ErrorCode::kUnsupported);
    const Status written = export_model(trained, dir / name, {});
    EXPECT_EQ(written ? "written" : written.error().message, checked.error().message);
  }
  return formats;
}

TEST(FamilyExport, EveryFamilyIsTrainedAndWrittenOrRefusedByName) {
  int trained = 0, files = 0, refused = 0;
  std::set<std::string> directories;
  for (const auto& entry : std::filesystem::directory_iterator(BUTTERFLY_SOURCE_DIR "/tests/golden/families")) {
    const std::string family = entry.path().filename().string();
    SCOPED_TRACE(family);
    const auto read = open_checkpoint(entry.path().string(), {.vocabulary_required = false});
    ASSERT_TRUE(read) << read.error().message;
    const std::string words = refusal_of(family);
    if (words.empty()) {
      auto made = TrainableTransformer::create(read->config, {.micro_batch = 1, .seq = 12, .router_aux_loss = 0.01});
      ASSERT_TRUE(made) << made.error().message;
      const Formats formats = train_and_write(*read, **made);
      if (formats.directory) directories.insert(family);
      if (formats.gguf) ++files;
      ++trained;
      continue;
    }
    const auto status = check_trainable(read->config);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(status.error().message, HasSubstr(words));
    ++refused;
  }
  EXPECT_GT(trained, 55);
  EXPECT_GE(files, trained - 8);  // GGUF does not say all of some families
  EXPECT_GT(refused, 10);
  for (const char* family : {"gpt2_two", "llama_two", "mistral", "mistral_two", "mixtral", "mixtral_two", "qwen2_moe",
                             "qwen2_moe_dense", "qwen2_moe_two", "qwen3", "qwen3_two", "qwen3_moe", "qwen3_moe_two",
                             "olmo2", "olmo2_two", "olmoe", "olmoe_two"}) {
    EXPECT_TRUE(directories.contains(family)) << family;
  }
}

}  // namespace
}  // namespace butterfly
