#include "butterfly/train/checkpoint/run_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "butterfly/train/checkpoint/checkpoint_writer.h"
#include "butterfly/train/run/tiny_run_test.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

/// What a run at some step saves; every value tells which step it is of.
struct SavedState {
  explicit SavedState(std::int64_t step)
      : weights(1000, static_cast<float>(step)),
        moment(500, -static_cast<float>(step)),
        state{.step = step,
              .updates = step - 1,
              .guard = {0.1, 1.0 / 3.0},
              .fingerprint = "f",
              .train_tokens = 77,
              .unigram_entropy = 2.5,
              .data_digest = std::string(64, 'a'),
              .parameters = {{.name = "token_embd.weight", .rows = 10, .cols = 100}}},
        arrays{{"weights", weights}, {"moment-0", moment}} {}
  RunSnapshot snapshot() const { return {.state = state, .config_toml = toml, .arrays = arrays}; }

  std::vector<float> weights, moment;
  RunState state;
  std::vector<RunArray> arrays;
  std::string toml = "steps = 5\n";
};

/// A disk that works for `works` operations; the next one is done half and everything after it fails, as for a process
/// that was killed. With kFull the one operation fails and the disk goes on.
class FailingFiles final : public CheckpointFiles {
 public:
  enum class How : std::uint8_t { kKilled, kFull };
  FailingFiles(int works, How how) : works_(works), how_(how) {}

  Status create_directory(const std::string& path) override {
    return fails() ? error(path) : disk_files().create_directory(path);
  }
  Status write(const std::string& path, ByteSpan bytes) override {
    if (!fails()) return disk_files().write(path, bytes);
    if (calls_ == works_ + 1) (void)disk_files().write(path, bytes.first(bytes.size() / 2));
    return error(path);
  }
  Status sync_directory(const std::string& path) override {
    return fails() ? error(path) : disk_files().sync_directory(path);
  }
  Status replace(const std::string& from, const std::string& to) override {
    return fails() ? error(to) : disk_files().replace(from, to);
  }
  Status remove(const std::string& path) override {
    if (!fails()) return disk_files().remove(path);
    if (calls_ == works_ + 1) {
      // Half of a directory.
      std::error_code ignored;
      for (const auto& entry : fs::directory_iterator(path, ignored)) {
        fs::remove_all(entry.path(), ignored);
        break;
      }
    }
    return error(path);
  }
  bool failed() const { return calls_ > works_; }

 private:
  bool fails() {
    ++calls_;
    return how_ == How::kKilled ? calls_ > works_ : calls_ == works_ + 1;
  }
  static Status error(const std::string& path) {
    return make_error(ErrorCode::kIo, "{}: cannot be written: No space left on device", path);
  }
  int works_;
  int calls_ = 0;
  How how_;
};

void overwrite(const std::string& path, const std::function<void(std::string&)>& change) {
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  std::string text = content.str();
  change(text);
  std::ofstream(path, std::ios::binary) << text;
}

/// Whether the newest checkpoint is complete, and its step.
std::int64_t newest_whole_step(const std::string& directory) {
  const auto saved = open_run(directory);
  if (!saved) {
    ADD_FAILURE() << saved.error().message;
    return -1;
  }
  SavedState read(0);
  for (const RunArray& array : read.arrays) {
    const Status status = read_array(*saved, array);
    EXPECT_TRUE(status) << status.error().message;
  }
  EXPECT_EQ(read.weights, SavedState(saved->state.step).weights);
  EXPECT_EQ(read.moment, SavedState(saved->state.step).moment);
  return saved->state.step;
}

TEST(RunCheckpoint, HoldsAllOfARun) {
  const TestFolder folder;
  const SavedState run(5);
  const auto path = write_checkpoint(disk_files(), folder.path(), run.snapshot());
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_EQ(newest_whole_step(folder.path()), 5);
  const auto saved = open_run(*path);
  ASSERT_TRUE(saved) << saved.error().message;
  EXPECT_EQ(saved->state.updates, 4);
  EXPECT_EQ(saved->state.guard, run.state.guard);
  EXPECT_EQ(saved->state.train_tokens, 77);
  EXPECT_EQ(saved->state.unigram_entropy, 2.5);
  EXPECT_EQ(saved->state.data_digest, std::string(64, 'a'));
  ASSERT_EQ(saved->state.parameters.size(), 1u);
  EXPECT_EQ(saved->state.parameters[0].cols, 100);
  EXPECT_EQ(saved->array_bytes("moment-0"), 2000u);
  EXPECT_FALSE(saved->array_bytes("residual-0-0"));
}

TEST(RunCheckpoint, AKillAtAnyMomentLeavesTheOldOneOrTheNewOne) {
  bool reached_the_end = false;
  for (int works = 0; !reached_the_end; ++works) {
    ASSERT_LT(works, 100);
    const TestFolder folder;
    ASSERT_TRUE(write_checkpoint(disk_files(), folder.path(), SavedState(5).snapshot()));
    FailingFiles files(works, FailingFiles::How::kKilled);
    const auto written = write_checkpoint(files, folder.path(), SavedState(6).snapshot());
    if (written) (void)prune_checkpoints(files, folder.path(), 1);
    reached_the_end = !files.failed();
    const std::int64_t newest = newest_whole_step(folder.path());
    EXPECT_TRUE(newest == 5 || newest == 6) << works;
    EXPECT_TRUE(!written || newest == 6) << works;
    // The next run cleans up and saves.
    ASSERT_TRUE(write_checkpoint(disk_files(), folder.path(), SavedState(7).snapshot()));
    ASSERT_TRUE(prune_checkpoints(disk_files(), folder.path(), 1));
    EXPECT_EQ(newest_whole_step(folder.path()), 7);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1) << works;
  }
}

TEST(RunCheckpoint, AKillWhileTheSameStepIsReplacedLeavesOneOfTheTwo) {
  bool reached_the_end = false;
  for (int works = 0; !reached_the_end; ++works) {
    const TestFolder folder;
    ASSERT_TRUE(write_checkpoint(disk_files(), folder.path(), SavedState(5).snapshot()));
    FailingFiles files(works, FailingFiles::How::kKilled);
    (void)write_checkpoint(files, folder.path(), SavedState(5).snapshot());
    reached_the_end = !files.failed();
    EXPECT_EQ(newest_whole_step(folder.path()), 5) << works;
  }
}

TEST(RunCheckpoint, AFullDiskLeavesTheOldOneAndNothingHalf) {
  bool reached_the_end = false;
  for (int works = 0; !reached_the_end; ++works) {
    const TestFolder folder;
    ASSERT_TRUE(write_checkpoint(disk_files(), folder.path(), SavedState(5).snapshot()));
    FailingFiles files(works, FailingFiles::How::kFull);
    const auto written = write_checkpoint(files, folder.path(), SavedState(6).snapshot());
    reached_the_end = !files.failed();
    if (!written) {
      EXPECT_EQ(written.error().code, ErrorCode::kIo);
      EXPECT_NE(written.error().message.find(folder.path()), std::string::npos) << written.error().message;
    }
    EXPECT_GE(newest_whole_step(folder.path()), 5) << works;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
    }
  }
}

TEST(RunCheckpoint, RanksOfASaveThatWasGivenUpDoNotWriteIntoTheNextOne) {
  const TestFolder folder;
  SavedState late(4), good(5);
  for (SavedState* state : {&late, &good}) {
    for (RunArray& array : state->arrays) {
      array.ranges = {{.begin = 0, .end = static_cast<std::int64_t>(array.values.size())}};
    }
  }
  const auto given_up = begin_checkpoint(disk_files(), folder.path(), 5);
  ASSERT_TRUE(given_up);
  const auto begun = begin_checkpoint(disk_files(), folder.path(), 5);
  ASSERT_TRUE(begun);
  auto parts = write_parts(disk_files(), *begun, 1, good.arrays);
  ASSERT_TRUE(parts);
  (void)write_parts(disk_files(), *given_up, 1, late.arrays);  // its rank has not heard of it yet
  ASSERT_TRUE(complete_checkpoint(disk_files(), folder.path(), *begun, good.snapshot(), *parts));
  EXPECT_EQ(newest_whole_step(folder.path()), 5);
}

TEST(RunCheckpoint, NamesTheFileThatIsWrong) {
  const auto cut = [](std::string& text) { text.pop_back(); };
  const auto flip = [](std::string& text) { text[text.size() / 2] ^= 1; };
  const auto empty = [](std::string& text) { text.clear(); };
  for (const char* file : {"weights.f32", "moment-0.f32", "state.json", "config.toml", "manifest.json"}) {
    for (const auto& change : std::vector<std::function<void(std::string&)>>{cut, flip, empty}) {
      const TestFolder folder;
      const auto path = write_checkpoint(disk_files(), folder.path(), SavedState(5).snapshot());
      ASSERT_TRUE(path);
      overwrite(*path + "/" + file, change);
      auto saved = open_run(*path);
      SavedState read(0);
      Status status{};
      if (!saved) status = tl::unexpected(saved.error());
      for (const RunArray& array : read.arrays) {
        if (status) status = read_array(*saved, array);
      }
      // A manifest without its last newline says the same.
      if (status && std::string(file) == "manifest.json") continue;
      ASSERT_FALSE(status) << file;
      const bool manifest_lied = std::string(file) == "manifest.json";
      EXPECT_TRUE(manifest_lied || status.error().message.find(file) != std::string::npos) << status.error().message;
    }
    const TestFolder folder;
    const auto path = write_checkpoint(disk_files(), folder.path(), SavedState(5).snapshot());
    fs::remove(*path + "/" + file);
    const auto saved = open_run(*path);
    ASSERT_FALSE(saved) << file;
    EXPECT_EQ(saved.error().code, ErrorCode::kNotFound);
    EXPECT_NE(saved.error().message.find(file), std::string::npos) << saved.error().message;
  }
}

TEST(RunCheckpoint, ACorruptNewestNamesTheOneBefore) {
  const TestFolder folder;
  ASSERT_TRUE(write_checkpoint(disk_files(), folder.path(), SavedState(5).snapshot()));
  const auto path = write_checkpoint(disk_files(), folder.path(), SavedState(6).snapshot());
  overwrite(*path + "/weights.f32", [](std::string& text) { text.pop_back(); });
  const auto saved = open_run(folder.path());
  ASSERT_FALSE(saved);
  EXPECT_NE(saved.error().message.find("weights.f32"), std::string::npos) << saved.error().message;
  EXPECT_NE(saved.error().message.find("step-00000005"), std::string::npos) << saved.error().message;
}

TEST(RunCheckpoint, KeepsTheNewest) {
  const TestFolder folder;
  for (int step = 1; step <= 5; ++step) {
    ASSERT_TRUE(write_checkpoint(disk_files(), folder.path(), SavedState(step).snapshot()));
    ASSERT_TRUE(prune_checkpoints(disk_files(), folder.path(), 2));
  }
  EXPECT_EQ(saved_steps(folder.path()), (std::vector<std::int64_t>{4, 5}));
  EXPECT_EQ(newest_whole_step(folder.path()), 5);
}

TEST(RunCheckpoint, RefusesManifestsThatLeadElsewhere) {
  const std::string hash(64, 'a');
  const auto manifest = [&](const std::string& name, const std::string& bytes, const std::string& sha) {
    return fmt::format(R"({{"format":1,"files":[{{"name":"{}","bytes":{},"sha256":"{}"}}]}})", name, bytes, sha);
  };
  EXPECT_TRUE(parse_manifest(manifest("weights.f32", "4", hash), "m"));
  for (const std::string& bad :
       {manifest("../weights.f32", "4", hash), manifest("a/b", "4", hash), manifest(".hidden", "4", hash),
        manifest("", "4", hash), manifest("w", "-4", hash), manifest("w", "4.5", hash), manifest("w", "4", "abc"),
        manifest("w", "4", std::string(64, 'G')), std::string("{}"), std::string("["), std::string("7"),
        std::string(R"({"format":2,"files":[]})"), std::string(R"({"format":1,"files":{}})"),
        std::string(R"({"format":1,"files":[3]})")}) {
    const auto parsed = parse_manifest(bad, "m");
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kBadData);
  }
}

TEST(RunCheckpoint, RefusesStatesThatContradictThemselves) {
  const SavedState run(5);
  ASSERT_TRUE(parse_run_state(to_json(run.state), "s"));
  for (const char* key : {"\"step\"", "\"updates\"", "\"guard\"", "\"fingerprint\"", "\"parameters\"", "\"rows\""}) {
    std::string text = to_json(run.state);
    text[text.find(key) + 1] = '!';
    EXPECT_FALSE(parse_run_state(text, "s")) << key;
  }
  RunState many = run.state;
  many.updates = 6;
  EXPECT_FALSE(parse_run_state(to_json(many), "s"));
}

TEST(CheckpointWriter, WritesACopyWhileTheRunGoesOn) {
  const TestFolder folder;
  CheckpointWriter writer({.directory = folder.path(), .keep = 1}, disk_files());
  SavedState run(5);
  ASSERT_TRUE(writer.save(run.snapshot()));
  std::ranges::fill(run.weights, -1.0f);
  const auto outcome = writer.wait();
  ASSERT_TRUE(outcome && outcome->path);
  EXPECT_EQ(outcome->step, 5);
  EXPECT_EQ(newest_whole_step(folder.path()), 5);
  EXPECT_FALSE(writer.wait()) << "an outcome is told once";
}

TEST(CheckpointWriter, TellsAFailureOnceAndSavesAgain) {
  const TestFolder folder;
  for (const bool asynchronous : {true, false}) {
    FailingFiles files(4, FailingFiles::How::kFull);
    CheckpointWriter writer({.directory = folder.path(), .keep = 1, .asynchronous = asynchronous}, files);
    ASSERT_TRUE(writer.save(SavedState(5).snapshot()));
    auto outcome = writer.wait();
    ASSERT_TRUE(outcome);
    EXPECT_FALSE(outcome->path);
    ASSERT_TRUE(writer.save(SavedState(6).snapshot()));
    outcome = writer.wait();
    ASSERT_TRUE(outcome && outcome->path);
    EXPECT_EQ(newest_whole_step(folder.path()), 6);
  }
}

}  // namespace
}  // namespace butterfly
