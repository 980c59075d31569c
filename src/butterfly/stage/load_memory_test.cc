// Loading never holds the weights twice: the peak of resident memory is what is packed and a few matrices as they are
// stored, whichever files they come from.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstring>
#include <fstream>

#include "butterfly/base/json.h"
#include "butterfly/base/sanitized_test.h"
#include "butterfly/base/units.h"
#include "butterfly/machine/isa.h"
#include "butterfly/model/format/export_model.h"
#include "butterfly/model/format/gguf/gguf_metadata.h"
#include "butterfly/model/format/gguf/gguf_writer.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/stage/stage.h"

namespace butterfly {
namespace {

/// Layers that are small beside all of them together: 100 MB as halves.
ModelConfig layered_config() {
  ModelConfig config = *named_config("llama-1.1b");
  config.name = "layered";
  config.layers = 16;
  config.model_dim = 512;
  config.heads = config.kv_heads = 8;
  config.head_dim = config.rope.dim = 64;
  config.ff_dim = 1280;
  config.vocab = 1000;
  return config;
}

/// Kilobytes of a line of /proc/self/status; 0 where it is not there.
std::uint64_t status_kb(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1));
  }
  return 0;
}

/// Makes the peak what is resident now, without what was freed. False where the system has no such thing.
bool forget_peak() {
  ::malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good() && status_kb("VmHWM") <= status_kb("VmRSS") + 1024;
}

/// As llama-gguf-split writes them. Gives the first.
std::string write_gguf_shards(const Checkpoint& model, const TempDir& dir, std::uint32_t count) {
  const auto weights = model.weights->list();
  const auto name_of = [&](std::uint32_t number) {
    return dir / fmt::format("m-{:05}-of-{:05}.gguf", number + 1, count);
  };
  for (std::uint32_t number = 0; number < count; ++number) {
    auto writer = GgufWriter::create(name_of(number));
    if (number == 0) {
      EXPECT_TRUE(write_gguf_config(model.config, *writer));
      write_gguf_vocabulary(model.vocabulary, model.config.vocab, *writer);
    }
    writer->add_integer("split.no", number);
    writer->add_integer("split.count", count);
    writer->add_integer("split.tensors.count", static_cast<std::uint32_t>(weights.size()));
    std::vector<WeightInfo> own;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (i * count / weights.size() == number) own.push_back(weights[i]);
    }
    for (const WeightInfo& info : own) {
      EXPECT_TRUE(writer->declare({.name = info.name, .type = info.type, .rows = info.rows, .cols = info.cols}));
    }
    EXPECT_TRUE(writer->write_header());
    for (const WeightInfo& info : own) EXPECT_TRUE(writer->write(model.weights->find(info.name)->bytes));
    EXPECT_TRUE(writer->finish());
  }
  return name_of(0);
}

/// Takes a directory's model.safetensors apart, into two files and the index of both.
void divide_safetensors(const TempDir& dir) {
  const std::string path = dir / "model.safetensors";
  const std::string whole = read_file(path);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data(), 8);
  const nlohmann::json header = parse_json(whole.substr(8, header_bytes));
  nlohmann::json index;
  std::array<nlohmann::json, 2> headers;
  std::array<std::string, 2> data;
  std::size_t number = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::size_t part = number++ % 2;
    const auto begin = entry["data_offsets"][0].get<std::uint64_t>();
    const auto end = entry["data_offsets"][1].get<std::uint64_t>();
    headers[part][name] = entry;
    headers[part][name]["data_offsets"] = {data[part].size(), data[part].size() + end - begin};
    data[part] += whole.substr(8 + header_bytes + begin, end - begin);
    index["weight_map"][name] = fmt::format("model-{:05}-of-00002.safetensors", part + 1);
  }
  for (std::size_t part = 0; part < 2; ++part) {
    std::string text = dump_json(headers[part]);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t size = text.size();
    const std::string length(reinterpret_cast<const char*>(&size), 8);
    write_file(dir / fmt::format("model-{:05}-of-00002.safetensors", part + 1), length + text + data[part]);
  }
  write_file(dir / "model.safetensors.index.json", dump_json(index));
  std::filesystem::remove(path);
}

class LoadMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "SKIPPED: a sanitizer's own memory is most of it";
    if (!forget_peak()) GTEST_SKIP() << "SKIPPED: this system does not forget a peak of memory";
  }

  /// Loads all of it with two threads.
  static void expect_bounded(const std::string& path, const std::string& what) {
    const auto checkpoint = open_checkpoint(path);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    ASSERT_TRUE(forget_peak());
    const std::uint64_t before = status_kb("VmRSS") * 1024;
    const StageAssignment all{.last_layer = checkpoint->config.layers, .embedding = true, .head = true};
    const auto stage =
        Stage::load(checkpoint->config, all, checkpoint->weights, {.threads = 2, .isa = supported_isas().back()});
    ASSERT_TRUE(stage) << stage.error().message;
    const std::uint64_t peak = status_kb("VmHWM") * 1024;
    const std::uint64_t packed = (*stage)->weight_bytes();
    std::uint64_t largest = 0;  // stored
    for (const WeightInfo& info : checkpoint->weights->list()) largest = std::max(largest, info.bytes);
    // A matrix as it lies in the file and as a copy of it; what is around it.
    constexpr std::uint64_t kRoom = 8 << 20;
    EXPECT_LT(peak, before + packed + 2 * largest + kRoom) << what;
    EXPECT_GT(packed, 2 * largest + kRoom) << what << ": a second copy would be seen";
    std::printf("%s: %s packed, peak %s above what was there\n", what.c_str(), format_bytes(packed).c_str(),
                format_bytes(peak - std::min(peak, before)).c_str());
  }

  static Checkpoint model(DType type) { return random_checkpoint(layered_config(), {.seed = 4, .type = type}).value(); }
};

TEST_F(LoadMemory, OfOneGgufFileIsWhatIsPackedAndAMatrix) {
  const TempDir dir;
  const auto written = export_model(model(DType::kQ8_0), dir / "m.gguf", {});
  ASSERT_TRUE(written) << written.error().message;
  expect_bounded(dir / "m.gguf", "one GGUF file, q8_0");
}

TEST_F(LoadMemory, OfAGgufFileWhoseTypeIsReExpressedIsWhatIsPackedAndAMatrix) {
  const TempDir dir;
  const auto written = export_model(model(DType::kF16), dir / "m.gguf", {.type = DType::kQ4_1});
  ASSERT_TRUE(written) << written.error().message;
  expect_bounded(dir / "m.gguf", "one GGUF file, q4_1");
}

TEST_F(LoadMemory, OfAGgufModelInThreeFilesIsWhatIsPackedAndAMatrix) {
  const TempDir dir;
  expect_bounded(write_gguf_shards(model(DType::kF16), dir, 3), "three GGUF files, f16");
}

TEST_F(LoadMemory, OfADirectoryOfSafetensorsInTwoFilesIsWhatIsPackedAndAMatrix) {
  const TempDir dir;
  const auto written = export_model(model(DType::kF16), dir.path(), {});
  ASSERT_TRUE(written) << written.error().message;
  divide_safetensors(dir);
  expect_bounded(dir.path(), "two safetensors files, f16");
}

}  // namespace
}  // namespace butterfly
