// butterfly study compare: what changed from one study to another, and whether more than chance.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "study/study.h"

namespace butterfly::app {
namespace {

using namespace study;

struct CompareCommand {
  std::string before, after;
  bool json = false;
};

struct Change {
  std::string what;
  double before = 0.0, after = 0.0;
  double ratio = 1.0, low = 1.0, high = 1.0;  // before over after: above one is faster
  std::string verdict;
};

/// The quotient of two means with independent errors; to first order, relative errors add up as squares.
Change step_change(const WorkloadStudy& a, const WorkloadStudy& b, bool inconclusive) {
  Change change{.what = fmt::format("{} step", to_string(a.kind)),
                .before = a.step_s.mean,
                .after = b.step_s.mean,
                .verdict = {}};
  change.ratio = b.step_s.mean > 0.0 ? a.step_s.mean / b.step_s.mean : 0.0;
  const double error = std::hypot(a.step_s.relative(), b.step_s.relative());
  change.low = change.ratio * (1.0 - error);
  change.high = change.ratio * (1.0 + error);
  if (inconclusive || a.step_s.blocks < 2 || b.step_s.blocks < 2) {
    change.verdict = "inconclusive";
  } else if (change.low > 1.0) {
    change.verdict = "faster";
  } else if (change.high < 1.0) {
    change.verdict = "slower";
  } else {
    change.verdict = "no difference shown";
  }
  return change;
}

/// Operations by what they take of a step, those first whose time changed most.
std::vector<Change> operation_changes(const WorkloadStudy& a, const WorkloadStudy& b) {
  std::vector<Change> changes;
  const auto per_step = [](const WorkloadStudy& work, const OperatorTime& one) {
    return one.own_s / std::max(1, work.tracks[work.lead].steps);
  };
  const auto find = [](const WorkloadStudy& work, const OperatorTime& one) {
    return std::ranges::find_if(
        work.operators, [&one](const OperatorTime& other) { return other.name == one.name && other.type == one.type; });
  };
  const auto add = [&changes](const OperatorTime& one, double before, double after) {
    Change change{
        .what = one.name + (one.type.empty() ? "" : " " + one.type), .before = before, .after = after, .verdict = {}};
    change.ratio = after > 0.0 ? before / after : 0.0;
    changes.push_back(std::move(change));
  };
  for (const OperatorTime& one : a.operators) {
    const auto other = find(b, one);
    add(one, per_step(a, one), other == b.operators.end() ? 0.0 : per_step(b, *other));
  }
  for (const OperatorTime& one : b.operators) {
    if (find(a, one) == a.operators.end()) add(one, 0.0, per_step(b, one));
  }
  std::ranges::stable_sort(changes, std::greater{},
                           [](const Change& change) { return std::abs(change.after - change.before); });
  if (changes.size() > 12) changes.resize(12);
  return changes;
}

nlohmann::ordered_json change_json(const Change& change) {
  return {{"what", change.what},      {"before_s", change.before}, {"after_s", change.after},
          {"speedup", change.ratio},  {"speedup_low", change.low}, {"speedup_high", change.high},
          {"verdict", change.verdict}};
}

std::string change_speed(const Change& change) {
  if (change.before <= 0.0) return "new";
  return change.after <= 0.0 ? "gone" : fmt::format("{:.2f} x", change.ratio);
}

ReportSection compare_section(const WorkloadStudy& a, const WorkloadStudy& b, const Change& step) {
  ReportSection section{.title = fmt::format("Steps: {}", to_string(a.kind))};
  section.paragraphs.push_back(fmt::format("{} before, {} after: {:.2f} times as fast ({:.2f} to {:.2f}), {}.",
                                           with_interval(a.step_s.mean, a.step_s.half_width),
                                           with_interval(b.step_s.mean, b.step_s.half_width), step.ratio, step.low,
                                           step.high, step.verdict));
  ReportTable table{.title = "Operations, own time per step; the largest changes first",
                    .head = {"operation", "before", "after", "speed"},
                    .rows = {}};
  for (const Change& change : operation_changes(a, b)) {
    table.rows.push_back(
        {change.what, format_seconds(change.before), format_seconds(change.after), change_speed(change)});
  }
  section.tables.push_back(std::move(table));
  return section;
}

Result<int> run_compare(const CompareCommand& command) {
  BF_ASSIGN_OR_RETURN(const StudyFolder before, read_study(command.before, -1, -1));
  BF_ASSIGN_OR_RETURN(const StudyFolder after, read_study(command.after, -1, -1));
  const bool inconclusive = std::max(before.result.quality.trust, after.result.quality.trust) == Trust::kInconclusive;
  study::Report report{
      .title = fmt::format("{} and {} compared", command.before, command.after), .summary = {}, .sections = {}};
  nlohmann::ordered_json json{{"format", "butterfly-study-comparison"}, {"version", 1}};
  json["workloads"] = nlohmann::ordered_json::array();
  const auto add_reasons = [&report](const std::string& name, const study::Quality& quality) {
    for (const std::string& reason : quality.reasons) {
      report.summary.push_back(fmt::format("{} was {}: {}", name, to_string(quality.trust), reason));
    }
  };
  add_reasons(command.before, before.result.quality);
  add_reasons(command.after, after.result.quality);
  for (const WorkloadStudy& a : before.result.workloads) {
    const auto b = std::ranges::find(after.result.workloads, a.kind, &WorkloadStudy::kind);
    if (b == after.result.workloads.end()) continue;
    const Change step = step_change(a, *b, inconclusive);
    report.sections.push_back(compare_section(a, *b, step));
    nlohmann::ordered_json one = change_json(step);
    one["operations"] = nlohmann::ordered_json::array();
    for (const Change& change : operation_changes(a, *b)) one["operations"].push_back(change_json(change));
    json["workloads"].push_back(std::move(one));
  }
  if (report.sections.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{} has steps of kind {}, {} of kind {}: nothing can be compared",
                      command.before, to_string(before.result.workloads.front().kind), command.after,
                      to_string(after.result.workloads.front().kind));
  }
  std::printf("%s", command.json ? (dump_json(json, {.indent = 2}) + "\n").c_str() : terminal_text(report).c_str());
  return kExitOk;
}

}  // namespace

void add_study_compare(Command study, Action& action) {
  auto sub = study.add_subcommand("compare", "What changed from one study to another");
  auto command = std::make_shared<CompareCommand>();
  sub.add_option("before", command->before, "Folder of the one study").required();
  sub.add_option("after", command->after, "Folder of the other").required();
  sub.add_flag("--json", command->json, "One JSON object instead of tables");
  sub.footer(
      "Says faster or slower only where the 95 % interval of the quotient leaves out 1, and neither run was too much\n"
      "disturbed; --repeats of study run makes intervals honest about what differs from run to run.");
  run_later(sub, action, [command] { return run_compare(*command); });
}

}  // namespace butterfly::app
