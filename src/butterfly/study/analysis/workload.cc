#include "butterfly/study/analysis/workload.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

namespace butterfly::study {
namespace {

using trace::Zone;

constexpr std::array<std::string_view, 5> kWorkNames{"train", "prefill", "decode", "mixed", "encode"};

std::optional<WorkKind> kind_of_stage(Zone zone) {
  switch (zone) {
    case Zone::kStepTrain:
      return WorkKind::kTrain;
    case Zone::kStepPrefill:
      return WorkKind::kPrefill;
    case Zone::kStepDecode:
      return WorkKind::kDecode;
    case Zone::kStepMixed:
      return WorkKind::kMixed;
    case Zone::kStepEncode:
      return WorkKind::kEncode;
    default:
      return std::nullopt;
  }
}

struct StageStep {
  std::uint64_t begin_ns = 0;
  WorkKind kind = WorkKind::kDecode;
};

std::vector<StageStep> stage_steps(const RecordedRun& run) {
  std::vector<StageStep> steps;
  for (const Process& process : run.processes) {
    for (const SpanNode& span : process.spans) {
      if (const auto kind = kind_of_stage(span.zone)) steps.push_back({span.begin_ns, *kind});
    }
  }
  std::ranges::sort(steps, {}, &StageStep::begin_ns);
  return steps;
}

/// A turn of the scheduler is of the kind of the steps that stages began during it.
std::optional<WorkKind> kind_of_turn(const SpanNode& turn, const std::vector<StageStep>& steps) {
  std::optional<WorkKind> kind;
  for (auto at = std::ranges::lower_bound(steps, turn.begin_ns, {}, &StageStep::begin_ns);
       at != steps.end() && at->begin_ns < turn.end_ns; ++at) {
    if (kind && *kind != at->kind) return WorkKind::kMixed;
    kind = at->kind;
  }
  return kind;
}

struct FoundStep {
  int span = 0;
  WorkKind kind = WorkKind::kDecode;
};

/// All steps of one thread that are turns, or all that are not, by time.
struct ThreadSteps {
  int process = 0;
  std::uint32_t thread = 0;
  bool scheduler = false;
  std::vector<FoundStep> steps;
};

std::vector<ThreadSteps> all_steps(const RecordedRun& run) {
  const std::vector<StageStep> of_stages = stage_steps(run);
  std::map<std::tuple<int, std::uint32_t, bool>, ThreadSteps> found;
  for (std::size_t p = 0; p < run.processes.size(); ++p) {
    const std::vector<SpanNode>& spans = run.processes[p].spans;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const bool turn = spans[i].zone == Zone::kStepTurn;
      const auto kind = turn ? kind_of_turn(spans[i], of_stages) : kind_of_stage(spans[i].zone);
      if (!kind) continue;
      ThreadSteps& steps = found[{static_cast<int>(p), spans[i].thread, turn}];
      steps.process = static_cast<int>(p);
      steps.thread = spans[i].thread;
      steps.scheduler = turn;
      steps.steps.push_back({static_cast<int>(i), *kind});
    }
  }
  std::vector<ThreadSteps> result;
  for (auto& [key, steps] : found) result.push_back(std::move(steps));
  return result;
}

/// Of few steps a fifth is dropped, so that some are left.
int steps_to_skip(int all, int warmup) {
  return all >= 2 * warmup ? warmup : std::min(warmup, all / 5);
}

/// The longest range of neighbours `steps[i].kind == kind`, not among the first `skipped` of that kind. Until the next
/// step of another kind: what the last one made is sent after it.
void set_range(Track& track, const ThreadSteps& of_thread, const std::vector<SpanNode>& spans, WorkKind kind) {
  int seen = 0, length = 0;
  std::uint64_t begin_ns = 0;
  for (const FoundStep& step : of_thread.steps) {
    const SpanNode& span = spans[static_cast<std::size_t>(step.span)];
    if (step.kind != kind) {
      if (length > 0 && track.range_begin_ns == begin_ns) {
        track.range_end_ns = std::max(track.range_end_ns, span.begin_ns);
      }
      length = 0;
      continue;
    }
    if (seen++ < track.skipped) continue;
    if (length++ == 0) begin_ns = span.begin_ns;
    if (length > track.range_steps) {
      track.range_steps = length;
      track.range_begin_ns = begin_ns;
      track.range_end_ns = span.end_ns;
    }
  }
}

Track make_track(const ThreadSteps& of_thread, const RecordedRun& run, WorkKind kind, const StepSelection& selection) {
  const Process& process = run.processes[static_cast<std::size_t>(of_thread.process)];
  Track track{.process = of_thread.process,
              .thread = of_thread.thread,
              .scheduler = of_thread.scheduler,
              .name = process.name,
              .periods = {}};
  track.steps_all = static_cast<int>(std::ranges::count(of_thread.steps, kind, &FoundStep::kind));
  track.skipped = steps_to_skip(track.steps_all, selection.warmup);
  int seen = 0;
  for (std::size_t i = 0; i < of_thread.steps.size(); ++i) {
    if (of_thread.steps[i].kind != kind || seen++ < track.skipped) continue;
    if (static_cast<int>(track.periods.size()) == selection.measure) break;
    const SpanNode& span = process.spans[static_cast<std::size_t>(of_thread.steps[i].span)];
    std::uint64_t end_ns = span.end_ns;
    if (i + 1 < of_thread.steps.size() && of_thread.steps[i + 1].kind == kind) {
      end_ns = std::max(end_ns, process.spans[static_cast<std::size_t>(of_thread.steps[i + 1].span)].begin_ns);
    }
    track.periods.push_back({.step = of_thread.steps[i].span, .begin_ns = span.begin_ns, .end_ns = end_ns});
  }
  set_range(track, of_thread, process.spans, kind);
  return track;
}

/// Several of a process have its name and that of their thread, or a number.
void number_names(const RecordedRun& run, std::vector<Track>& tracks) {
  std::map<std::string, int> stages, used;
  const auto named = [&run](const std::string& process, const std::string& thread) {
    return run.processes.size() == 1 ? thread : process + ", " + thread;
  };
  for (const Track& track : tracks) stages[track.name] += track.scheduler ? 0 : 1;
  for (Track& track : tracks) {
    const std::string process = track.name;
    if (track.scheduler) {
      track.name = named(process, "scheduler");
    } else if (stages[process] > 1) {
      const int number = ++used[process];
      const std::string thread =
          run.processes[static_cast<std::size_t>(track.process)].fact(fmt::format("thread.{}", track.thread));
      track.name = named(process, thread.empty() ? fmt::format("thread {}", number) : thread);
    }
  }
}

std::size_t lead_of(const std::vector<Track>& tracks) {
  const auto key = [](const Track& track) { return std::pair(track.scheduler, track.periods.size()); };
  return static_cast<std::size_t>(std::ranges::max_element(tracks, {}, key) - tracks.begin());
}

}  // namespace

std::string_view to_string(WorkKind kind) {
  return kWorkNames[static_cast<std::size_t>(kind)];
}

double Track::wall_s() const {
  double sum = 0.0;
  for (const Period& period : periods) sum += static_cast<double>(period.wall_ns());
  return sum * 1e-9;
}

std::vector<Workload> find_workloads(const RecordedRun& run, const StepSelection& selection) {
  const std::vector<ThreadSteps> threads = all_steps(run);
  std::vector<Workload> workloads;
  for (std::size_t k = 0; k < kWorkNames.size(); ++k) {
    Workload workload{.kind = static_cast<WorkKind>(k), .tracks = {}};
    for (const ThreadSteps& steps : threads) {
      Track track = make_track(steps, run, workload.kind, selection);
      if (!track.periods.empty()) workload.tracks.push_back(std::move(track));
    }
    if (workload.tracks.empty()) continue;
    number_names(run, workload.tracks);
    workload.lead = lead_of(workload.tracks);
    workloads.push_back(std::move(workload));
  }
  return workloads;
}

std::string selection_sentence(const Track& track) {
  return fmt::format("{} of {} steps, after {} that {} dropped as warm-up", track.periods.size(), track.steps_all,
                     track.skipped, track.skipped == 1 ? "was" : "were");
}

}  // namespace butterfly::study
