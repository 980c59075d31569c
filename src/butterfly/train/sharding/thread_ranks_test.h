// Runs whose ranks are threads of a test, whose epochs it may begin and end, and a model that ranks can divide.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "butterfly/train/run/run_parts.h"
#include "butterfly/train/run/tiny_run_test.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// Parameters of several chunks, so that ranks have something to divide.
inline ModelConfig divisible_shape() {
  ModelConfig config = tiny_shape();
  config.layers = 2;
  config.model_dim = 64;
  config.head_dim = 32;
  config.rope.dim = 32;
  config.ff_dim = 320;
  return config;
}

inline RunConfig divided_run(ParallelStrategy strategy, int ranks) {
  RunConfig config = tiny_run();
  config.shape = divisible_shape();
  config.global_batch = 12;
  config.micro_batch = 1;
  config.steps = 4;
  config.parallel.strategy = strategy;
  config.parallel.ranks = ranks;
  config.parallel.bucket_bytes = 64 * 1024;
  return config;
}

struct RankResult {
  Result<TrainResult> result = make_error(ErrorCode::kUnavailable, "did not run");
  std::vector<StepReport> steps{};
  double kept = 0.0;  // share of the weights that it has of its own, at the end
};

inline double share_of_own_weights(const ParameterSet& parameters) {
  const std::span<const float> own = parameters.own_weights();
  return 1.0 - static_cast<double>(std::ranges::count(own, 0.0F)) / static_cast<double>(own.size());
}

/// Passes on what another does; each backward pass of the rank takes as much longer as `pass` does.
class LongerPasses final : public GradientReducer {
 public:
  LongerPasses(std::unique_ptr<GradientReducer> inner, std::function<void()> pass)
      : inner_(std::move(inner)), pass_(std::move(pass)) {}
  void begin_step(const MicroBatches& share) override { inner_->begin_step(share); }
  std::span<float> fresh_gradients(int micro_batch) override {
    pass_();
    return inner_->fresh_gradients(micro_batch);
  }
  OldGradients old_gradients() const override { return inner_->old_gradients(); }
  void gradients_ready(int micro_batch, ParameterRange range) override { inner_->gradients_ready(micro_batch, range); }
  void micro_batch_done(int micro_batch) override { inner_->micro_batch_done(micro_batch); }
  std::span<float> fresh_piece(GradientPiece piece, int micro_batch) override {
    if (piece == GradientPiece::kLayers) pass_();
    return inner_->fresh_piece(piece, micro_batch);
  }
  void piece_done(GradientPiece piece, int micro_batch) override { inner_->piece_done(piece, micro_batch); }
  double take_waited_s() override { return inner_->take_waited_s(); }
  Result<ReduceReport> finish() override { return inner_->finish(); }
  std::vector<std::span<float>> residuals() override { return inner_->residuals(); }
  std::uint64_t residual_bytes() const override { return inner_->residual_bytes(); }

 private:
  std::unique_ptr<GradientReducer> inner_;
  std::function<void()> pass_;
};

/// What a test does to a run.
struct RankHooks {
  CheckpointFiles* files = &disk_files();
  std::function<void(int rank, const StepReport&)> step{};
  std::function<void(int rank)> pass{};            // during each of its backward passes
  std::function<void(const std::string&)> note{};  // of rank 0
};

inline void make_passes_longer(RunParts& parts, const std::function<void(int)>& pass, int rank) {
  if (!pass) return;
  parts.make_reducer = [pass, rank](const ReducerOptions& options) -> Result<std::unique_ptr<GradientReducer>> {
    BF_ASSIGN_OR_RETURN(auto inner, make_reducer(options));
    return std::make_unique<LongerPasses>(std::move(inner), [pass, rank] { pass(rank); });
  };
}

/// Each rank as a thread.
inline std::vector<RankResult> run_ranks(const RunConfig& config, const RankHooks& hooks = {}) {
  const int ranks = config.parallel.ranks;
  const auto collectives = make_inproc_collectives(ranks);
  std::vector<RankResult> results(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      RankResult& mine = results[static_cast<std::size_t>(rank)];
      Collectives* of_rank = collectives[static_cast<std::size_t>(rank)].get();
      const TrainRank place{
          .rank = rank, .size = ranks, .collectives = ranks == 1 ? nullptr : of_rank, .speeds = config.parallel.speeds};
      const auto make = [&]() -> Result<std::unique_ptr<RankTrainer>> {
        BF_ASSIGN_OR_RETURN(RunParts parts, make_run_parts(config, place, {}));
        parts.files = hooks.files;
        make_passes_longer(parts, hooks.pass, rank);
        return make_trainer(std::move(parts), place);
      };
      auto trainer = make();
      if (!trainer) {
        mine.result = tl::unexpected(trainer.error());
        return of_rank->abort();
      }
      TrainObserver observer;
      observer.step = [&](const StepReport& report, std::int64_t) {
        mine.steps.push_back(report);
        if (hooks.step) hooks.step(rank, report);
      };
      if (rank == 0) observer.note = hooks.note;
      mine.result = (*trainer)->run(observer, {});
      mine.kept = share_of_own_weights((*trainer)->parameters());
      if (!mine.result) of_rank->abort();
    });
  }
  threads.clear();
  return results;
}

inline std::string hash_of(const RunConfig& config, const RankHooks& hooks = {}) {
  const auto results = run_ranks(config, hooks);
  for (const RankResult& rank : results) {
    EXPECT_TRUE(rank.result) << (rank.result ? "" : rank.result.error().message);
    if (!rank.result) return "failed";
    EXPECT_EQ(rank.result->weights_hash, results[0].result->weights_hash);
    EXPECT_EQ(rank.steps.back().loss, results[0].steps.back().loss);
  }
  return results[0].result->weights_hash;
}

/// Passes on what another does, but the member does not hear that a barrier was passed: it was cut off at that moment.
class UnheardBarrier final : public Collectives {
 public:
  explicit UnheardBarrier(Collectives& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Status all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                    AllReduceAlgorithm algorithm) override {
    return inner_.all_reduce(data, element_bytes, reduce, algorithm);
  }
  std::uint64_t all_reduce_bytes(std::uint64_t bytes, AllReduceAlgorithm algorithm) const override {
    return inner_.all_reduce_bytes(bytes, algorithm);
  }
  Status all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) override {
    return inner_.all_to_all(parts, mine);
  }
  Status all_gather(std::span<const MutableByteSpan> parts) override { return inner_.all_gather(parts); }
  Status broadcast(MutableByteSpan data, int root) override { return inner_.broadcast(data, root); }
  Status send(int to, std::uint64_t label, ByteSpan data) override { return inner_.send(to, label, data); }
  Status receive(int from, std::uint64_t label, MutableByteSpan data) override {
    return inner_.receive(from, label, data);
  }
  Status barrier() override {
    BF_TRY(inner_.barrier());
    inner_.abort();
    return make_error(ErrorCode::kUnavailable, "cut off");
  }
  CollectiveStats stats() const override { return inner_.stats(); }
  void abort() override { inner_.abort(); }

 private:
  Collectives& inner_;
};

/// Ranks whose epochs the test begins and ends.
struct EpochRanks {
  std::vector<std::unique_ptr<RankTrainer>> trainers{};
  std::vector<std::unique_ptr<Collectives>> kept{};  // trainers hold those of the epoch before

  /// All take part; after step `last` (-1: never) rank 0 ends the epoch. `unheard`: the rank that does not hear of a
  /// barrier. The hashes of those who came to the end.
  std::vector<std::string> epoch(const RunConfig& config, std::int64_t last, int unheard = -1) {
    const auto size = static_cast<int>(trainers.size());
    auto made = make_inproc_collectives(size);
    if (unheard >= 0) {
      auto& cut_off = made[static_cast<std::size_t>(unheard)];
      kept.push_back(std::move(cut_off));
      cut_off = std::make_unique<UnheardBarrier>(*kept.back());
    }
    std::vector<std::string> hashes(trainers.size());
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto at = static_cast<std::size_t>(rank);
        const TrainRank place{.rank = rank, .size = size, .collectives = made[at].get()};
        if (trainers[at] == nullptr) {
          trainers[at] = make(config, place);
        } else {
          ASSERT_TRUE(trainers[at]->adopt(place));
        }
        TrainObserver observer;
        if (rank == 0) observer.note = note;
        observer.step = [&](const StepReport& report, std::int64_t) {
          if (rank == 0 && report.step == last) made[at]->abort();
        };
        const auto result = trainers[at]->run(observer, {});
        if (result) hashes[at] = result->weights_hash;
        if (!result) made[at]->abort();
      });
    }
    threads.clear();
    for (auto& collectives : made) kept.push_back(std::move(collectives));
    return hashes;
  }
  /// All are told of an epoch whose connections are gone before anything is said.
  void broken_epoch(const RunConfig& config) {
    const auto size = static_cast<int>(trainers.size());
    auto made = make_inproc_collectives(size);
    for (auto& one : made) one->abort();
    for (int rank = 0; rank < size; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const TrainRank place{.rank = rank, .size = size, .collectives = made[at].get()};
      if (trainers[at] == nullptr) {
        trainers[at] = make(config, place);
      } else {
        ASSERT_TRUE(trainers[at]->adopt(place));
      }
      EXPECT_FALSE(trainers[at]->run({}, {}));
    }
    for (auto& collectives : made) kept.push_back(std::move(collectives));
  }
  std::unique_ptr<RankTrainer> make(RunConfig config, const TrainRank& place) const {
    if (place.rank > 0) config.parallel.join_at.clear();  // as other ranks are told the run
    auto parts = make_run_parts(config, place).value();
    if (begun) parts.first_state = FirstState::kReceived;
    make_passes_longer(parts, pass, place.rank);
    return make_trainer(std::move(parts), place).value();
  }
  void lose(int rank) { trainers.erase(trainers.begin() + rank); }
  void join() {
    begun = true;
    trainers.emplace_back();
  }
  bool begun = false;                    // those that are made now receive the state
  std::function<void(int rank)> pass{};  // as RankHooks has them
  std::function<void(const std::string&)> note{};
};

}  // namespace butterfly
