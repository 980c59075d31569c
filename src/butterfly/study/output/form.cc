#include "butterfly/study/output/form.h"

#include <fmt/format.h>

#include "butterfly/base/units.h"
#include "butterfly/study/output/form_parts.h"

namespace butterfly::study {
namespace {

std::string fact_of(const Study& study, const std::string& name) {
  const auto found = study.facts.find(name);
  return found == study.facts.end() ? std::string() : found->second;
}

std::string about(const Study& study) {
  std::string text = fact_of(study, "model.name");
  if (text.empty()) text = "a model without a name";
  const auto add = [&](const char* fact, std::string_view before, std::string_view after) {
    if (const std::string value = fact_of(study, fact); !value.empty())
      text += fmt::format("{}{}{}", before, value, after);
  };
  add("model.type", ", ", "");
  add("model.layers", ", ", " layers");
  add("model.model_dim", ", model_dim ", "");
  add("threads", ", ", fact_of(study, "threads") == "1" ? " thread" : " threads");
  add("isa", ", ", "");
  return text + fmt::format("; {} process{}", study.processes.size(), study.processes.size() == 1 ? "" : "es");
}

std::string step_line(const WorkloadStudy& work) {
  const Efficiency& found = work.efficiency;
  std::string text =
      fmt::format("{}: {} a step", to_string(work.kind), with_interval(work.step_s.mean, work.step_s.half_width));
  if (found.tokens_per_step > 0.0 && work.step_s.mean > 0.0) {
    text += fmt::format(", {:.1f} tokens/s", found.tokens_per_step / work.step_s.mean);
  }
  if (found.peak_flops > 0.0) text += fmt::format(", MFU {} ({})", percent_of(found.mfu), mfu_band(found.mfu));
  if (found.bandwidth_share > 0.0) {
    text += fmt::format(", {:.1f} GB/s ({} of the memory's)", found.gb_per_s, percent_of(found.bandwidth_share));
  }
  if (found.ridge > 0.0 && found.intensity > 0.0) text += found.memory_bound ? ", memory-bound" : ", compute-bound";
  return text;
}

std::string first_advice(const Advice& advice) {
  if (advice.causes.empty()) return "Nothing to recommend: no cause reaches its limit";
  const Cause& first = advice.causes.front();
  if (first.gain <= 0.0) return fmt::format("First: {}. Remedy: {}", first.what, first.remedy);
  if (advice.inconclusive)
    return fmt::format("First, by how much is inconclusive: {}. Remedy: {}", first.what, first.remedy);
  return fmt::format("First: {}. Remedy: {} ({:.2f} times as fast, {:.2f} to {:.2f})", first.what, first.remedy,
                     first.speedup, first.speedup_low, first.speedup_high);
}

}  // namespace

Report make_report(const Study& study, const Advice& advice) {
  Report report{.title = "Performance of " + (study.command.empty() ? fact_of(study, "role") : study.command)};
  report.summary.push_back(about(study));
  for (const WorkloadStudy& work : study.workloads) report.summary.push_back(step_line(work));
  if (study.quality.trust == Trust::kQuiet) {
    report.summary.push_back("The machine was quiet");
  } else {
    std::string text = study.quality.trust == Trust::kInconclusive ? "Inconclusive: " : "Disturbed: ";
    for (std::size_t i = 0; i < study.quality.reasons.size(); ++i) {
      text += (i > 0 ? "; " : "") + study.quality.reasons[i];
    }
    report.summary.push_back(text);
  }
  report.summary.push_back(first_advice(advice));
  report.sections.push_back(advice_section(study, advice));
  for (const WorkloadStudy& work : study.workloads) report.sections.push_back(work_section(work));
  report.sections.push_back(memory_section(study));
  report.sections.push_back(machine_section(study));
  return report;
}

}  // namespace butterfly::study
