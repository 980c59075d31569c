#include "butterfly/study/advice/advice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "butterfly/study/advice/causes.h"

namespace butterfly::study {
namespace {

constexpr std::array<std::string_view, 11> kHeadingNames{"Separate QKV projections",
                                                         "Attention memory",
                                                         "Separate gate and up projections",
                                                         "Kernel launch overhead",
                                                         "Memory fragmentation",
                                                         "Softmax and loss",
                                                         "Utilisation",
                                                         "Communication",
                                                         "Placement and machine",
                                                         "Step variance",
                                                         "Memory"};

/// Half the width that an interval has at least, where the machine was quiet and where it was not.
constexpr double kQuietWidth = 0.08, kDisturbedWidth = 0.25, kInconclusiveWidth = 0.60;

double uncertainty_of(const Study& study) {
  double width = 0.0;
  for (const WorkloadStudy& work : study.workloads) width = std::max(width, work.step_s.relative());
  // Both the step that was measured and the one that will be vary.
  width *= std::sqrt(2.0);
  if (study.quality.trust == Trust::kQuiet) return std::max(width, kQuietWidth);
  width = std::max(width, kDisturbedWidth) + study.quality.stolen_share + study.quality.slowdown / 2;
  return study.quality.trust == Trust::kInconclusive ? std::max(width, kInconclusiveWidth + 0.01) : width;
}

Priority priority_of(const Cause& cause) {
  if (cause.id == "memory_leak") return Priority::kCritical;
  if (cause.gain >= 0.30) return cause.effort == Effort::kCode ? Priority::kHigh : Priority::kCritical;
  if (cause.gain >= 0.10) return cause.effort == Effort::kCode ? Priority::kMedium : Priority::kHigh;
  return cause.gain >= 0.03 ? Priority::kMedium : Priority::kLow;
}

void predict(Cause& cause, double uncertainty) {
  cause.gain = std::clamp(cause.gain, 0.0, 0.95);
  cause.speedup = 1.0 / (1.0 - cause.gain);
  const auto at = [&cause](double factor) { return 1.0 / (1.0 - std::clamp(cause.gain * factor, 0.0, 0.95)); };
  // A predicted time lies within so much of the one that will be measured.
  cause.speedup_low = std::max(cause.gain > 0.0 ? 1.0 / (1.0 + uncertainty) : 1.0, cause.speedup * (1.0 - uncertainty));
  cause.speedup_high = std::max(at(1.0), cause.speedup * (1.0 + (cause.gain > 0.0 ? uncertainty : 0.0)));
  cause.priority = priority_of(cause);
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string plain_verdict(const Study& study, Heading heading) {
  double attention = 0.0, loss = 0.0, launches = 0.0, per_step = 0.0, free_share = 0.0;
  bool cost_known = false, gate_up = false;
  int projections = 0;
  for (const WorkloadStudy& work : study.workloads) {
    attention = std::max(attention, share_of(work, "attention"));
    loss = std::max(loss, share_of(work, "softmax_loss"));
    launches = std::max(launches, work.launches.share);
    per_step = std::max(per_step, work.launches.per_step);
    cost_known = cost_known || work.launches.cost_known;
    projections = std::max(projections, work.projections_per_layer);
    gate_up = gate_up || share_of(work, "gate_up") > 0.0;
  }
  for (const MemoryUse& use : study.memory) free_share = std::max(free_share, use.heap_free_share);
  switch (heading) {
    case Heading::kSeparateQkv:
      if (projections == 0) return "no layer with projections was recorded";
      return projections == 1 ? "one fused matmul per layer" : fmt::format("{} matmuls per layer", projections);
    case Heading::kAttentionMemory:
      return fmt::format("attention takes {} of the time", percent(attention));
    case Heading::kSeparateGateUp:
      return gate_up ? "one fused matmul per layer" : "no fused gate and up was recorded";
    case Heading::kLaunchOverhead:
      if (!cost_known) return fmt::format("{:.0f} launches a step; what one costs is not recorded", per_step);
      return fmt::format("{:.0f} launches a step take {} of it", per_step, percent(launches));
    case Heading::kFragmentation:
      return fmt::format("{} of the heap is held and unused", percent(free_share));
    default:
      return fmt::format("softmax and loss take {} of the time", percent(loss));
  }
}

std::vector<HeadingVerdict> verdicts(const Study& study, const std::vector<Cause>& causes) {
  std::vector<HeadingVerdict> result;
  for (int i = 0; i < kFormHeadings; ++i) {
    const auto heading = static_cast<Heading>(i);
    const auto found = std::ranges::find(causes, heading, &Cause::heading);
    const std::string plain = plain_verdict(study, heading);
    result.push_back({heading, found == causes.end() ? "no problem: " + plain : found->what});
  }
  return result;
}

}  // namespace

std::string_view to_string(Heading heading) {
  return kHeadingNames[static_cast<std::size_t>(heading)];
}

std::string_view to_string(Effort effort) {
  constexpr std::array<std::string_view, 3> kNames{"a flag", "setup", "code"};
  return kNames[static_cast<std::size_t>(effort)];
}

std::string_view to_string(Priority priority) {
  constexpr std::array<std::string_view, 4> kNames{"critical", "high", "medium", "low"};
  return kNames[static_cast<std::size_t>(priority)];
}

Advice advise(const Study& study) {
  Advice advice{.causes = machine_causes(study), .headings = {}, .uncertainty = uncertainty_of(study)};
  advice.inconclusive = advice.uncertainty > kInconclusiveWidth;
  const auto add = [&advice](std::vector<Cause> causes) {
    for (Cause& cause : causes) advice.causes.push_back(std::move(cause));
  };
  add(memory_causes(study));
  double steps_s = 0.0;  // kinds of steps count by the time that all of theirs take
  for (const WorkloadStudy& work : study.workloads) steps_s += work.tracks[work.lead].wall_s;
  for (const WorkloadStudy& work : study.workloads) {
    const double part = steps_s > 0.0 ? work.tracks[work.lead].wall_s / steps_s : 1.0;
    if (part < 0.05) continue;
    add(compute_causes(study, work));
    add(fusion_causes(study, work));
    add(communication_causes(study, work));
  }
  for (Cause& cause : advice.causes) predict(cause, advice.uncertainty);
  // Where others had the CPUs, all other numbers are theirs as well.
  const bool others = study.quality.trust == Trust::kInconclusive;
  const auto key = [others](const Cause& cause) {
    return std::tuple(cause.id != "memory_leak", !others || cause.id != "foreign_load", -cause.gain);
  };
  std::ranges::stable_sort(advice.causes, {}, key);
  advice.headings = verdicts(study, advice.causes);
  return advice;
}

}  // namespace butterfly::study
