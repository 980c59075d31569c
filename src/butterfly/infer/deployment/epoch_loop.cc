#include "butterfly/infer/deployment/epoch_loop.h"

#include <algorithm>
#include <set>

#include "butterfly/base/clock.h"
#include "butterfly/base/units.h"
#include "butterfly/infer/deployment/cluster_deployment.h"
#include "butterfly/plan/shares/share_groups.h"

namespace butterfly {
namespace {

constexpr std::int64_t kBackAtStartMs = 1000;
constexpr std::int64_t kRetryPauseMs = 20;  // before the same members are tried again; doubled each time
constexpr int kAlikeMax = 2;                // epochs that fail over the same members before one of them is left out
constexpr int kFruitlessMax = 12;           // epochs in a row that computed nothing

/// The workers without work, and why; empty where all have some.
std::string describe_idle(const DeployedModel& model, const RunningEpoch& running) {
  const Plan& plan = running.plan;
  const Members& members = running.members;
  if (plan.standby_nodes.empty()) return {};
  std::string names;
  for (const int node : plan.standby_nodes) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", members.nodes[static_cast<std::size_t>(node)].address);
  }
  const auto idle = plan.standby_nodes.size();
  const std::string who = fmt::format("{} {} by", names, idle == 1 ? "stands" : "stand");
  PlanOptions all = model.config.plan;
  all.strategy = "uniform";
  const auto uniform = plan_for(model.checkpoint, model.known.cluster(members.nodes), all);
  const bool by_choice = plan.strategy != "uniform" && uniform && uniform->standby_nodes.size() < idle;
  if (!by_choice) {
    return fmt::format("{}: {} workers, {} layers", who, members.nodes.size(), model.checkpoint.config.layers);
  }
  const PlanPrediction& mine = plan.prediction;
  const PlanPrediction& theirs = uniform->prediction;
  switch (model.config.plan.goal) {
    case PlanGoal::kLatency:
      return fmt::format("{}: a token is predicted to take {} without and {} with a uniform split over all", who,
                         format_seconds(mine.token_s), format_seconds(theirs.token_s));
    case PlanGoal::kThroughput:
      return fmt::format("{}: {:.1f} tokens/s are predicted without and {:.1f} with a uniform split over all", who,
                         mine.tokens_per_s, theirs.tokens_per_s);
    case PlanGoal::kMemory:
      break;
  }
  return fmt::format("{}: the fullest node holds {} without and {} with a uniform split over all", who,
                     format_bytes(mine.memory_bytes_max), format_bytes(theirs.memory_bytes_max));
}

}  // namespace

Status EpochLoop::recover(const Error& cause) {
  if (!ends_epoch(cause)) return tl::unexpected(cause);
  if (pipeline_.steps_done() > 0) fruitless_ = 0;
  if (cause.code == ErrorCode::kTimeout) leave_out_complaining();  // it waited long enough for its neighbour
  return begin(cause);
}

Status EpochLoop::begin(const std::optional<Error>& cause) {
  const auto began = std::chrono::steady_clock::now();
  std::string reason = cause ? cause->message : "";
  if (cause) model_.say(reason);
  Deadline deadline = after_ms(model_.config.timeouts.recover_within.count());
  int alike = 0;
  for (;;) {
    end();
    if (model_.stop.stop_requested()) return make_error(ErrorCode::kCancelled, "cancelled");
    if (++fruitless_ > kFruitlessMax) {
      return make_error(ErrorCode::kUnavailable, "{} epochs in a row came to nothing, the last because {}",
                        kFruitlessMax, reason);
    }
    running_.members = membership_.members();
    const auto plan = model_.plan(running_.members);
    if (!plan) {
      BF_TRY(wait_for_workers(plan.error(), deadline));
      continue;
    }
    running_.plan = *plan;
    running_.planned_slowness.clear();
    for (std::size_t i = 0; i < plan->shares.size(); ++i) {
      running_.planned_slowness.push_back(model_.known.slowness(running_.node_of_stage(i).address));
    }
    const Status started = start();
    if (started) {
      rebalancer_.watch(running_, membership_);
      report(reason, began);
      return {};
    }
    if (!ends_epoch(started.error())) return started;
    model_.say(started.error().message);
    reason = started.error().message;
    deadline = after_ms(model_.config.timeouts.recover_within.count());
    alike = membership_.version() == running_.members.version ? alike + 1 : 0;
    if (alike > 0) retry_alike(alike);
  }
}

void EpochLoop::end() {
  rebalancer_.drop();
  if (!running_.session) return;
  const PipelineChannels& channels = running_.channels;
  if (channels.input) ended_wire_bytes_ += channels.input->stats().bytes_sent + channels.output->stats().bytes_received;
  pipeline_.disconnect();
  running_.session->stop();
  running_.channels = {};
  running_.session.reset();
}

Status EpochLoop::start() {
  StartRequest request = model_.request;
  request.plan = running_.plan;
  running_.session = membership_.next_epoch(running_.members);
  request.epoch = membership_.epoch();
  sent_weight_bytes_ = 0;
  request.progress = [this, last = std::string()](const StartProgress& progress) mutable {
    sent_weight_bytes_ = progress.weight_bytes;
    if (!reports_.empty()) return;
    const std::string line = fmt::format("{} of {} workers ready, {} of weights sent", progress.ready, progress.stages,
                                         format_bytes(progress.weight_bytes));
    if (line != last) model_.say(line);
    last = line;
  };
  BF_ASSIGN_OR_RETURN(running_.channels,
                      running_.session->start(request, after_ms(model_.config.timeouts.ready.count())));
  running_.channels.input->compress({.mode = model_.config.stage.compression});
  pipeline_.connect(*running_.channels.input, *running_.channels.output, pipeline_stages(running_.plan.stages()));
  return {};
}

/// Workers that answer and yet cannot reach a neighbour: without them the others can work.
void EpochLoop::leave_out_complaining() {
  if (!running_.session) return;
  for (const std::string& address : running_.session->complaining()) membership_.leave_out(address);
}

/// The same members again: either the cause is gone in a moment, or one of them cannot reach another.
void EpochLoop::retry_alike(int times) {
  if (times >= kAlikeMax) leave_out_complaining();
  static_cast<void>(membership_.wait_for_change(running_.members.version, after_ms(kRetryPauseMs << std::min(times, 5)),
                                                model_.stop));
}

Status EpochLoop::wait_for_workers(const Error& why, Deadline deadline) {
  const bool may_help = why.code == ErrorCode::kNoMemory || why.code == ErrorCode::kUnavailable;
  const bool first = reports_.empty() && model_.config.membership.join_at.empty();
  const auto changes_until = [&](Deadline until) {
    return membership_.wait_for_change(running_.members.version, until, model_.stop);
  };
  if (!may_help) return tl::unexpected(why);
  if (first) {
    // A start is strict. But a worker that was lost right after the handshake, by damage on the way, is dialled again
    // already.
    const bool lost = why.code == ErrorCode::kUnavailable && !std::exchange(waited_at_start_, true);
    return lost && changes_until(after_ms(kBackAtStartMs)) ? Status{} : tl::unexpected(why);
  }
  fruitless_ = 0;
  model_.say(fmt::format("waiting for a worker: {}", why.message));
  if (model_.observer.waiting) model_.observer.waiting(why.message);
  if (changes_until(deadline)) return {};
  if (model_.stop.stop_requested()) return make_error(ErrorCode::kCancelled, "cancelled");
  return make_error(why.code, "{}; no other worker came within {} s", why.message,
                    std::chrono::duration_cast<std::chrono::seconds>(model_.config.timeouts.recover_within).count());
}

void EpochLoop::report(const std::string& cause, std::chrono::steady_clock::time_point began) {
  const Plan& plan = running_.plan;
  const Members& members = running_.members;
  const std::vector<int> nodes = plan.nodes();
  reports_.push_back({.epoch = membership_.epoch().value,
                      .workers = static_cast<int>(std::set(nodes.begin(), nodes.end()).size()),
                      .cause = cause,
                      .ready_s = seconds_since(began),
                      .weight_bytes = sent_weight_bytes_});
  const EpochReport& one = reports_.back();
  if (model_.observer.epoch) model_.observer.epoch(one);
  if (model_.config.plan.strategy == "auto" && !plan.note.empty() && members.nodes.size() > 1) model_.say(plan.note);
  model_.say(describe_idle(model_, running_));
  if (reports_.size() == 1) return;
  model_.say(fmt::format("epoch {}: {} workers, ready after {}, {} of weights sent", one.epoch, one.workers,
                         format_seconds(one.ready_s), format_bytes(one.weight_bytes)));
}

}  // namespace butterfly
