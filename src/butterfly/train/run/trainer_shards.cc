// What a run does differently where ranks hold parts of its state.
#include <algorithm>
#include <array>
#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/base/hash/digest.h"
#include "butterfly/base/units.h"
#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/train/checkpoint/sharded_save.h"
#include "butterfly/train/checkpoint/trained_model.h"
#include "butterfly/train/config/learning_rate.h"
#include "butterfly/train/run/run_trainer.h"
#include "butterfly/train/sharding/takeover.h"
#include "butterfly/train/sharding/unit_weights.h"

namespace butterfly {

namespace {

StagePlace place_in(std::span<const PipelineStage> stages, int rank, int micro_batches) {
  const int stage = stage_of(stages, rank), count = static_cast<int>(stages.size());
  StagePlace place{.stage = stage,
                   .stages = count,
                   .step = pipeline_schedule(stage, count, micro_batches),
                   .kept = kept_micro_batches(stage, count, micro_batches)};
  for (const PipelineStage& one : stages) place.ranks.push_back(one.rank);
  return place;
}

}  // namespace

/// Who holds what in this epoch. After the first one, the state goes there in take_over().
Status RunTrainer::divide(const TrainRank& rank, const RankWorkShares& work) {
  const bool again = shards_ != nullptr || before_;
  const bool may_be_several = rank.size > 1 || !join_address_of(config_.parallel).empty() || again;
  if (!may_be_several || !sharding_of(config_.parallel.strategy).optimizer) return {};
  if (shards_ != nullptr && !before_) (agreed_ ? before_ : undivided_).emplace(Holding{shards_->map, rank_.rank});
  transformer_.set_residency(nullptr);
  reducer_.reset();
  shards_.reset();
  Collectives* ranks = rank.collectives;
  if (ranks == nullptr) {
    alone_ = std::move(make_inproc_collectives(1)[0]);
    ranks = alone_.get();
  }
  const bool pipeline = config_.parallel.strategy == ParallelStrategy::kPipeline;
  const int total = work.micro_batches.front().total;
  if (pipeline && again) BF_TRY(transformer_.part().set_part(part_of_rank(work.stages, rank.rank, total)));
  BF_ASSIGN_OR_RETURN(shards_, make_rank_shards(config_.parallel, work, *ranks, transformer_));
  if (!pipeline) transformer_.set_residency(&shards_->weights);
  stage_.reset();
  stage_times_ = {};
  if (!work.stages.empty()) {
    stage_ = place_in(work.stages, rank.rank, total);
  }
  if (before_) return {};
  if (!undivided_) parts_.optimizer->own(shards_->held, shards_->counted);
  if (!shards_->sharding.weights) shards_->weights.set_whole();
  return {};
}

/// Whether ranks hold parts of the state. Else each has all of it, or waits for it. Whether parts stay as they are, all
/// have to know alike: rank 0 alone was told where others may join.
Result<bool> RunTrainer::state_is_divided() {
  std::array said{before_ ? 1.0 : 0.0, parts_stay() ? 1.0 : 0.0};
  BF_TRY(share_numbers(rank_.collectives, said));
  any_parts_stay_ = said[1] > 0.0;
  if (said[0] == 0.0) return false;
  if (!before_ && step_ != kNoStep) before_ = undivided_;
  if (!before_) wait_for_state();
  return true;
}

/// The ranks that are left finish the step that one of them has finished, and divide the state anew among themselves
/// and those that have joined. Another rank may be lost meanwhile: then some have settled and others have not, and the
/// next epoch begins here.
Status RunTrainer::take_over(const TrainObserver& observer) {
  BF_TRY(catch_up());
  BF_ASSIGN_OR_RETURN(const std::vector<int> old, old_ranks());
  std::vector<double> lost{going_back_ ? 1.0 : 0.0};
  BF_TRY(share_numbers(rank_.collectives, lost));
  if (lost[0] == 0.0) BF_TRY(finish_last_step(observer));
  RunState now = state();
  BF_TRY(agree_on_last_step(rank_.collectives, now, {}));
  if (now.step != step_) BF_TRY(set_state(now));
  std::vector<double> seen(2 * transformer_.parameters().list().size(), 0.0);
  if (audit_) seen = audit_->seen(transformer_.parameters());
  BF_TRY(share_numbers(rank_.collectives, seen));
  const auto moves = plan_takeover(before_->map, old, shards_->map);
  const bool overwritten = lost[0] != 0.0;
  if (!moves || overwritten) {
    BF_TRY(go_back(observer, moves ? "ranks were lost on the way back" : moves.error().message));
  } else {
    std::vector<std::span<float>> all;
    for (const RunArray& array : arrays()) all.push_back(array.values);
    BF_TRY(move_state(shards_->collectives, *moves, all));
  }
  return settle(seen);
}

/// A rank that has settled knows that all others had what they need: those that did not hear of it settle now.
Status RunTrainer::catch_up() {
  std::vector<double> counts(static_cast<std::size_t>(rank_.size), 0.0);
  counts[static_cast<std::size_t>(rank_.rank)] = takeovers_;
  BF_TRY(share_numbers(rank_.collectives, counts));
  const int most = static_cast<int>(*std::ranges::max_element(counts));
  if (takeovers_ == most || !moved_) {
    BF_CHECK(takeovers_ == most || is_newcomer(), "a takeover that others have completed");
    takeovers_ = most;
    moved_.reset();
    return {};
  }
  before_ = std::exchange(moved_, std::nullopt);
  going_back_ = false;
  ++takeovers_;
  return {};
}

/// What the ranks of this epoch were when the state was divided last, kNewcomer for those that have joined since; they
/// learn how it was.
Result<std::vector<int>> RunTrainer::old_ranks() {
  std::vector<double> ranks(static_cast<std::size_t>(rank_.size), 0.0);
  std::vector<double> sizes = ranks;
  const auto me = static_cast<std::size_t>(rank_.rank);
  ranks[me] = is_newcomer() ? kNewcomer : before_->rank;
  sizes[me] = is_newcomer() ? 0 : before_->map.ranks();
  BF_TRY(share_numbers(rank_.collectives, ranks));
  BF_TRY(share_numbers(rank_.collectives, sizes));
  if (is_newcomer()) {
    const int size = static_cast<int>(*std::ranges::max_element(sizes));
    BF_ASSIGN_OR_RETURN(const RankWorkShares work, share_work(config_, size, {}));
    before_.emplace(Holding{make_shard_map(config_.parallel, size, work.stages, transformer_), kNewcomer});
  }
  return std::vector<int>(ranks.begin(), ranks.end());
}

/// Everyone has what it needs of the state before anyone gives up what it had.
Status RunTrainer::settle(const std::vector<double>& seen) {
  moved_.emplace(Holding{shards_->map, rank_.rank});
  BF_TRY(shards_->collectives.barrier());
  ++takeovers_;
  moved_.reset();
  before_.reset();
  going_back_ = false;
  shards_->weights.updated();
  keep_part();
  if (config_.parallel.strategy == ParallelStrategy::kPipeline) transformer_.weights_changed();  // no pass asks for it
  if (!audit_) audit_.emplace(transformer_.parameters(), shards_->held);
  audit_->hold(transformer_.parameters(), shards_->held, seen);
  return {};
}

Status RunTrainer::finish_last_step(const TrainObserver& observer) {
  std::vector<double> steps(static_cast<std::size_t>(rank_.size), 0.0);
  steps[static_cast<std::size_t>(rank_.rank)] = static_cast<double>(step_);
  BF_TRY(share_numbers(rank_.collectives, steps));
  const auto newest = std::ranges::max_element(steps);
  const bool behind = static_cast<double>(step_) < *newest;
  // A rank that has finished it knows that all others had their sums, and waits with the next one.
  std::array<double, 2> numbers{last_report_.loss, last_report_.gradient_norm};
  if (newest - steps.begin() != rank_.rank) numbers = {};
  BF_TRY(share_numbers(rank_.collectives, numbers));
  if (!behind || is_newcomer()) return {};
  BF_CHECK(buffers_.summed_step == step_ && static_cast<double>(step_ + 1) == *newest,
           "a step that others have finished");
  StepReport report{.step = step_,
                    .loss = numbers[0],
                    .gradient_norm = numbers[1],
                    .rate = rate_of_step(config_, step_),
                    .tokens = std::int64_t{config_.global_batch} * config_.seq};
  StepContext step = context();
  end_step(step, report);
  ++step_;
  last_report_ = report;
  if (observer.step) observer.step(report, config_.steps);
  return {};
}

/// More is lost than copies can make up for: all ranks read the last checkpoint, or begin anew where there is none.
/// Rank 0 does so for all where one has received its first state or does not see the checkpoint.
Status RunTrainer::go_back(const TrainObserver& observer, const std::string& why) {
  std::string path(4096, '\0');
  if (is_first()) last_good_.copy(path.data(), path.size() - 1);
  if (rank_.collectives != nullptr) {
    BF_TRY(rank_.collectives->broadcast(std::as_writable_bytes(std::span(path)), 0));
  }
  path.resize(std::strlen(path.c_str()));
  going_back_ = true;
  const bool elsewhere = config_.checkpoint.directory == kSavedAtRankZero;
  std::vector<double> receive{elsewhere || parts_.first_state == FirstState::kReceived ? 1.0 : 0.0};
  BF_TRY(share_numbers(rank_.collectives, receive));
  const HeldPart part = receive[0] == 0.0 ? HeldPart::kOwn : HeldPart::kAll;
  if (part == HeldPart::kAll && !is_first()) {
    wait_for_state();
  } else {
    BF_TRY(path.empty() ? begin_again(part) : read_back(path, part));
  }
  if (part == HeldPart::kAll) {
    RunState now = state();
    BF_TRY(agree_on_last_step(rank_.collectives, now, arrays()));
    if (now.step != step_) BF_TRY(set_state(now));
  }
  if (observer.note) {
    observer.note(fmt::format("{}: the run goes back to {}", why,
                              path.empty() ? "its first step: there is no checkpoint yet" : path));
  }
  return {};
}

Status RunTrainer::read_back(const std::string& path, HeldPart part) {
  BF_ASSIGN_OR_RETURN(SavedRun saved, open_run(path));
  parts_.resumed = std::move(saved);
  return restore(part);
}

/// The state before the first step.
Status RunTrainer::begin_again(HeldPart part) {
  const std::vector<ParameterRange> all{{.begin = 0, .end = transformer_.parameters().padded_size()}};
  const std::vector<ParameterRange>& held = part == HeldPart::kAll ? all : shards_->held;
  BF_TRY(make_first_weights(config_, shards_->sharding.weights ? held : all, transformer_));
  for (const std::span<float> moment : parts_.optimizer->moments()) {
    for (const ParameterRange& range : held) {
      std::ranges::fill(moment.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size())),
                        0.0f);
    }
  }
  for (const std::span<float> residual : reducer_->residuals()) std::ranges::fill(residual, 0.0f);
  RunState first = state();
  first.step = 0;
  first.updates = 0;
  first.guard = OutlierGuard(config_.guard).state();
  return set_state(first);
}

double RunTrainer::share_of_work() const {
  if (stage_) return shards_->stages[static_cast<std::size_t>(stage_->stage)].flops_share;
  return static_cast<double>(share_.last - share_.first) / share_.total;
}

/// What the schedule of these stages says, and what all ranks waited for each other since they have them.
Status RunTrainer::note_bubble(TrainResult& result) const {
  if (!stage_) return {};
  result.summary.bubble_predicted = pipeline_bubble(shards_->stages, rank_.speeds, share_.total);
  std::array times{stage_times_.exposed_s, stage_times_.all_s};
  BF_TRY(share_numbers(rank_.collectives, times));
  if (times[1] > 0.0) result.summary.bubble_measured = times[0] / times[1];
  return {};
}

/// What this rank holds, and what copies of parts cost.
void RunTrainer::tell_parts(const TrainObserver& observer) const {
  if (shards_ == nullptr || !observer.note) return;
  if (stage_) {
    std::string stages;
    for (const PipelineStage& stage : shards_->stages) {
      stages += fmt::format("{}rank {} {}", stages.empty() ? "" : "; ", stage.rank, describe(stage));
    }
    observer.note("pipeline: " + stages);
    if (share_.total < rank_.size) {
      observer.note(
          fmt::format("a step of {} micro-batches leaves some of {} stages idle at any time, {:.0f} % of their time by "
                      "the schedule: smaller micro-batches, or a larger global_batch, would fill it",
                      share_.total, rank_.size, 100.0 * pipeline_bubble(shards_->stages, rank_.speeds, share_.total)));
    }
  }
  const ShardMap& map = shards_->map;
  const auto mirrors = map.mirrors_of(rank_.rank).size();
  const auto bytes = static_cast<std::uint64_t>(map.owned_elements(rank_.rank)) * sizeof(float);
  std::string text = fmt::format("rank {} holds {} of {} parameters' state", rank_.rank, map.owned_elements(rank_.rank),
                                 transformer_.parameters().padded_size());
  if (mirrors > 0) {
    const std::size_t arrays = arrays_of_a_part();
    text +=
        fmt::format("; {} other{} a copy of it (--mirror): {} more memory for each, {} more sent a step", mirrors,
                    mirrors == 1 ? " holds" : "s hold", format_bytes(arrays * bytes), format_bytes(mirrors * bytes));
  }
  observer.note(text);
}

/// Of which a rank has its part alone.
std::size_t RunTrainer::arrays_of_a_part() const {
  const Sharding sharding = shards_ == nullptr ? Sharding{} : shards_->sharding;
  return parts_.optimizer->moments().size() + (sharding.gradients ? 1 : 0) + (sharding.weights ? 1 : 0);
}

std::uint64_t RunTrainer::held_bytes() const {
  std::int64_t elements = shards_ == nullptr ? transformer_.parameters().padded_size() : 0;
  for (std::size_t i = 0; shards_ != nullptr && i < shards_->held.size(); ++i) elements += shards_->held[i].size();
  return static_cast<std::uint64_t>(elements) * sizeof(float);
}

Status RunTrainer::gather_weights() {
  if (shards_ == nullptr) return {};
  for (int unit = 0; unit < shards_->map.units(); ++unit) {
    BF_TRY(shards_->weights.gather(unit));
    if (!is_first()) shards_->weights.release(unit);
  }
  return {};
}

/// As AuditFacts has them.
Result<std::vector<std::vector<std::string>>> RunTrainer::hashes_of_parts() {
  std::vector<std::vector<std::string>> all;
  if (shards_ == nullptr || rank_.size == 1) return all;
  constexpr std::size_t kDigits = 2 * sizeof(Sha256);
  const std::string none(kDigits, ' ');
  std::string mine;
  for (int owner = 0; owner < rank_.size; ++owner) {
    const std::vector<int> holders = shards_->map.holders(owner);
    if (std::ranges::find(holders, rank_.rank) == holders.end()) {
      mine += none;
      continue;
    }
    Sha256Hasher hasher;
    for (const RunArray& array : arrays()) {
      for (const ParameterRange& range : shards_->map.owned(owner)) {
        hasher.add(std::as_bytes(
            array.values.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()))));
      }
    }
    BF_ASSIGN_OR_RETURN(const std::string hash, hasher.finish());
    mine += hash;
  }
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gather_texts(rank_.collectives, mine));
  for (const std::string& text : texts) {
    std::vector<std::string>& of_rank = all.emplace_back();
    for (std::size_t at = 0; at < text.size(); at += kDigits) {
      const std::string hash = text.substr(at, kDigits);
      of_rank.push_back(hash == none ? "" : hash);
    }
  }
  return all;
}

/// What came, or was read, is all of it; what is another rank's goes.
void RunTrainer::keep_part() {
  parts_.optimizer->own(shards_->held, shards_->counted);
  ParameterSet& parameters = transformer_.parameters();
  for_each_gap(shards_->held, {.begin = 0, .end = parameters.padded_size()}, [&](ParameterRange gap) {
    parameters.release_own_weights(gap);
    parameters.release_gradients(gap);
  });
}

void RunTrainer::release_weights() {
  for (int unit = 0; shards_ != nullptr && unit < shards_->map.units(); ++unit) shards_->weights.release(unit);
}

ShardedSave RunTrainer::sharded_save() {
  const bool at_rank_zero = has_ranks_elsewhere(config_.parallel) || config_.checkpoint.directory == kSavedAtRankZero;
  return {.collectives = shards_->collectives,
          .files = *parts_.files,
          .directory = config_.checkpoint.directory,
          .folder = at_rank_zero ? FolderOf::kRankZero : FolderOf::kAllRanks,
          .keep = config_.checkpoint.keep};
}

/// Each rank's part into the folder that all see, while the run goes on; one save at a time. What others send to rank 0
/// is written before the next step: it would need room for all of it else.
Status RunTrainer::save_parts(const TrainObserver& observer) {
  BF_TRY(complete_save(observer));
  const RunState now = state();
  std::vector<RunArray> all = arrays();
  for (RunArray& array : all) array.ranges = shards_->counted;
  const ShardedSave save = sharded_save();
  if (!config_.checkpoint.asynchronous || save.folder == FolderOf::kRankZero) {
    return tell_saved(observer, step_, save_shards(save, {.state = now, .config_toml = toml_, .arrays = all}));
  }
  const Result<std::string> folder = begin_shards(save, step_);
  if (!folder) return tell_saved(observer, step_, folder);
  part_writer_.begin(*folder, rank_.rank, all);
  saving_.emplace(Saving{.state = now, .folder = *folder});
  return {};
}

/// The end of a save that all ranks have begun: called by all of them together.
Status RunTrainer::complete_save(const TrainObserver& observer) {
  if (!saving_) return {};
  const Saving saving = std::move(*saving_);
  saving_.reset();
  const auto mine = part_writer_.wait();
  return tell_saved(
      observer, saving.state.step,
      complete_shards(sharded_save(), {.state = saving.state, .config_toml = toml_}, saving.folder, mine));
}

/// A save that did not succeed is no reason to end; where others are lost the epoch ends.
Status RunTrainer::tell_saved(const TrainObserver& observer, std::int64_t step, Result<std::string> path) {
  if (!path && ends_epoch(path.error())) return tl::unexpected(with_last_good(path.error()));
  if (is_first()) {
    tell(observer, SaveOutcome{.step = step, .path = std::move(path)});
  } else if (path && config_.checkpoint.directory != kSavedAtRankZero) {
    set_last_good(step, *path);  // this rank may be the first of the next epoch
  }
  return {};
}

/// Rank 0 knows whether there is a place for it, and asks the others for their weights as the file needs them.
Status RunTrainer::write_model() {
  double wanted = is_first() && !config_.out.empty() ? 1.0 : 0.0;
  if (shards_ != nullptr) BF_TRY(share_numbers(rank_.collectives, std::span(&wanted, 1)));
  if (wanted == 0.0) return {};
  if (shards_ == nullptr) return is_first() ? write_trained_model(checkpoint(), config_.out) : Status{};
  if (!is_first()) return give_units(shards_->weights, shards_->collectives);
  Checkpoint all = checkpoint();
  const auto weights = std::make_shared<UnitWeights>(transformer_.parameters(), shards_->map, shards_->weights,
                                                     shards_->collectives, all.config.name);
  all.weights = weights;
  const Status written = write_trained_model(all, config_.out);
  BF_TRY(weights->finish());
  return written;
}

}  // namespace butterfly
