#include "butterfly/train/run/trainer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/format/convert.h"
#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "butterfly/train/data/token_file.h"
#include "butterfly/train/run/tiny_run_test.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

/// Trains until `steps_here` steps are done; then another process goes on, or nobody.
Result<TrainResult> run_for(RankTrainer& trainer, int steps_here = 1 << 30, TrainObserver observer = {}) {
  std::stop_source stop;
  int done = 0;
  const auto told = observer.step;
  // A stop that is asked for during step n is seen by step n + 1, which is the last.
  if (steps_here == 1) stop.request_stop();
  observer.step = [&](const StepReport& report, std::int64_t steps) {
    if (told) told(report, steps);
    if (++done + 1 == steps_here) stop.request_stop();
  };
  return trainer.run(observer, stop.get_token());
}

TrainResult whole_run(const RunConfig& config) {
  auto result = tiny_trainer(config)->run({}, {});
  EXPECT_TRUE(result) << result.error().message;
  return result ? *result : TrainResult{};
}

TEST(Trainer, ARunEndsLearnedAndValid) {
  RunConfig config = tiny_run();
  config.steps = 250;
  config.evaluate_every = 100;
  config.data.validation_share = 0.1;
  std::vector<double> losses;
  std::vector<std::int64_t> evaluating, evaluated;
  TrainObserver observer;
  observer.step = [&](const StepReport& report, std::int64_t) { losses.push_back(report.loss); };
  observer.evaluating = [&](std::int64_t step, std::int64_t tokens, double seconds) {
    evaluating.push_back(step);
    EXPECT_EQ(tokens, 4096);
    EXPECT_GT(seconds, 0.0);
  };
  observer.evaluated = [&](std::int64_t step, double) { evaluated.push_back(step); };
  const auto result = tiny_trainer(config)->run(observer, {});
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(to_string(result->verdict), "valid");
  EXPECT_EQ(result->steps_done, 250);
  EXPECT_EQ(losses.size(), 250u);
  EXPECT_EQ(result->summary.num_steps, 250);
  EXPECT_LT(losses.back(), losses.front() - 0.5);
  EXPECT_GT(result->summary.peak_memory_allocated, 0u);
  EXPECT_GT(result->summary.peak_gflops, 0.0);
  EXPECT_DOUBLE_EQ(result->summary.load_balance_factor, 1.0);
  EXPECT_EQ(evaluated, (std::vector<std::int64_t>{100, 200, 250}));
  EXPECT_EQ(evaluating, evaluated);
}

TEST(Trainer, TheSameRunGivesTheSameWeightsWithAnyNumberOfThreads) {
  RunConfig config = tiny_run();
  config.steps = 3;
  const std::string one = whole_run(config).weights_hash;
  config.threads = 2;
  EXPECT_EQ(whole_run(config).weights_hash, one);
  config.seed = 2;
  EXPECT_NE(whole_run(config).weights_hash, one);
}

TEST(Trainer, ARunInterruptedAtAnyStepAndResumedIsTheUndisturbedRun) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.guard = {
      .loss_sigmas = 1.0, .gradient_sigmas = 0.5, .window_steps = 3};  // leaves steps out, so its window matters
  int left_out = 0;
  TrainObserver observer;
  observer.step = [&](const StepReport& report, std::int64_t) { left_out += report.left_out ? 1 : 0; };
  const auto undisturbed = tiny_trainer(config)->run(observer, {});
  ASSERT_TRUE(undisturbed) << undisturbed.error().message;
  EXPECT_GT(left_out, 0);
  for (int steps = 1; steps < config.steps; ++steps) {
    RunConfig first = config;
    first.checkpoint.directory = folder.path() + "/" + std::to_string(steps);
    const auto before = run_for(*tiny_trainer(first), steps);
    ASSERT_TRUE(before) << before.error().message;
    ASSERT_EQ(before->steps_done, steps);
    RunConfig second = first;
    second.resume = first.checkpoint.directory;
    const auto after = tiny_trainer(second)->run({}, {});
    ASSERT_TRUE(after) << after.error().message;
    EXPECT_EQ(after->steps_done, config.steps);
    EXPECT_EQ(after->weights_hash, undisturbed->weights_hash) << "interrupted after " << steps;
  }
}

/// The same run on several ranks, each a thread; rank 0's result.
Result<TrainResult> run_on_ranks(const RunConfig& config, int ranks, int steps_here = 1 << 30) {
  const auto members = make_inproc_collectives(ranks);
  std::vector<Result<TrainResult>> results(members.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto trainer = RankTrainer::create(
            config, {.rank = static_cast<int>(rank), .size = ranks, .collectives = members[rank].get()});
        // Rank 1 wishes to stop; all do.
        results[rank] =
            !trainer ? tl::unexpected(trainer.error()) : run_for(**trainer, rank == 1 ? steps_here : 1 << 30);
        if (!results[rank]) members[rank]->abort();
      });
    }
  }
  for (const auto& result : results) {
    EXPECT_TRUE(result) << result.error().message;
    if (result && results[0]) {
      EXPECT_EQ(result->weights_hash, results[0]->weights_hash);
      EXPECT_EQ(to_string(result->verdict), "valid");
    }
  }
  return std::move(results[0]);
}

TEST(DistTrainer, DeterministicRanksGiveTheWeightsOfOne) {
  RunConfig config = tiny_run();
  config.data.validation_share = 0.1;
  const TrainResult alone = whole_run(config);
  EXPECT_GT(alone.validation_loss, 0.0);
  for (const int ranks : {2, 3, 4}) {
    const auto together = run_on_ranks(config, ranks);
    ASSERT_TRUE(together);
    EXPECT_EQ(together->weights_hash, alone.weights_hash) << ranks;
    EXPECT_EQ(together->summary.final_loss, alone.summary.final_loss) << ranks;
    EXPECT_GT(together->summary.load_balance_factor, 0.0) << ranks;
    EXPECT_LE(together->summary.load_balance_factor, 1.0) << ranks;
    EXPECT_EQ(together->validation_loss, alone.validation_loss) << ranks;
  }
}

TEST(DistTrainer, ARunResumesWithAnotherNumberOfRanks) {
  const std::string alone = whole_run(tiny_run()).weights_hash;
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.checkpoint.directory = folder.path();
  const auto first = run_on_ranks(config, 2, 5);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->steps_done, 5) << "one rank's wish ends all after the same step";
  config.resume = folder.path();
  const auto second = run_on_ranks(config, 3);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->weights_hash, alone);
}

TEST(DistTrainer, LossyCompressionResumesWithWhatEachRankOwes) {
  RunConfig config = tiny_run();
  config.parallel.deterministic = false;
  config.parallel.compression = GradientCompression::kInt8;
  const auto undisturbed = run_on_ranks(config, 2);
  ASSERT_TRUE(undisturbed);
  const TestFolder folder;
  config.checkpoint.directory = folder.path();
  ASSERT_TRUE(run_on_ranks(config, 2, 5));
  config.resume = folder.path();
  const auto resumed = run_on_ranks(config, 2);
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->weights_hash, undisturbed->weights_hash);
}

TEST(DistTrainer, AdoptedRanksGoOnFromTheLastStepThatOneHasFinished) {
  // Rank 0 has done 5 steps, rank 1 has done 6: as when a member is lost between their updates.
  const std::string alone = whole_run(tiny_run()).weights_hash;
  const auto members = make_inproc_collectives(2);
  std::vector<std::string> hashes(2);
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto trainer = tiny_trainer(tiny_run());
        ASSERT_TRUE(run_for(*trainer, rank == 0 ? 5 : 6));
        const Status adopted =
            trainer->adopt({.rank = static_cast<int>(rank), .size = 2, .collectives = members[rank].get()});
        ASSERT_TRUE(adopted) << adopted.error().message;
        const auto result = trainer->run({}, {});
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_EQ(result->steps_done, 12);
        hashes[rank] = result->weights_hash;
      });
    }
  }
  EXPECT_EQ(hashes[0], alone);
  EXPECT_EQ(hashes[1], alone);
}

TEST(Trainer, SavesAtIntervalsWhileItGoesOn) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.checkpoint = {.directory = folder.path(), .every_steps = 3, .keep = 2};
  std::vector<std::int64_t> saved;
  TrainObserver observer;
  observer.saved = [&](std::int64_t step, const std::string&) { saved.push_back(step); };
  ASSERT_TRUE(tiny_trainer(config)->run(observer, {}));
  EXPECT_EQ(saved, (std::vector<std::int64_t>{3, 6, 9, 12}));
  EXPECT_EQ(saved_steps(folder.path()), (std::vector<std::int64_t>{9, 12}));
  // From one in the middle, given by name.
  RunConfig again = tiny_run();
  again.resume = checkpoint_path(folder.path(), 9);
  EXPECT_EQ(whole_run(again).weights_hash, whole_run(tiny_run()).weights_hash);
}

TEST(Trainer, ResumingNamesTheKeyThatDiffers) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.checkpoint.directory = folder.path();
  ASSERT_TRUE(run_for(*tiny_trainer(config), 3));
  config.resume = folder.path();
  RunConfig other = config;
  other.optimizer.rate = 0.5;
  const auto refused = RankTrainer::create(other, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("optimizer.lr = 0.01"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("0.5"), std::string::npos) << refused.error().message;
  other = config;
  other.shape.ff_dim = 48;
  EXPECT_FALSE(RankTrainer::create(other, {}));
  // What does not show in the bits may differ, and what is left open is as it was.
  config.threads = 2;
  config.micro_batch = 0;
  config.checkpoint.keep = 7;
  EXPECT_TRUE(RankTrainer::create(config, {}));
}

/// Tokens 0 to 15 in an order of their own, as a file for training.
std::string corpus(const std::string& path, bool reversed) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 4000; ++i) tokens.emplace_back(i * i % 16);
  if (reversed) std::reverse(tokens.begin(), tokens.end());
  auto writer = TokenFileWriter::create(path, 16, {}).value();
  EXPECT_TRUE(writer.append(tokens) && writer.finish());
  return path;
}

TEST(Trainer, ARunDoesNotResumeOnOtherTokensOfTheSameFrequencies) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.checkpoint.directory = folder.path() + "/made-up";
  ASSERT_TRUE(run_for(*tiny_trainer(config), 3));
  config.resume = config.checkpoint.directory;
  EXPECT_TRUE(RankTrainer::create(config, {}));
  config.data.files = {"synthetic:random"};
  auto refused = RankTrainer::create(config, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("was trained on other tokens, of SHA-256 "), std::string::npos);

  config = tiny_run();
  config.data = {.files = {corpus(folder.path() + "/a.tokens", false)}, .validation_share = 0.0};
  config.checkpoint.directory = folder.path() + "/packed";
  ASSERT_TRUE(run_for(*tiny_trainer(config), 3));
  config.resume = config.checkpoint.directory;
  config.data.files = {corpus(folder.path() + "/copy.tokens", false)};
  EXPECT_TRUE(RankTrainer::create(config, {})) << "names do not count";
  config.data.files = {corpus(folder.path() + "/b.tokens", true)};
  refused = RankTrainer::create(config, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("other tokens"), std::string::npos) << refused.error().message;
}

TEST(Trainer, ATokenFileThatChangesUnderTheRunEndsIt) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.data = {.files = {corpus(folder.path() + "/a.tokens", false)}, .validation_share = 0.0};
  config.checkpoint = {.directory = folder.path() + "/saved", .every_steps = 4};
  fs::last_write_time(config.data.files[0], fs::file_time_type::clock::now() - std::chrono::hours(1));
  TrainObserver observer;
  observer.step = [&](const StepReport& report, std::int64_t) {
    if (report.step != 5) return;
    std::fstream file(config.data.files[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(64);
    file << std::string(200, '\0');
  };
  const auto result = tiny_trainer(config)->run(observer, {});
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("changed while it was in use"), std::string::npos) << result.error().message;
  EXPECT_EQ(saved_steps(config.checkpoint.directory).back(), 4) << "no checkpoint of what was learned from both";
}

TEST(Trainer, ACorruptCheckpointNamesItsFile) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.checkpoint.directory = folder.path();
  ASSERT_TRUE(run_for(*tiny_trainer(config), 3));
  fs::resize_file(checkpoint_path(folder.path(), 3) + "/moment-1.f32", 100);
  config.resume = folder.path();
  const auto refused = RankTrainer::create(config, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("moment-1.f32"), std::string::npos) << refused.error().message;
}

TEST(Trainer, ADirectoryWithAnotherRunIsRefused) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.checkpoint.directory = folder.path();
  ASSERT_TRUE(run_for(*tiny_trainer(config), 3));
  const auto refused = RankTrainer::create(config, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("step-00000003"), std::string::npos) << refused.error().message;
}

TEST(Trainer, ADivergingRunNamesTheLastCheckpointWhoseWeightsStillGaveALoss) {
  RunConfig config = tiny_run();
  config.steps = 200;
  config.schedule.warmup_steps = 0;
  // Which rate diverges, but not at once, depends on the shape: the first such one is taken.
  for (double rate = 10.0; rate < 1e18; rate *= 10.0) {
    const TestFolder folder;
    config.optimizer = {.kind = OptimizerKind::kSgd, .rate = rate, .clip_norm = 0.0};
    config.checkpoint = {.directory = folder.path(), .every_steps = 1, .asynchronous = false};
    std::int64_t finite = 0;
    TrainObserver observer;
    observer.step = [&](const StepReport&, std::int64_t) { ++finite; };
    const auto result = tiny_trainer(config)->run(observer, {});
    if (result || finite < 2) continue;
    const std::string& said = result.error().message;
    EXPECT_NE(said.find(fmt::format("the run diverges: at step {} ", finite + 1)), std::string::npos) << said;
    // The one at `finite` was saved too, and is what the loss diverged with.
    EXPECT_TRUE(said.ends_with("the last good checkpoint is " + checkpoint_path(folder.path(), finite - 1))) << said;
    return;
  }
  FAIL() << "no rate diverges after its second step";
}

TEST(Trainer, ARunThatDivergedBeforeItsSecondCheckpointHasNoGoodOne) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.optimizer = {.rate = 1e30};
  config.schedule.warmup_steps = 0;
  config.checkpoint = {.directory = folder.path(), .every_steps = 1};
  const auto result = tiny_trainer(config)->run({}, {});
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("no good checkpoint is left: " + checkpoint_path(folder.path(), 1)),
            std::string::npos)
      << result.error().message;
}

/// A disk that is full after a number of writes.
class FullDisk final : public CheckpointFiles {
 public:
  explicit FullDisk(int writes) : left_(writes) {}
  Status create_directory(const std::string& path) override { return disk_files().create_directory(path); }
  Status write(const std::string& path, ByteSpan bytes) override {
    if (left_-- > 0) return disk_files().write(path, bytes);
    return make_error(ErrorCode::kIo, "{}: cannot be written: No space left on device", path);
  }
  Status sync_directory(const std::string& path) override { return disk_files().sync_directory(path); }
  Status replace(const std::string& from, const std::string& to) override { return disk_files().replace(from, to); }
  Status remove(const std::string& path) override { return disk_files().remove(path); }

 private:
  int left_;
};

TEST(Trainer, AFullDiskIsNotedAndTheOldCheckpointStays) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.checkpoint = {.directory = folder.path(), .every_steps = 3};
  FullDisk disk(8);  // one checkpoint is six files
  RunParts parts = std::move(*make_run_parts(config, {}));
  parts.files = &disk;
  auto trainer = std::move(*make_trainer(std::move(parts), {}));
  std::vector<std::string> notes;
  TrainObserver observer;
  observer.note = [&](const std::string& note) { notes.push_back(note); };
  int steps = 0;
  observer.step = [&](const StepReport&, std::int64_t) { ++steps; };
  const auto result = trainer->run(observer, {});
  EXPECT_EQ(steps, config.steps) << "training goes on";
  ASSERT_GE(notes.size(), 1u);
  EXPECT_NE(notes[0].find("step 6 is not saved"), std::string::npos) << notes[0];
  EXPECT_NE(notes[0].find("the last good checkpoint is " + checkpoint_path(folder.path(), 3)), std::string::npos);
  ASSERT_FALSE(result) << "the last one could not be saved";
  EXPECT_NE(result.error().message.find("No space left"), std::string::npos) << result.error().message;
  EXPECT_EQ(saved_steps(folder.path()), (std::vector<std::int64_t>{3}));
  EXPECT_TRUE(open_run(folder.path()));
}

TEST(Trainer, AStopSavesAndEnds) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.checkpoint.directory = folder.path();
  const auto result = run_for(*tiny_trainer(config), 4);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->steps_done, 4);
  EXPECT_EQ(saved_steps(folder.path()), (std::vector<std::int64_t>{4}));
  EXPECT_EQ(open_run(folder.path())->state.step, 4);
}

TEST(Trainer, ImpossibleRunsAreRefused) {
  RunConfig config = tiny_run();
  config.micro_batch = 3;
  EXPECT_FALSE(RankTrainer::create(config, {}));
  config = tiny_run();
  config.frozen = {"no.such.parameter"};
  EXPECT_FALSE(RankTrainer::create(config, {}));
  config = tiny_run();
  config.resume = "/no/such/checkpoint";
  const auto missing = RankTrainer::create(config, {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
}

TEST(Trainer, FrozenParametersStayAndTheRunIsValid) {
  RunConfig config = tiny_run();
  config.frozen = {"token_embd.weight"};
  auto trainer = tiny_trainer(config);
  const auto before = trainer->parameters().weights();
  const std::vector<float> embedding(before.begin(), before.begin() + 256);
  const auto result = trainer->run({}, {});
  ASSERT_TRUE(result);
  EXPECT_EQ(to_string(result->verdict), "valid");
  EXPECT_TRUE(std::equal(embedding.begin(), embedding.end(), trainer->parameters().weights().begin()));
}

TEST(Trainer, SamplesAndWritesWhatItLearned) {
  if (kThreadsWatched) GTEST_SKIP() << "minutes, and one thread";
  const TestFolder folder;
  const std::string text = "the cat sat on the mat and the dog sat on the log. ";
  const std::string corpus = folder.path() + "/corpus.txt";
  for (int i = 0; i < 200; ++i) std::ofstream(corpus, std::ios::app) << text;
  // A vocabulary as random models have it, through a file.
  ModelConfig shape = tiny_shape();
  shape.vocab = 600;
  const std::string start = folder.path() + "/start.gguf";
  ASSERT_TRUE(convert(*random_checkpoint(shape, {}), start, {}));
  RunConfig config = tiny_run();
  config.shape = {};
  config.model = start;
  config.data.files = {corpus};
  config.data.validation_share = 0.2;
  config.sample_every = 6;
  config.sample_prompt = "the cat";
  config.out = folder.path() + "/learned.gguf";
  std::vector<std::string> samples, notes;
  TrainObserver observer;
  observer.sampled = [&](std::int64_t, const std::string& sample) { samples.push_back(sample); };
  observer.note = [&](const std::string& note) { notes.push_back(note); };
  const auto trainer = tiny_trainer(config);
  const auto result = trainer->run(observer, {});
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_TRUE(notes.empty()) << notes[0];
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_TRUE(samples[0].starts_with("the cat"));
  EXPECT_GT(samples[0].size(), 7u);
  EXPECT_GT(result->validation_loss, 0.0);
  // What was written continues where this run ended.
  RunConfig next = config;
  next.model = config.out;
  next.out.clear();
  const auto continued = tiny_trainer(next);
  EXPECT_EQ(continued->parameters().hash(), result->weights_hash);
}

TEST(Trainer, ANetworkThatDoesNotLearnEndsInvalid) {
  // An optimizer that does nothing: the double of the programs that publish throughput without a step.
  class Idle final : public Optimizer {
   public:
    explicit Idle(std::unique_ptr<Optimizer> inner) : inner_(std::move(inner)) {}
    Result<double> gradient_norm(Collectives* ranks) override { return inner_->gradient_norm(ranks); }
    void own(const std::vector<ParameterRange>& held, const std::vector<ParameterRange>& counted) override {
      inner_->own(held, counted);
    }
    void update(double, double) override {}
    std::int64_t updates() const override { return inner_->updates(); }
    void set_updates(std::int64_t updates) override { inner_->set_updates(updates); }
    std::vector<std::span<float>> moments() override { return inner_->moments(); }

   private:
    std::unique_ptr<Optimizer> inner_;
  };
  RunParts parts = std::move(*make_run_parts(tiny_run(), {}));
  parts.optimizer = std::make_unique<Idle>(std::move(parts.optimizer));
  auto trainer = std::move(*make_trainer(std::move(parts), {}));
  const auto result = trainer->run({}, {});
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->verdict.valid);
  EXPECT_NE(to_string(result->verdict).find("did not move"), std::string::npos) << to_string(result->verdict);
}

}  // namespace
}  // namespace butterfly
