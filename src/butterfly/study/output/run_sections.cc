// A report's sections about the whole run: memory, machines, what to do.
#include <fmt/format.h>

#include <array>

#include "butterfly/base/units.h"
#include "butterfly/study/output/form_parts.h"

namespace butterfly::study {
namespace {

ReportTable owner_table(const Study& study) {
  ReportTable table{.title = "At the peak", .head = {"process", "resident"}, .rows = {}};
  std::vector<std::string> owners;
  for (int i = 0; i < static_cast<int>(trace::Owner::kCount); ++i) {
    owners.emplace_back(to_string(static_cast<trace::Owner>(i)));
    table.head.push_back(owners.back());
  }
  table.head.insert(table.head.end(), {"files", "other", "unused heap"});
  for (const MemoryUse& use : study.memory) {
    std::vector<std::string> row{use.process, short_bytes(use.peak)};
    for (const std::string& owner : owners) {
      const auto found = use.held.find(owner);
      row.push_back(found == use.held.end() ? "-" : short_bytes(found->second));
    }
    row.push_back(short_bytes(use.files));
    row.push_back(short_bytes(use.other));
    row.push_back(use.heap > 0.0 ? percent_of(use.heap_free_share) : "-");
    table.rows.push_back(std::move(row));
  }
  table.note =
      "Resident memory is what the system gave; owners are what Butterfly took. Files: the program, mapped files, "
      "memory "
      "shared with others. Other: heap and stacks in no owner's name; below zero where an owner's pages are not "
      "resident "
      "yet, or are pages of files.";
  return table;
}

ReportTable growth_table(const Study& study) {
  ReportTable table{
      .title = "While steps ran", .head = {"process", "growth", "per second", "straightness"}, .rows = {}};
  for (const MemoryUse& use : study.memory) {
    table.rows.push_back(
        {use.process, short_bytes(use.growth), short_bytes(use.growth_per_s), fmt::format("{:.2f}", use.growth_fit)});
  }
  return table;
}

ReportTable process_table(const Study& study) {
  ReportTable table{.title = "Processes",
                    .head = {"process", "host", "seconds", "CPUs used", "threads", "CPUs", "waiting for a CPU",
                             "recording", "clock error", "spans", "lost"},
                    .rows = {},
                    .text_columns = 2};
  const auto number = [](double value) { return value > 0.0 ? fmt::format("{:.0f}", value) : std::string("-"); };
  for (const ProcessUse& use : study.processes) {
    table.rows.push_back({use.name, use.host, fmt::format("{:.2f}", use.seconds), fmt::format("{:.2f}", use.cpus_used),
                          number(use.threads), number(use.cpus), percent_of(use.run_queue_share),
                          use.recording_share > 0.0 ? fmt::format("{:.2f} %", 100 * use.recording_share) : "-",
                          use.clock_error_us > 0.0 ? fmt::format("{:.1f} us", use.clock_error_us) : "-",
                          fmt::format("{}", use.spans), fmt::format("{}", use.lost)});
  }
  table.note = "Recording: what spans cost, their number times the measured cost of one.";
  return table;
}

std::vector<std::string> cause_row(const Cause& cause, bool inconclusive) {
  std::string speed = "-";
  if (cause.gain > 0.0 && inconclusive) speed = "inconclusive";
  if (cause.gain > 0.0 && !inconclusive) {
    speed = fmt::format("{:.2f} x ({:.2f} to {:.2f})", cause.speedup, cause.speedup_low, cause.speedup_high);
  }
  return {cause.id, cause.workload.empty() ? "all" : cause.workload, std::string(to_string(cause.priority)),
          std::string(to_string(cause.effort)), speed};
}

ReportTable matrix_table(const Advice& advice) {
  ReportTable table{
      .title = "Impact by effort", .head = {"impact", "a flag", "setup", "code"}, .rows = {}, .text_columns = 4};
  constexpr std::array<std::string_view, 3> kImpacts{"over 30 %", "10 to 30 %", "under 10 %"};
  for (std::size_t i = 0; i < kImpacts.size(); ++i) {
    std::vector<std::string> row{std::string(kImpacts[i]), "", "", ""};
    for (const Cause& cause : advice.causes) {
      const std::size_t impact = cause.gain >= 0.30 ? 0 : cause.gain >= 0.10 ? 1 : 2;
      std::string& cell = row[1 + static_cast<std::size_t>(cause.effort)];
      if (impact == i && cell.find(cause.id) == std::string::npos) cell += (cell.empty() ? "" : ", ") + cause.id;
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

ReportSection memory_section(const Study& study) {
  ReportSection section{.title = "Memory"};
  for (const MemoryUse& use : study.memory) {
    if (use.timeline.size() > 1) section.figures.push_back(memory_figure(use));
  }
  section.tables = {owner_table(study), growth_table(study)};
  return section;
}

ReportSection machine_section(const Study& study) {
  ReportSection section{.title = "Machines and trust"};
  const Quality& quality = study.quality;
  section.paragraphs.push_back(fmt::format(
      "{}: the host took {} of the CPU time, other programs used {:.2f} CPUs, threads waited {} of the time in which "
      "they wanted a CPU, and a timed loop took {} longer than at its best.",
      to_string(quality.trust), percent_of(quality.stolen_share), quality.foreign_cpus,
      percent_of(quality.run_queue_share), percent_of(quality.slowdown)));
  section.tables.push_back(process_table(study));
  if (!study.beside.empty()) {
    ReportTable beside{
        .title = "Before and beside the steps", .head = {"process", "what", "time"}, .rows = {}, .text_columns = 2};
    for (const OtherTime& one : study.beside)
      beside.rows.push_back({one.process, one.name, format_seconds(one.seconds)});
    section.tables.push_back(std::move(beside));
  }
  for (const std::string& note : study.notes) section.paragraphs.push_back("Note: " + note + ".");
  return section;
}

ReportSection advice_section(const Study&, const Advice& advice) {
  ReportSection section{.title = "What to do"};
  if (advice.causes.empty()) {
    section.paragraphs.push_back("Nothing to recommend: no cause that is looked for reaches its limit.");
  }
  int number = 0;
  for (const Cause& cause : advice.causes) {
    section.paragraphs.push_back(fmt::format("{}. {}{}: {}. Remedy: {}.", ++number, cause.id,
                                             cause.workload.empty() ? "" : " (" + cause.workload + ")", cause.what,
                                             cause.remedy));
  }
  if (!advice.causes.empty()) {
    ReportTable causes{.title = "Roadmap",
                       .head = {"cause", "steps", "priority", "effort", "predicted speed"},
                       .rows = {},
                       .text_columns = 4};
    for (const Cause& cause : advice.causes) causes.rows.push_back(cause_row(cause, advice.inconclusive));
    causes.note = fmt::format(
        "Predictions are by Amdahl's law from measured shares, each remedy alone; the interval is "
        "+-{:.0f} %, from the measured variance and what disturbed the machine.",
        100 * advice.uncertainty);
    section.tables.push_back(std::move(causes));
    section.tables.push_back(matrix_table(advice));
  }
  ReportTable headings{
      .title = "The six headings", .head = {"heading", "verdict"}, .rows = {}, .text_columns = 2, .long_one = true};
  for (const HeadingVerdict& one : advice.headings) {
    headings.rows.push_back({std::string(to_string(one.heading)), one.verdict});
  }
  section.tables.push_back(std::move(headings));
  return section;
}

}  // namespace butterfly::study
