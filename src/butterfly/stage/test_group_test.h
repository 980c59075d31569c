// Members of a tensor group as threads of a test, and what they answer. Owns stages and exchange.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/stage/paced_stage.h"
#include "butterfly/wire/exchange/inproc_exchange.h"

namespace butterfly {

class TestGroup {
 public:
  struct Options {
    StageAssignment assignment{};  // of all members; slices are not looked at
    std::vector<int> slices{};     // how many each member has
    std::vector<int> experts{};    // slices of the experts, likewise; empty: as slices
    std::vector<Isa> isas{};       // in turn; empty: reference. Under a sanitizer, which it is slow under, the fastest
    int threads = 1;
    std::vector<std::uint64_t> kv_bytes_max{};  // of each member; empty: no limit
  };

  /// Loads every member and lets them meet; a single member of all slices meets nobody.
  TestGroup(const Checkpoint& checkpoint, const Options& options)
      : exchange_(make_inproc_exchange(static_cast<int>(options.slices.size()))) {
    HeldSlices held = HeldSlices::none();
    for (std::size_t i = 0; i < options.slices.size(); ++i) {
      StageAssignment assignment = options.assignment;
      const int experts = options.experts.empty() ? options.slices[i] : options.experts[i];
      held = {{held.last, held.last + options.slices[i]}, {held.experts.last, held.experts.last + experts}};
      assignment.slices = held;
      auto stage = Stage::load(checkpoint.config, assignment, checkpoint.weights,
                               {.threads = options.threads,
                                .isa = isa_of(options, i),
                                .kv_bytes_max = options.kv_bytes_max.empty() ? 0 : options.kv_bytes_max[i]});
      EXPECT_TRUE(stage) << stage.error().message;
      stages_.push_back(stage->get());
      paced_.push_back(std::make_unique<PacedStage>(std::move(*stage), PacedStageOptions{}));
    }
    if (stages_.size() == 1) return;
    on_members([&](std::size_t i) {
      const Status met = paced_[i]->join(*exchange_[i]);
      EXPECT_TRUE(met) << met.error().message;
    });
  }

  static Isa isa_of(const Options& options, std::size_t member) {
    if (kSanitized) return supported_isas().back();
    return options.isas.empty() ? Isa::kReference : options.isas[member % options.isas.size()];
  }

  /// Every member runs the same step. Gives the first member's result; the others' must be empty, and their error the
  /// same where there is one.
  Result<Step> forward(const Step& step) {
    std::vector<Step> steps(stages_.size(), step);
    std::vector<Status> statuses(stages_.size());
    on_members([&](std::size_t i) { statuses[i] = paced_[i]->forward(steps[i]); });
    for (std::size_t i = 1; i < stages_.size(); ++i) {
      EXPECT_EQ(statuses[i].has_value(), statuses[0].has_value()) << "member " << i;
      if (step.batch.runs.empty() || !statuses[i]) continue;
      EXPECT_EQ(steps[i].tensor.rank(), 0) << "member " << i;
    }
    if (!statuses[0]) return tl::unexpected(statuses[0].error());
    return std::move(steps[0]);
  }

  const std::vector<Stage*>& stages() const { return stages_; }
  std::vector<std::unique_ptr<PacedStage>>& paced() { return paced_; }
  std::vector<std::unique_ptr<Exchange>>& exchange() { return exchange_; }

  void on_members(const std::function<void(std::size_t)>& work) {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < stages_.size(); ++i) threads.emplace_back([&work, i] { work(i); });
    work(0);
  }

 private:
  std::vector<std::unique_ptr<Exchange>> exchange_;  // outlives the stages
  std::vector<std::unique_ptr<PacedStage>> paced_;
  std::vector<Stage*> stages_;  // theirs
};

}  // namespace butterfly
