#include "study/scale_point.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "butterfly/base/statistics.h"
#include "study/study.h"
#include "study/study_child.h"

namespace butterfly::app {
namespace {

/// Of the kind of step that took most time: decode of an answer, the steps of training.
const study::WorkloadStudy* main_work(const study::Study& result) {
  const study::WorkloadStudy* found = nullptr;
  double most = 0.0;
  for (const study::WorkloadStudy& work : result.workloads) {
    const double wall = work.tracks[work.lead].wall_s;
    if (wall <= most) continue;
    most = wall;
    found = &work;
  }
  return found;
}

/// Collectives that hold no other.
double sent_bytes(const study::WorkloadStudy& work) {
  constexpr std::array<std::string_view, 5> kCollectives{"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                                         "all_to_all"};
  double bytes = 0.0;
  for (const study::LinkUse& link : work.links) {
    if (std::ranges::count(kCollectives, link.name) > 0) bytes += link.bytes;
  }
  return bytes / std::max(1, work.tracks[work.lead].steps);
}

/// By all owners, of all processes.
double held_bytes(const study::Study& found) {
  double bytes = 0.0;
  for (const study::MemoryUse& use : found.memory) {
    double most = 0.0;
    for (const study::MemoryPoint& point : use.timeline) {
      most = std::max(most, std::accumulate(point.held.begin(), point.held.end(), 0.0));
    }
    bytes += most;
  }
  return bytes;
}

}  // namespace

double ScalePoint::step_s() const {
  std::vector<double> means;
  for (const study::Summary& one : steps) means.push_back(one.mean);
  return median(means);
}

Result<study::Study> run_round(const ScaleRun& run, ScalePoint& point) {
  const ChildRun child{.words = run.words,
                       .recordings = run.folder + "/recordings",
                       .environment = {},
                       .output = run.folder + "/stdout.txt"};
  BF_TRY(make_empty(child.recordings));
  BF_ASSIGN_OR_RETURN(const int code, run_recorded(child));
  if (code == kExitInvalid) {
    std::fprintf(stderr, "study: that run says that it is INVALID (%s); its times count\n", child.output.c_str());
  } else if (code != 0) {
    return make_error(ErrorCode::kInvalidArgument, "'{}' ended with status {}", as_shell(child.words), code);
  }
  BF_TRY(write_about(run.folder, {.command = as_shell(child.words), .warmup = run.warmup, .measure = run.measure}));
  BF_ASSIGN_OR_RETURN(StudyFolder read, read_study(run.folder, -1, -1));
  const study::WorkloadStudy* work = main_work(read.result);
  if (work == nullptr) return make_error(ErrorCode::kNotFound, "{}: no steps were recorded", run.folder);
  point.steps.push_back(work->step_s);
  const study::TrackTime& lead = work->tracks[work->lead];
  point.exposed.push_back(lead.wall_s > 0.0 ? (lead.communication_s + lead.wait_s) / lead.wall_s : 0.0);
  point.trust = std::max(point.trust, read.result.quality.trust);
  point.sent_bytes = sent_bytes(*work) / point.size;
  point.held_bytes = held_bytes(read.result) / point.size;
  return std::move(read.result);
}

void compare_rounds(const ScalePoint& one, double work, ScalePoint& point) {
  std::vector<double> ratios;
  point.least = INFINITY;
  point.most = 0.0;
  for (std::size_t round = 0; round < std::min(one.steps.size(), point.steps.size()); ++round) {
    const study::Summary &before = one.steps[round], &after = point.steps[round];
    ratios.push_back(work * before.mean / after.mean);
    point.least =
        std::min(point.least, work * std::max(0.0, before.mean - before.half_width) / (after.mean + after.half_width));
    const double least_s = after.mean - after.half_width;
    if (least_s > 0.0) point.most = std::max(point.most, work * (before.mean + before.half_width) / least_s);
  }
  point.speedup = median(ratios);
  point.most = std::max(point.most, point.speedup);
  point.efficiency = point.speedup * one.size / point.size;
}

}  // namespace butterfly::app
