#include "butterfly/train/run/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "butterfly/machine/usage/process_usage.h"
#include "butterfly/plan/cost/load_balance.h"
#include "butterfly/train/checkpoint/resume.h"
#include "butterfly/train/checkpoint/trained_model.h"
#include "butterfly/train/run/run_trainer.h"
#include "butterfly/train/run/training_peak.h"
#include "butterfly/train/step/evaluate.h"
#include "butterfly/train/step/step_facts.h"

namespace butterfly {
namespace {

bool is_due(std::int64_t step, int every) {
  return every > 0 && step % every == 0;
}

std::string residual_name(std::size_t rank, std::size_t index) {
  return fmt::format("residual-{}-{}", rank, index);
}

/// Appends the residuals of all ranks.
void add_residuals(const Residuals& residuals, std::vector<RunArray>& arrays) {
  for (std::size_t rank = 0; rank < residuals.size(); ++rank) {
    for (std::size_t i = 0; i < residuals[rank].size(); ++i) {
      const AlignedBuffer& buffer = residuals[rank][i];
      arrays.push_back(
          {residual_name(rank, i), {reinterpret_cast<float*>(buffer.data()), buffer.bytes() / sizeof(float)}});
    }
  }
}

Result<Residuals> read_residuals(const SavedRun& saved) {
  Residuals residuals;
  for (std::size_t rank = 0; saved.array_bytes(residual_name(rank, 0)); ++rank) {
    residuals.emplace_back();
    for (std::size_t i = 0; const auto bytes = saved.array_bytes(residual_name(rank, i)); ++i) {
      BF_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::create(*bytes));
      BF_TRY(read_array(
          saved, {residual_name(rank, i), {reinterpret_cast<float*>(buffer.data()), buffer.bytes() / sizeof(float)}}));
      residuals.back().push_back(std::move(buffer));
    }
  }
  return residuals;
}

}  // namespace

Status RunTrainer::adopt(const TrainRank& rank) {
  BF_ASSIGN_OR_RETURN(RankWorkShares work, share_work(config_, rank.size, rank.speeds));
  shares_memory_ = false;
  BF_TRY(take_place(rank, std::move(work)));
  watch_speeds();
  return {};
}

/// What this rank does from now on, of work that is divided so.
Status RunTrainer::take_place(const TrainRank& rank, RankWorkShares work) {
  work_ = std::move(work);
  const std::vector<MicroBatches>& shares = work_.micro_batches;
  const MicroBatches& mine = shares[static_cast<std::size_t>(rank.rank)];
  BF_TRY(transformer_.make_room(sequences_at_once(work_, mine)));
  BF_TRY(divide(rank, work_));
  const ShardedGradients* divided = shards_ == nullptr ? nullptr : &shards_->gradients;
  BF_ASSIGN_OR_RETURN(std::unique_ptr<GradientReducer> reducer,
                      parts_.make_reducer({.gradients = transformer_.parameters().gradients(),
                                           .collectives = rank.collectives,
                                           .deterministic = config_.parallel.deterministic,
                                           .compression = config_.parallel.compression,
                                           .bucket_bytes = config_.parallel.bucket_bytes,
                                           .isa = parts_.isa,
                                           .shards = divided,
                                           .team = &transformer_.team()}));
  if (reducer_ != nullptr) {
    // This rank's residuals go on in the new epoch.
    const auto before = reducer_->residuals(), now = reducer->residuals();
    for (std::size_t i = 0; i < std::min(before.size(), now.size()); ++i) std::ranges::copy(before[i], now[i].begin());
  }
  reducer_ = std::move(reducer);
  rank_ = rank;
  share_ = mine;
  rounds_ = divided != nullptr && divided->exchange == ShardedGradients::Exchange::kMicroBatch
                ? micro_batches_in_rounds(shares, rank.rank, work_.rounds)
                : micro_batches_in_order(share_, work_.size.usual);
  agreed_ = false;
  // Ranks may have been apart.
  last_saved_ = -1;
  saving_.reset();
  return {};
}

Status RunTrainer::agree(const TrainObserver& observer) {
  if (agreed_) return {};
  RunState now = state();
  BF_TRY(check_same_configuration(rank_.collectives, now.fingerprint));
  BF_TRY(share_memory(observer));
  BF_ASSIGN_OR_RETURN(const bool divided, state_is_divided());
  if (divided) {
    BF_TRY(take_over(observer));
  } else {
    // Whatever epochs came to nothing before, each rank still has all that it began with.
    if (undivided_ && parts_.resumed) BF_TRY(restore(part_to_read()));
    BF_ASSIGN_OR_RETURN(const bool received, agree_on_last_step(rank_.collectives, now, arrays()));
    if (now.step != step_) BF_TRY(set_state(now));
    // Who has all of it for the others gives it up when they have theirs.
    if (received && shards_ != nullptr) BF_TRY(shards_->collectives.barrier());
    if ((received || is_first() || undivided_) && shards_ != nullptr) keep_part();
  }
  BF_TRY(scatter_residuals(rank_.collectives, std::move(saved_residuals_), reducer_->residuals()));
  saved_residuals_.clear();
  undivided_.reset();
  agreed_ = true;
  tell_parts(observer);
  return {};
}

Status RunTrainer::share_memory(const TrainObserver& observer) {
  if (rank_.collectives == nullptr || std::exchange(shares_memory_, true)) return {};
  ParameterSet& parameters = transformer_.parameters();
  BF_ASSIGN_OR_RETURN(const bool shared,
                      rank_.collectives->share_memory({.bytes = std::as_writable_bytes(parameters.gradients()),
                                                       .descriptor = parameters.gradients_descriptor()}));
  if (shared && observer.note) observer.note("the ranks read each other's gradients in shared memory");
  return {};
}

RunState RunTrainer::state() const {
  const DatasetStats data = parts_.data->stats();
  return {.step = step_,
          .updates = parts_.optimizer->updates(),
          .guard = guard_.state(),
          .fingerprint = fingerprint(config_),
          .train_tokens = data.train_tokens,
          .unigram_entropy = data.unigram_entropy,
          .data_digest = parts_.data_digest,
          .parameters = transformer_.parameters().list()};
}

Status RunTrainer::set_state(const RunState& state) {
  BF_TRY(guard_.set_state(state.guard));
  step_ = state.step;
  parts_.optimizer->set_updates(state.updates);
  transformer_.weights_changed();
  if (shards_ != nullptr && !shards_->sharding.weights) shards_->weights.set_whole();
  return {};
}

std::vector<RunArray> RunTrainer::arrays() {
  std::vector<RunArray> all{{"weights", transformer_.parameters().own_weights()}};
  for (const std::span<float> moment : parts_.optimizer->moments()) {
    all.push_back({fmt::format("moment-{}", all.size() - 1), moment});
  }
  return all;
}

RunTrainer::HeldPart RunTrainer::part_to_read() const {
  // Where the others cannot see the checkpoint, all of it is read here and goes to them.
  return has_ranks_elsewhere(config_.parallel) ? HeldPart::kAll : HeldPart::kOwn;
}

Status RunTrainer::restore(HeldPart part) {
  const SavedRun& saved = *parts_.resumed;
  const bool reads_part = shards_ != nullptr && part == HeldPart::kOwn;
  for (RunArray array : arrays()) {
    const bool whole = !reads_part || (array.name == "weights" && !shards_->sharding.weights);
    if (!whole) array.ranges = shards_->held;
    BF_TRY(read_array(saved, array));
  }
  BF_ASSIGN_OR_RETURN(saved_residuals_, read_residuals(saved));
  last_good_ = saved.path;
  last_good_step_ = saved.state.step;
  return set_state(saved.state);
}

StepContext RunTrainer::context() {
  return {.config = config_,
          .transformer = transformer_,
          .data = *parts_.data,
          .reducer = *reducer_,
          .optimizer = *parts_.optimizer,
          .guard = guard_,
          .buffers = buffers_,
          .collectives = rank_.collectives,
          .share = share_,
          .rounds = rounds_,
          .stages = stage_ ? &*stage_ : nullptr,
          .weights = shards_ == nullptr ? nullptr : &shards_->weights,
          .micro_batch = work_.micro_batch};
}

std::uint64_t RunTrainer::allocated_bytes() const {
  const TrainingMemory memory = transformer_.memory();
  std::uint64_t bytes = memory.parameter_bytes + memory.gradient_bytes + memory.activation_bytes +
                        memory.scratch_bytes + writer_.memory_bytes() + part_writer_.memory_bytes() +
                        reducer_->residual_bytes();
  return bytes + arrays_of_a_part() * held_bytes();
}

Result<TrainResult> RunTrainer::run(const TrainObserver& observer, std::stop_token stop) {
  stopped_ = false;
  do {
    BF_TRY(agree(observer));
    if (!audit_) {
      audit_.emplace(transformer_.parameters(), shards_ == nullptr ? std::vector<ParameterRange>() : shards_->held);
    }
    BF_TRY(take_steps(observer, stop));
  } while (!agreed_);
  return finish(observer);
}

/// Until the last, or until the work is divided otherwise and ranks have to agree on it.
Status RunTrainer::take_steps(const TrainObserver& observer, const std::stop_token& stop) {
  StepContext step = context();
  set_step_facts(step);
  trace::name_thread(fmt::format("rank {}", rank_.rank));
  while (step_ < config_.steps && !stopped_ && agreed_) {
    tell(observer, writer_.finished());
    auto report = train_step(step, step_, wish(stop));
    if (!report) {
      tell(observer, writer_.wait());
      return tl::unexpected(ended_by(std::move(report).error()));
    }
    ++step_;
    stopped_ = report->stop;
    BF_TRY(after_step(observer, *report));
    balance_work(observer, step);
    const bool ends = step_ == config_.steps || stopped_;
    if (report->regroup && !ends) BF_TRY(complete_save(observer));
    if (report->regroup && !ends) return make_error(ErrorCode::kUnavailable, "others join after step {}", step_);
    if (!ends) BF_TRY(balance_rounds(observer));
  }
  return {};
}

StepWish RunTrainer::wish(const std::stop_token& stop) const {
  return {.stop = stop.stop_requested(),
          .regroup = rank_.others_wait && rank_.others_wait(),
          .saving = saving_ && !part_writer_.done()};
}

Status RunTrainer::after_step(const TrainObserver& observer, const StepReport& report) {
  last_report_ = report;
  audit_->step(report, transformer_.parameters());
  statistics_.add(report, share_of_work(), allocated_bytes(), resident_bytes());
  stage_times_.exposed_s += report.phases.communication_exposed_s;
  stage_times_.all_s += report.phases.total_s;
  if (observer.step) observer.step(report, config_.steps);
  if (!report.saving) BF_TRY(complete_save(observer));
  if (step_ == config_.steps || stopped_) return {};  // what is due at the end is done there
  if (is_due(step_, config_.evaluate_every)) BF_TRY(evaluate(observer));
  if (is_due(step_, config_.sample_every)) BF_TRY(sample(observer));
  if (is_due(step_, config_.checkpoint.every_steps)) BF_TRY(save(observer));
  return {};
}

Status RunTrainer::evaluate(const TrainObserver& observer) {
  const trace::Scope scope(trace::Zone::kEvaluate, {.number = static_cast<std::uint32_t>(step_)});
  const std::int64_t tokens = parts_.data->stats().validation_tokens;
  if (observer.evaluating && tokens > 0 && last_report_.tokens > 0) {
    const double steps = static_cast<double>(tokens) / static_cast<double>(last_report_.tokens);
    observer.evaluating(step_, tokens, steps * last_report_.phases.forward_s);
  }
  BF_ASSIGN_OR_RETURN(validation_loss_,
                      validation_loss(transformer_, *parts_.data, rank_.collectives, stage_ ? &*stage_ : nullptr));
  if (observer.evaluated && validation_loss_ > 0) observer.evaluated(step_, validation_loss_);
  return {};
}

Status RunTrainer::sample(const TrainObserver& observer) {
  BF_TRY(gather_weights());
  if (!is_first() || !observer.sampled) return release_weights(), Status{};
  const trace::Scope scope(trace::Zone::kEvaluate, {.number = static_cast<std::uint32_t>(step_)});
  const auto text =
      sample_text(checkpoint(), {.prompt = config_.sample_prompt, .threads = config_.threads, .seed = config_.seed});
  // A text is no reason to lose a run.
  if (text) observer.sampled(step_, *text);
  if (!text && observer.note) observer.note(fmt::format("step {}: no sample: {}", step_, text.error().message));
  release_weights();
  return {};
}

Status RunTrainer::save(const TrainObserver& observer) {
  const std::string& directory = config_.checkpoint.directory;
  if (directory.empty() || last_saved_ == step_) return {};
  const trace::Scope scope(trace::Zone::kCheckpoint, {.number = static_cast<std::uint32_t>(step_)});
  if (const Status same = parts_.data->unchanged(); !same) return tl::unexpected(with_last_good(same.error()));
  last_saved_ = step_;
  if (shards_ != nullptr) return save_parts(observer);
  BF_ASSIGN_OR_RETURN(const Residuals residuals, gather_residuals(rank_.collectives, reducer_->residuals()));
  if (!is_first()) return {};
  tell(observer, writer_.wait());
  const RunState now = state();
  std::vector<RunArray> all = arrays();
  add_residuals(residuals, all);
  const Status begun = writer_.save({.state = now, .config_toml = toml_, .arrays = all});
  if (!begun) tell(observer, SaveOutcome{.step = step_, .path = tl::unexpected(begun.error())});
  if (!config_.checkpoint.asynchronous) tell(observer, writer_.wait());
  return {};
}

void RunTrainer::tell(const TrainObserver& observer, const std::optional<SaveOutcome>& outcome) {
  if (!outcome) return;
  if (outcome->path) {
    save_error_.reset();
    set_last_good(outcome->step, *outcome->path);
    if (observer.saved) observer.saved(outcome->step, *outcome->path);
    return;
  }
  save_error_ = with_last_good(outcome->path.error());
  if (observer.note) observer.note(fmt::format("step {} is not saved: {}", outcome->step, save_error_->message));
}

void RunTrainer::set_last_good(std::int64_t step, const std::string& path) {
  good_before_ = std::exchange(last_good_, path);
  last_good_step_ = step;
}

Error RunTrainer::with_last_good(Error error) {
  if (!is_first() || config_.checkpoint.directory.empty()) return error;
  error.message +=
      last_good_.empty() ? "; there is no checkpoint yet" : fmt::format("; the last good checkpoint is {}", last_good_);
  return error;
}

/// A step whose loss is not finite accuses the weights that it began with.
Error RunTrainer::ended_by(Error error) {
  const bool accused = error.code == ErrorCode::kInvalidArgument && last_good_step_ == step_;
  if (!accused) return with_last_good(std::move(error));
  std::error_code ignored;
  const std::string holder = std::exchange(last_good_, good_before_);
  if (std::filesystem::exists(last_good_, ignored)) return with_last_good(std::move(error));
  if (is_first()) error.message += fmt::format("; no good checkpoint is left: {} holds what diverged", holder);
  return error;
}

RunSummary RunTrainer::summarize(const TrainObserver& observer) const {
  SummaryFacts facts{.sequences_per_step = config_.global_batch,
                     .forward_flops_per_token = transformer_.forward_flops_per_token()};
  RunSummary summary;
  for (const PeakAge age : {PeakAge::kKnown, PeakAge::kAgain}) {
    const auto peak = measured_training_peak(config_.precision, parts_.isa, config_.threads, age);
    if (!peak && observer.note) observer.note("the machine's peak is not known: " + peak.error().message);
    facts.peak_gflops = peak ? peak->gflops : 0.0;
    facts.peak_source = peak ? peak->source : "";
    summary = statistics_.summary(facts);
    if (summary.mfu < 1.0) break;  // more than that, and the peak is what is doubted first
  }
  record_latency(transformer_.team());
  return summary;
}

Result<double> RunTrainer::balance_of_ranks(const StepPhases& phases) const {
  std::vector<double> rank_s(static_cast<std::size_t>(rank_.size), 0.0);
  rank_s[static_cast<std::size_t>(rank_.rank)] = phases.forward_s + phases.backward_s;
  BF_TRY(share_numbers(rank_.collectives, rank_s));
  return load_balance_factor(rank_s);
}

Result<std::vector<RankRow>> RunTrainer::rows_of_ranks(const RunSummary& summary) const {
  std::vector<RankRow> rows;
  if (rank_.size == 1) return rows;
  const int samples = (share_.last - share_.first) * work_.micro_batch;
  const std::vector<double> mine =
      to_numbers({.micro_batches = (samples + config_.micro_batch - 1) / config_.micro_batch,
                  .samples = samples,
                  .compute_s = summary.phases.forward_s + summary.phases.backward_s,
                  .communication_exposed_s = summary.phases.communication_exposed_s,
                  .network_s = summary.network_s,
                  .network_s_variance = summary.network_s_variance,
                  .compression_s = summary.compression_s,
                  .compression_s_variance = summary.compression_s_variance,
                  .network_kb_per_s = summary.network_kb_per_s,
                  .peak_memory_allocated = summary.peak_memory_allocated,
                  .peak_memory_reserved = summary.peak_memory_reserved});
  std::vector<double> all(kRankNumbers * static_cast<std::size_t>(rank_.size), 0.0);
  std::ranges::copy(mine, all.begin() + static_cast<std::ptrdiff_t>(kRankNumbers) * rank_.rank);
  BF_TRY(share_numbers(rank_.collectives, all));
  for (std::size_t at = 0; at < all.size(); at += kRankNumbers) {
    rows.push_back(rank_row(std::span(all).subspan(at, kRankNumbers)));
  }
  return rows;
}

Result<TrainResult> RunTrainer::finish(const TrainObserver& observer) {
  const bool complete = step_ == config_.steps;
  if (const Status same = parts_.data->unchanged(); !same) return tl::unexpected(with_last_good(same.error()));
  if (complete) {
    BF_TRY(evaluate(observer));
    if (config_.sample_every > 0) BF_TRY(sample(observer));
  }
  BF_TRY(save(observer));
  BF_TRY(complete_save(observer));
  if (complete) BF_TRY(write_model());
  TrainResult result{.steps_done = step_, .validation_loss = validation_loss_};
  result.weights_hash = transformer_.parameters().hash();
  if (shards_ != nullptr) {
    BF_ASSIGN_OR_RETURN(result.weights_hash, shards_->weights.hash());
  }
  BF_ASSIGN_OR_RETURN(std::vector<std::string> hashes, gather_texts(rank_.collectives, result.weights_hash));
  BF_ASSIGN_OR_RETURN(std::vector<std::vector<std::string>> part_hashes, hashes_of_parts());
  const double forward_flops = transformer_.forward_flops_per_token();
  result.summary = summarize(observer);
  BF_ASSIGN_OR_RETURN(result.summary.load_balance_factor, balance_of_ranks(result.summary.phases));
  BF_ASSIGN_OR_RETURN(result.ranks, rows_of_ranks(result.summary));
  BF_TRY(note_bubble(result));
  std::vector<double> seen = audit_->seen(transformer_.parameters());
  if (shards_ != nullptr) BF_TRY(share_numbers(rank_.collectives, seen));
  const double tokens_per_step = static_cast<double>(config_.global_batch) * config_.seq;
  result.verdict = audit_->finish(
      transformer_.parameters(), {.data = parts_.data->stats(),
                                  .step = step_,
                                  .steps = config_.steps,
                                  .forward_flops_per_step = forward_flops * tokens_per_step * result.summary.rank_share,
                                  .mfu = result.summary.mfu,
                                  .bucket_bytes = config_.parallel.bucket_bytes,
                                  .divided = shards_ != nullptr,
                                  .rank_hashes = std::move(hashes),
                                  .part_hashes = std::move(part_hashes),
                                  .seen = std::move(seen)});
  if (is_first()) tell(observer, writer_.wait());
  if (save_error_) return tl::unexpected(*save_error_);
  return result;
}

Result<std::unique_ptr<RankTrainer>> make_trainer(RunParts parts, const TrainRank& rank) {
  const bool divided = rank.size > 1 && sharding_of(parts.config.parallel.strategy).optimizer;
  const bool resumes = parts.resumed && (rank.rank == 0 || divided);
  if (rank.rank == 0)
    BF_TRY(check_directory(parts.config.checkpoint.directory, resumes ? parts.resumed->state.step : 0));
  const FirstState first_state = parts.first_state;
  auto trainer = std::make_unique<RunTrainer>(std::move(parts));
  BF_TRY(trainer->adopt(rank));
  if (first_state == FirstState::kReceived) trainer->wait_for_state();
  if (resumes) BF_TRY(trainer->restore(trainer->part_to_read()));
  return std::unique_ptr<RankTrainer>(std::move(trainer));
}

Result<std::unique_ptr<RankTrainer>> RankTrainer::create(const RunConfig& config, const TrainRank& rank) {
  BF_ASSIGN_OR_RETURN(RunParts parts, make_run_parts(config, rank));
  return make_trainer(std::move(parts), rank);
}

}  // namespace butterfly
