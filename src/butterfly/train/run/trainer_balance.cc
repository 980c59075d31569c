// How a run divides its work anew while it goes on, by the speeds that its ranks are seen to have.
#include <fmt/ranges.h>

#include <algorithm>

#include "butterfly/machine/topology.h"
#include "butterfly/train/run/run_trainer.h"
#include "butterfly/train/step/step_facts.h"

namespace butterfly {
namespace {

constexpr double kLeastStepS = 0.1;  // times of shorter ones say little

/// "rank 0 25 sequences; rank 1 7 sequences", or what layers each has.
std::string describe(const RankWorkShares& work) {
  std::vector<std::string> ranks;
  for (const PipelineStage& stage : work.stages) {
    ranks.push_back(fmt::format("rank {} {}", stage.rank, describe(stage)));
  }
  for (std::size_t rank = 0; work.stages.empty() && rank < work.micro_batches.size(); ++rank) {
    const int count = (work.micro_batches[rank].last - work.micro_batches[rank].first) * work.micro_batch;
    ranks.push_back(fmt::format("rank {} {} sequence{}", rank, count, count == 1 ? "" : "s"));
  }
  return fmt::format("{}", fmt::join(ranks, "; "));
}

}  // namespace

/// Where speeds are given they hold.
void RunTrainer::watch_speeds() {
  balance_.reset();
  watch_.reset();
  if (rank_.size < 2 || !rank_.speeds.empty()) return;
  const bool in_rounds = shards_ != nullptr && shards_->gradients.exchange != ShardedGradients::Exchange::kStep;
  if (in_rounds) {
    watch_.emplace();
  } else {
    balance_.emplace(work_.micro_batches);
  }
}

/// Whether parts of the state stay as they are, as far as this rank has been told: what a rank may take is divided as
/// it was counted before the run, and who joins a pipeline takes its stages to be even.
bool RunTrainer::parts_stay() const {
  const ParallelConfig& parallel = config_.parallel;
  return !config_.memory.empty() || (stage_ && (!parallel.state_shares.empty() || !join_address_of(parallel).empty()));
}

/// Shares of the next step by what ranks took in those before, where each goes through its own by itself.
void RunTrainer::balance_work(const TrainObserver& observer, StepContext& step) {
  if (!balance_ || !balance_->observe(buffers_.pass_s)) return;
  share_ = step.share = balance_->shares()[static_cast<std::size_t>(rank_.rank)];
  rounds_ = step.rounds = micro_batches_in_order(share_, work_.size.usual);
  set_step_facts(step);
  if (!is_first() || !observer.note) return;
  std::vector<std::string> ranks;
  for (std::size_t i = 0; i < balance_->seconds().size(); ++i) {
    const MicroBatches& share = balance_->shares()[i];
    ranks.push_back(fmt::format("rank {} {} (one takes it {:.3g} s)", i, (share.last - share.first) * work_.micro_batch,
                                balance_->seconds()[i] / work_.micro_batch));
  }
  observer.note(fmt::format("after step {} the {} sequences are divided by speed: {}", step_, config_.global_batch,
                            fmt::join(ranks, ", ")));
}

/// Of the last step, in which each rank computed.
std::vector<double> RunTrainer::busy_of_ranks() const {
  std::vector<double> busy_s(static_cast<std::size_t>(rank_.size), 0.0);
  for (std::size_t stage = 0; stage < work_.stages.size(); ++stage) {
    busy_s[static_cast<std::size_t>(work_.stages[stage].rank)] = buffers_.pass_s[stage];
  }
  for (int rank = 0; work_.stages.empty() && rank < rank_.size; ++rank) {
    for (const PassMicroBatches& pass : micro_batches_in_rounds(work_.micro_batches, rank, work_.rounds)) {
      if (pass.first != kIdle)
        busy_s[static_cast<std::size_t>(rank)] += buffers_.pass_s[static_cast<std::size_t>(pass.first)];
    }
  }
  return busy_s;
}

/// Whether all ranks have memory for their part of work that is divided so, by what they take now.
Result<bool> RunTrainer::all_have_room(const RankWorkShares& work) const {
  const auto me = static_cast<std::size_t>(rank_.rank);
  double growth = 0.0;
  if (stage_) {
    growth = static_cast<double>(allocated_bytes()) * (parts_of_ranks(work)[me] / parts_of_ranks(work_)[me] - 1.0);
  } else {
    const double now = sequences_at_once(work_, work_.micro_batches[me]);
    growth = static_cast<double>(transformer_.memory().activation_bytes) *
             (sequences_at_once(work, work.micro_batches[me]) / now - 1.0);
  }
  const auto machine = detect_topology();
  // Others of the run may be on this machine, and the rest of it is not only theirs.
  const double free_bytes = machine ? static_cast<double>(machine->offered_memory_bytes()) / (2.0 * rank_.size) : 0.0;
  double without_room = growth > free_bytes ? 1.0 : 0.0;
  BF_TRY(share_numbers(rank_.collectives, std::span(&without_room, 1)));
  return without_room == 0.0;
}

/// The same where ranks go through a step together: who has what part of it, and of the state, is another one then.
Status RunTrainer::balance_rounds(const TrainObserver& observer) {
  if (!watch_ || any_parts_stay_) return {};
  const std::vector<double> speeds = watch_->observe(busy_of_ranks(), parts_of_ranks(work_));
  if (speeds.empty()) return {};
  const double now_s = step_s(work_, speeds);
  for (int times = PassSize::kTimes; times > 0; times /= 2) {
    BF_ASSIGN_OR_RETURN(RankWorkShares work, share_work(config_, rank_.size, speeds, times));
    if (now_s < kLeastStepS || !(step_s(work, speeds) < (1.0 - watch_->least_gain()) * now_s)) return {};
    BF_ASSIGN_OR_RETURN(const bool fits, all_have_room(work));
    if (!fits) continue;
    BF_TRY(complete_save(observer));
    if (is_first() && observer.note) {
      observer.note(fmt::format("after step {} the work is divided by speed: {}", step_, describe(work)));
    }
    TrainRank place = rank_;
    place.speeds = speeds;
    watch_->divided_anew();
    return take_place(place, std::move(work));
  }
  return {};
}

}  // namespace butterfly
