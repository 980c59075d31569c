#include "butterfly/plan/pipeline/schedule.h"

#include <algorithm>
#include <optional>

#include "butterfly/base/check.h"

namespace butterfly {
namespace {

/// When the result of each work of each stage is there; nothing: not done yet.
class ScheduleSimulation {
 public:
  ScheduleSimulation(std::span<const StageTimes> stages, int micro_batches)
      : times_(stages), done_(stages.size()), next_(stages.size()), clock_(stages.size()), busy_(stages.size()) {
    const int count = static_cast<int>(stages.size());
    for (int stage = 0; stage < count; ++stage) {
      schedules_.push_back(pipeline_schedule(stage, count, micro_batches));
      done_[static_cast<std::size_t>(stage)].resize(4 * static_cast<std::size_t>(micro_batches));
    }
  }

  PipelineTimes run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t stage = 0; stage < schedules_.size(); ++stage) {
        while (advance(stage)) moved = true;
      }
    }
    PipelineTimes result;
    for (std::size_t stage = 0; stage < schedules_.size(); ++stage) {
      BF_CHECK(next_[stage] == schedules_[stage].size(), "a schedule that waits in a circle");
      result.step_s = std::max(result.step_s, clock_[stage]);
    }
    double waits = 0.0;
    for (const double busy : busy_) {
      result.waits_s.push_back(result.step_s - busy);
      waits += result.waits_s.back();
    }
    const double all = result.step_s * static_cast<double>(busy_.size());
    result.bubble = all > 0.0 ? waits / all : 0.0;
    return result;
  }

 private:
  using Moment = std::optional<double>;

  Moment& done(std::size_t stage, StagePassKind kind, int micro_batch) {
    return done_[stage][static_cast<std::size_t>(micro_batch) * 4 + static_cast<std::size_t>(kind)];
  }

  /// When what this work needs of another stage is here; nothing: it is not known yet.
  Moment arrival(std::size_t stage, const StagePass& work) {
    const std::size_t last = schedules_.size() - 1;
    std::size_t from = stage;
    StagePassKind kind = work.kind;
    switch (work.kind) {
      case StagePassKind::kEmbed:
        return 0.0;
      case StagePassKind::kForward:
        if (last == 0) return 0.0;
        from = stage == 0 ? last : stage - 1;
        kind = stage == 0 ? StagePassKind::kEmbed : StagePassKind::kForward;
        break;
      case StagePassKind::kBackward:
        if (stage == last) return 0.0;  // it has just done the forward pass
        from = stage + 1;
        break;
      case StagePassKind::kEmbedBackward:
        from = 0;
        kind = StagePassKind::kBackward;
        break;
    }
    const Moment sent = done(from, kind, work.micro_batch);
    return sent ? Moment(*sent + times_[from].to_next_s) : std::nullopt;
  }

  bool advance(std::size_t stage) {
    if (next_[stage] == schedules_[stage].size()) return false;
    const StagePass& work = schedules_[stage][next_[stage]];
    const Moment arrived = arrival(stage, work);
    if (!arrived) return false;
    double takes_s = 0.0;
    if (work.kind == StagePassKind::kForward) takes_s = times_[stage].forward_s;
    if (work.kind == StagePassKind::kBackward) takes_s = times_[stage].backward_s;
    clock_[stage] = std::max(clock_[stage], *arrived) + takes_s;
    busy_[stage] += takes_s;
    done(stage, work.kind, work.micro_batch) = clock_[stage];
    ++next_[stage];
    return true;
  }

  const std::span<const StageTimes> times_;
  std::vector<std::vector<StagePass>> schedules_;
  std::vector<std::vector<Moment>> done_;  // of each stage, by micro-batch and kind
  std::vector<std::size_t> next_;
  std::vector<double> clock_, busy_;
};

}  // namespace

int kept_micro_batches(int stage, int stages, int micro_batches) {
  const int ahead = stage + 1 < stages ? kMicroBatchesAhead : 0;
  return std::min(micro_batches, stages - stage + ahead);
}

std::vector<StagePass> pipeline_schedule(int stage, int stages, int micro_batches) {
  BF_CHECK(0 <= stage && stage < stages && micro_batches > 0, "a stage of a pipeline");
  const bool embeds = stages > 1 && stage == stages - 1;
  const int kept = kept_micro_batches(stage, stages, micro_batches);
  std::vector<StagePass> works;
  int embedded = 0, forward = 0;
  // As many as the first stage keeps: it can begin another one when it has ended one.
  const int open = kept_micro_batches(0, stages, micro_batches);
  for (; embeds && embedded < open; ++embedded) {
    works.push_back({StagePassKind::kEmbed, embedded});
  }
  for (; forward < kept - 1; ++forward) works.push_back({StagePassKind::kForward, forward});
  for (int backward = 0; backward < micro_batches; ++backward) {
    if (forward < micro_batches) works.push_back({StagePassKind::kForward, forward++});
    works.push_back({StagePassKind::kBackward, backward});
    if (!embeds) continue;
    if (embedded < micro_batches) works.push_back({StagePassKind::kEmbed, embedded++});
    // By now its gradients have passed all stages where these are as fast as this one.
    const int returned = backward - (open - 1);
    if (returned >= 0) works.push_back({StagePassKind::kEmbedBackward, returned});
  }
  for (int left = std::max(0, micro_batches - (open - 1)); embeds && left < micro_batches; ++left) {
    works.push_back({StagePassKind::kEmbedBackward, left});
  }
  return works;
}

std::vector<StagePass> forward_schedule(int stage, int stages, int micro_batches) {
  const bool embeds = stages > 1 && stage == stages - 1;
  std::vector<StagePass> works;
  int embedded = 0;
  for (int forward = 0; forward < micro_batches; ++forward) {
    for (; embeds && embedded < std::min(forward + stages, micro_batches); ++embedded) {
      works.push_back({StagePassKind::kEmbed, embedded});
    }
    works.push_back({StagePassKind::kForward, forward});
  }
  return works;
}

PipelineTimes simulate_pipeline(std::span<const StageTimes> stages, int micro_batches) {
  return ScheduleSimulation(stages, micro_batches).run();
}

}  // namespace butterfly
